"""Prompts that may be cut to a number of tokens (`truncate_prompt_tokens`, `truncation_side`)."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from pagewire.ipc.errors import InvalidRequest

# No vocabulary has longer tokens (the longest are runs of spaces or dashes).
MAX_TOKEN_CHARS = 256
# Where a text is cut, the tokens at the cut differ from the whole text's; so many further ones are more than enough.
_MARGIN_TOKENS = 16

Side = Literal["left", "right"]


class Truncatable(Protocol):
    """A body that may ask for it."""

    truncate_prompt_tokens: int | None
    truncation_side: Side | None


class Truncation(msgspec.Struct, frozen=True):
    """How prompts are cut: to so many tokens, on this side."""

    num_tokens: int
    side: Side

    def cut_text(self, text: str) -> str:
        """Return what of a text can decide which tokens stay: a prompt of megabytes is not tokenized for a few of them.

        Tokens depend on what is near them alone, and none is longer than `MAX_TOKEN_CHARS`.
        """
        num_chars = (self.num_tokens + _MARGIN_TOKENS) * MAX_TOKEN_CHARS
        return text[-num_chars:] if self.side == "left" else text[:num_chars]

    def cut(self, token_ids: list[int]) -> list[int]:
        """Return a prompt's token ids as far as they stay."""
        return token_ids[-self.num_tokens :] if self.side == "left" else token_ids[: self.num_tokens]


def truncation_of(body: Truncatable, *, most: int, default_side: Side) -> Truncation | None:
    """Return how a request has its prompts cut; None if it has them as they are.

    Args:
        body: what the request says.
        most: tokens that -1 leaves, and the most that can be asked for.
        default_side: where they are cut if the request doesn't say.

    Raises:
        InvalidRequest: the number is out of range, or a side is given without one.
    """
    count = body.truncate_prompt_tokens
    if count is None:
        if body.truncation_side is not None:
            raise InvalidRequest("truncation_side needs truncate_prompt_tokens.", param="truncation_side")
        return None
    if count == 0 or not -1 <= count <= most:
        raise InvalidRequest(
            f"truncate_prompt_tokens must be -1 (as many as fit, {most}) or from 1 to {most}; got {count}.",
            param="truncate_prompt_tokens",
        )
    return Truncation(most if count == -1 else count, body.truncation_side or default_side)
