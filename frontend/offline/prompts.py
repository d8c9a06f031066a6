"""What users hand to `LLM`: one prompt or conversation or many; one set of parameters or one each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard, TypeVar

import msgspec

from pagewire.ipc.errors import InvalidRequest

from ..text.chat_template import Message

Prompt: TypeAlias = "str | Sequence[int] | Mapping[str, object]"

T = TypeVar("T")


class OfflinePrompt(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt: its text, or its token ids if `text` is None."""

    text: str | None = None
    token_ids: Sequence[int] = ()
    cache_salt: str = ""


def read_prompts(prompts: Prompt | Sequence[Prompt]) -> list[OfflinePrompt]:
    """Return the prompts in order, whichever of the known forms they have.

    Args:
        prompts: a text, a list of token ids, `{"prompt": text}` or `{"prompt_token_ids": ids}` (with a `cache_salt`
            if wanted), or a list of those.

    Raises:
        InvalidRequest: something else.
    """
    if not _is_list(prompts) or _is_token_ids(prompts):
        return [_read_prompt(prompts)]
    return [_read_prompt(prompt) for prompt in prompts]


def read_conversations(
    messages: Sequence[Message] | Sequence[Sequence[Message]],
) -> list[Sequence[Message]]:
    """Return the conversations in order, given one or a list of them.

    Raises:
        InvalidRequest: something else, or a conversation without a message.
    """
    if _is_list(messages):
        # Told apart by the first entry. An empty list holds no conversation, as it holds no prompt.
        conversations: list[Any] = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        if all(_is_list(each) and each and all(isinstance(part, Mapping) for part in each) for each in conversations):
            return conversations
    raise InvalidRequest(
        "A conversation is a list of messages like {'role': 'user', 'content': text}, one at least; "
        f"got {messages!r:.100}.",
        param="messages",
    )


def read_each(value: T | Sequence[T], kind: type[T], count: int, name: str) -> list[T]:
    """Return one value a prompt, given one for all or a list of them.

    Raises:
        InvalidRequest: the list has another length, or a value is not of its kind.
    """
    values = [value] * count if isinstance(value, kind) else value
    if not isinstance(values, Sequence) or not all(isinstance(entry, kind) for entry in values):
        raise InvalidRequest(f"{name} must be {kind.__name__}, or a list of one per prompt; got {value!r:.100}.")
    if len(values) != count:
        raise InvalidRequest(f"{name} has {len(values)} entries for {count} prompts; give one for all, or one each.")
    return list(values)


def _read_prompt(prompt: object) -> OfflinePrompt:
    match prompt:
        case str():
            return OfflinePrompt(text=prompt)
        case {"prompt": str() as text, **rest}:
            return OfflinePrompt(text=text, cache_salt=_only_salt(rest))
        case {"prompt_token_ids": token_ids, **rest} if _is_list(token_ids):
            return OfflinePrompt(token_ids=token_ids, cache_salt=_only_salt(rest))
        case Sequence() if _is_list(prompt) and (not prompt or _is_token_ids(prompt)):
            return OfflinePrompt(token_ids=prompt)
        case _:
            raise InvalidRequest(
                "A prompt is a text, a list of token ids, {'prompt': text} or {'prompt_token_ids': ids}; "
                f"got {prompt!r:.100}.",
                param="prompt",
            )


def _only_salt(rest: dict[object, object]) -> str:
    salt = rest.pop("cache_salt", "")
    if rest or not isinstance(salt, str):
        raise InvalidRequest(f"A prompt may carry a cache_salt (a text) and nothing else; got {rest or salt!r}.")
    return salt


def _is_token_ids(value: object) -> bool:
    return _is_list(value) and bool(value) and isinstance(value[0], int)


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:  # Any: callers look
    # The entries of bytes are ints, but who hands over bytes means a text.
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
