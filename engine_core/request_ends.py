"""The ends of requests that come from outside: their clients, their time, their adapters, the engine's own end."""

from __future__ import annotations

from collections.abc import Mapping

from pagewire.ipc.channels import ClientId
from pagewire.ipc.errors import ErrorInfo
from pagewire.ipc.outputs import FinishReason
from pagewire.ipc.requests import AbortRequests

from .clients.outbox import Outbox
from .deadlines import late_error
from .output_processor import OutputProcessor


class RequestEnds:
    """The part of `Engine` that ends requests; the engine sets the attributes.

    Attributes:
        _has_news: whether anything happened since nothing could be scheduled.
    """

    _processor: OutputProcessor
    _outbox: Outbox
    _has_news: bool

    def abort(self, client: ClientId, message: AbortRequests, now: float) -> None:
        """End requests or single children; ids that are unknown or ended are passed over."""
        del now  # every message comes with its time; an abort needs none
        for request_id in message.request_ids:
            request = self._processor.requests.get((client, request_id))
            if request is not None:
                self._processor.end_early(request, FinishReason.ABORT)
        for request_id, child in message.children:
            request = self._processor.requests.get((client, request_id))
            if request is not None:
                self._processor.stop_child(request, child)
        self._has_news = True

    def abort_client(self, client: ClientId) -> None:
        """End all requests of a client that went away, without telling it."""
        for request in [r for r in self._processor.requests.values() if r.client == client]:
            self._processor.end_early(request, FinishReason.ABORT)
        self._outbox.drop_client(client)
        self._has_news = True

    def next_deadline_s(self) -> float | None:
        """Return when `fail_late` has something to do next, on the loop's clock; None if no request has a deadline."""
        return self._processor.deadlines.next_s()

    def fail_late(self, now: float) -> None:
        """End the requests whose time is over, wherever they are; their blocks are free for the next step."""
        for request in self._processor.deadlines.take_late(now):
            self._processor.end_early(request, FinishReason.ERROR, late_error(request).to_info())
            self._has_news = True

    def adapters_in_use(self) -> set[int]:
        """Return the load ids of the adapters that living requests have."""
        return {request.adapter_id for request in self._processor.requests.values()}

    def fail_adapters(self, errors: Mapping[int, ErrorInfo]) -> None:
        """End the requests whose adapters are lost, by load id."""
        for request in list(self._processor.requests.values()):
            if request.adapter_id in errors:
                self._processor.end_early(request, FinishReason.ERROR, errors[request.adapter_id])
