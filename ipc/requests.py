"""What a client says to the engine core."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from .sampling_params import Sampling
from .structured_outputs import Grammar

# It is written into the core's log: of a sane length, and without line breaks and terminal codes.
ClientName = Annotated[str, msgspec.Meta(max_length=128, pattern=r"\A[^\x00-\x1f\x7f-\x9f]*\Z")]


class Message(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True, omit_defaults=True, gc=False):
    """The base of every message: an immutable tagged array, decoded by type, matched with `match`."""


class Hello(Message, frozen=True, kw_only=True):
    """The first message of a connection. A version that does not fit is answered by `Goodbye`, naming both."""

    protocol_version: int
    client_name: ClientName = ""


class TokenInputs(Message, frozen=True, kw_only=True):
    """A prompt as token ids."""

    prompt_token_ids: list[int]


class GenerateTask(Message, frozen=True, kw_only=True):
    """Draw tokens until an end.

    Attributes:
        sampling: how each token is drawn.
        n: children; all start from one prefill.
        max_tokens: output tokens a child may have; None, or more than the context leaves, is clamped.
        eos_token_ids: end tokens that give stop_reason None; empty to ignore them.
        stop_token_ids: end tokens that are reported as stop_reason.
        grammar: the language of the output; None: any. A child ends where nothing can follow, whatever its end tokens.
    """

    sampling: Sampling
    n: int = 1
    max_tokens: int | None = None
    eos_token_ids: list[int] = []
    stop_token_ids: list[int] = []
    grammar: Grammar | None = None


class EmbedTask(Message, frozen=True, kw_only=True):
    """Return one vector for the prompt, and draw nothing. It is answered by one `Embedding`.

    Attributes:
        pooling: last: the last token's hidden state after the final norm; mean: the mean of all tokens'.
        normalize: scale the vector to length 1.
    """

    pooling: Literal["last", "mean"] = "last"
    normalize: bool = True


Task = GenerateTask | EmbedTask


class ResumedChild(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A living child of a request that is added again: the output tokens that its client has.

    Attributes:
        child: 0 <= child < n.
        output_token_ids: at least one; the next `TokenDelta` goes on behind them.
    """

    child: int
    output_token_ids: list[int]


class AddRequest(Message, frozen=True, kw_only=True):
    """One request. It is answered by exactly one `RequestEnd`, and before that by its tokens.

    Attributes:
        request_id: made by the client library, unique in its connection; requests are keyed by (client, request_id).
        label: the id that a user chose, for logs alone.
        inputs: the prompt; a union with room for embeddings.
        task: what to do with it.
        adapter: name of the LoRA adapter that is added to the model's weights; empty: none.
        priority: lower runs first under the priority policy.
        cache_salt: requests of different salts never share cached blocks.
        timeout_s: seconds from the core's receipt after which it fails with `DeadlineExceeded`; None for no limit.
        is_readded: an earlier core had accepted it: neither a full queue nor draining keeps it out.
        resumed_children: once its prefill was complete, the children that have not finished, ascending; empty before.
        num_deaths: cores that ended since the client last got a token of it; at 2 it runs alone until it commits one.
        adapter_digest: of a request that is added again, what its `RequestStart` said: one whose adapter has other
            weights by now fails, rather than go on with them.
    """

    request_id: int
    label: str = ""
    inputs: TokenInputs
    task: Task
    adapter: str = ""
    priority: int = 0
    cache_salt: str = ""
    timeout_s: float | None = None
    is_readded: bool = False
    resumed_children: list[ResumedChild] = []
    num_deaths: int = 0
    adapter_digest: str = ""

    @property
    def n(self) -> int:
        """How many children answer it; what is embedded has one, which draws nothing."""
        return self.task.n if isinstance(self.task, GenerateTask) else 1


class AbortRequests(Message, frozen=True, kw_only=True):
    """End requests, or single children of them. Idempotent: unknown ids are passed over.

    Attributes:
        request_ids: ended whole, with `RequestEnd(aborted)`.
        children: (request_id, child) pairs that end alone, because the client found a stop string in their text.
    """

    request_ids: list[int] = []
    children: list[tuple[int, int]] = []


class CallUtility(Message, frozen=True, kw_only=True):
    """Ask for something besides tokens. Answered by one `UtilityResult` with the same call_id.

    Attributes:
        method: see `pagewire.engine_core.clients.utilities` for the list.
        args: plain values.
    """

    call_id: int
    method: str
    args: list[int | float | str | bool | None] = []


class Ping(Message, frozen=True, kw_only=True):
    """Sent both ways while a client has live requests.

    A stopped core is found by its silence; a client that is gone by the failing send.
    """


class WatchPrefixCache(Message, frozen=True, kw_only=True):
    """Ask to be told what the prefix cache holds: at once all of it, and from then on what changes.

    For clients that choose among several cores; nobody else pays for it. Asked again, all of it is told again.
    """


ClientMessage = Hello | AddRequest | AbortRequests | CallUtility | Ping | WatchPrefixCache
