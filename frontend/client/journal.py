"""What a client keeps of each live request: how it was asked, and which tokens have come since.

A core that starts anew has no memory. An entry holds all that adding its request again takes, and it is the reason
why no token is reported twice: `record` lets through only what continues the tokens that are here already.
"""

from __future__ import annotations

import msgspec

from pagewire.ipc.errors import ProtocolError
from pagewire.ipc.outputs import TokenDelta
from pagewire.ipc.requests import AddRequest


class JournalEntry:
    """One live request and its output tokens so far.

    Attributes:
        request: as it was sent.
        output_token_ids: per child, the tokens received.
        living_children: those whose last delta is still to come.
    """

    __slots__ = ("living_children", "output_token_ids", "request")

    def __init__(self, request: AddRequest) -> None:
        self.request = request
        self.output_token_ids: list[list[int]] = [[] for _ in range(request.task.n)]
        self.living_children = set(range(request.task.n))

    def record(self, delta: TokenDelta) -> TokenDelta | None:
        """Add what `delta` brings; return its new part, None if there is none.

        Raises:
            ProtocolError: tokens are missing before the delta, or the request has no such child.
        """
        child = delta.child
        if child not in self.living_children:
            if child < len(self.output_token_ids):
                return None
            raise ProtocolError(f"The engine sent tokens of child {child}; n is {len(self.output_token_ids)}.")
        known = self.output_token_ids[child]
        num_missing = delta.first_index - len(known)
        if num_missing > 0:
            raise ProtocolError(f"The engine left out {num_missing} tokens of child {child} at index {len(known)}.")
        if num_missing < 0:
            delta = msgspec.structs.replace(
                delta,
                first_index=len(known),
                token_ids=delta.token_ids[-num_missing:],
                logprobs=delta.logprobs[-num_missing:],
            )
        known.extend(delta.token_ids)
        if delta.finish_reason is not None:
            self.living_children.discard(child)
        elif not delta.token_ids:
            return None
        return delta
