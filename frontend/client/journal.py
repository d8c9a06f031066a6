"""What a client keeps of each live request: how it was asked, and which tokens have come since.

A core that starts anew has no memory. An entry holds all that adding its request again takes, and it is the reason
why no token is reported twice: `record` lets through only what continues the tokens that are here already.
"""

from __future__ import annotations

import msgspec

from pagewire.ipc.errors import ProtocolError
from pagewire.ipc.outputs import TokenDelta
from pagewire.ipc.requests import AddRequest, ResumedChild

MAX_DEATHS = 2
"""Deaths of cores without a token between that make a request a suspect."""
MAX_DEATHS_ALONE = 3
"""As many of those alone are the proof. A client can't tell a crash from a kill, which anybody may do at any moment."""


class JournalEntry:
    """One live request and its output tokens so far.

    Attributes:
        request: as it was asked for.
        output_token_ids: per child, the tokens received.
        living_children: those whose last delta is still to come.
        num_deaths: cores that ended since its last token and may have done so because of the request.
        num_deaths_alone: of those, the ones that were to run no other.
        is_sent: whether the core that the client is attached to, or was last, has been told of it.
        is_scheduled: whether that core has had it in a step.
        is_aborted: its user has asked for its end.
        adapter_digest: of the files of the adapter that its tokens are computed with; empty: of none, or no token came.
    """

    __slots__ = (
        "adapter_digest", "is_aborted", "is_scheduled", "is_sent", "living_children", "num_deaths", "num_deaths_alone",
        "output_token_ids", "request",
    )  # fmt: skip

    def __init__(self, request: AddRequest) -> None:
        self.request = request
        self.output_token_ids: list[list[int]] = [[] for _ in range(request.n)]
        self.living_children = set(range(request.n))
        self.num_deaths = 0
        self.num_deaths_alone = 0
        self.is_sent = False
        self.is_scheduled = False
        self.is_aborted = False
        self.adapter_digest = ""

    @property
    def is_suspect(self) -> bool:
        """Whether the request is to run alone until it has a token."""
        return self.num_deaths >= MAX_DEATHS

    @property
    def is_culprit(self) -> bool:
        """Whether it ran alone when cores ended, often enough to blame it."""
        return self.num_deaths_alone >= MAX_DEATHS_ALONE

    def count_death(self, *, was_alone: bool) -> None:
        """Note that a core ended, and that the request may be why."""
        self.num_deaths += 1
        self.num_deaths_alone += was_alone

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
        if self.num_deaths and delta.token_ids:
            self.num_deaths = self.num_deaths_alone = 0
        if delta.finish_reason is not None:
            self.living_children.discard(child)
        elif not delta.token_ids:
            return None
        return delta

    def addition(self, *, is_readded: bool, timeout_s: float | None) -> AddRequest:
        """Return what to tell a core that has not heard of the request, or of what has become of it.

        Args:
            is_readded: an earlier core had accepted it.
            timeout_s: what is left of the time that it was given.
        """
        resumed = [ResumedChild(child, self.output_token_ids[child]) for child in sorted(self.living_children)]
        return msgspec.structs.replace(
            self.request,
            timeout_s=timeout_s,
            is_readded=is_readded,
            # All children get their first token in the step that ends the prefill.
            resumed_children=resumed if any(self.output_token_ids) else [],
            num_deaths=self.num_deaths,
            adapter_digest=self.adapter_digest,
        )
