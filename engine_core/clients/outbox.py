"""What clients are told: gathered during a step, taken as one message a client."""

from __future__ import annotations

from collections.abc import Iterable

from pagewire.ipc.channels import ClientId
from pagewire.ipc.errors import ErrorInfo
from pagewire.ipc.outputs import Embedding, RequestEnd, RequestStart, StepOutputs, StepStats, TokenDelta

from ..request import Request


class _ClientNews:
    __slots__ = ("accepted", "deltas", "embeddings", "ends", "scheduled", "starts")

    def __init__(self) -> None:
        self.accepted: list[int] = []
        self.starts: list[RequestStart] = []
        self.deltas: list[TokenDelta] = []
        self.embeddings: list[Embedding] = []
        self.ends: list[RequestEnd] = []
        self.scheduled: list[int] = []


class Outbox:
    """Keeps the news of every client since they were last taken."""

    def __init__(self) -> None:
        self._news: dict[ClientId, _ClientNews] = {}

    def step(self, client: ClientId) -> None:
        """Tell that a step is done, whatever it brought for this client."""
        self._of(client)

    def accept(self, request: Request) -> None:
        """Tell that the request was taken."""
        self._of(request.client).accepted.append(request.request_id)

    def refuse(self, client: ClientId, request_id: int, error: ErrorInfo) -> None:
        """Tell that the request was never taken."""
        self._of(client).ends.append(RequestEnd(request_id=request_id, error=error, is_refused=True))

    def schedule(self, requests: Iterable[Request]) -> None:
        """Tell that the requests are in a step; the caller makes sure that this happens once."""
        for request in requests:
            self._of(request.client).scheduled.append(request.request_id)

    def start(self, request: Request, now: float) -> None:
        """Tell that the prefill is complete; the caller makes sure that this happens once."""
        scheduled_s = now if request.first_scheduled_s is None else request.first_scheduled_s
        self._of(request.client).starts.append(
            RequestStart(
                request_id=request.request_id,
                num_cached_tokens=request.num_cached_tokens,
                queue_s=scheduled_s - request.arrival_s,
                prompt_logprobs=request.prompt_logprobs,
                adapter_digest=request.adapter_digest,
            )
        )

    def delta(self, client: ClientId, delta: TokenDelta) -> None:
        """Tell a child's new tokens or its end."""
        news = self._news.get(client)  # as _of does, for every token of a step
        (self._of(client) if news is None else news).deltas.append(delta)

    def embedding(self, request: Request, vector: bytes) -> None:
        """Tell what a prompt was embedded as."""
        self._of(request.client).embeddings.append(Embedding(request.request_id, vector, request.num_cached_tokens))

    def end(self, request: Request, error: ErrorInfo | None) -> None:
        """Tell that nothing more comes; the caller makes sure that this happens once."""
        self._of(request.client).ends.append(
            RequestEnd(
                request_id=request.request_id,
                error=error,
                num_preemptions=request.num_preemptions,
                num_draft_tokens=request.num_draft_tokens,
                num_accepted_tokens=request.num_accepted_tokens,
            )
        )

    def drop_client(self, client: ClientId) -> None:
        """Forget what a client that went away was to be told."""
        self._news.pop(client, None)

    @property
    def has_news(self) -> bool:
        """Whether any client is to be told something."""
        return bool(self._news)

    def take(self, stats: StepStats) -> dict[ClientId, StepOutputs]:
        """Return one message for each client with news, and begin anew."""
        news, self._news = self._news, {}
        return {
            client: StepOutputs(
                accepted=of.accepted,
                starts=of.starts,
                deltas=of.deltas,
                ends=of.ends,
                stats=stats,
                scheduled=of.scheduled,
                embeddings=of.embeddings,
            )
            for client, of in news.items()
        }

    def _of(self, client: ClientId) -> _ClientNews:
        news = self._news.get(client)
        if news is None:
            news = self._news[client] = _ClientNews()
        return news
