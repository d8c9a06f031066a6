"""What the engine does about requests that may end executors: they run alone, and who is proven to do so fails."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from pagewire.ipc.outputs import FinishReason

from ..output_processor import OutputProcessor
from ..request import Request
from ..rest.rest import Rest
from ..scheduled import ScheduledChild
from ..scheduler import Scheduler
from .blame import Blame, poison_error

logger = logging.getLogger(__name__)


class Suspects:
    """Counts deaths by `Blame`, and has the scheduler isolate whom it points at.

    Args:
        scheduler: runs them.
        processor: has the living requests.
        rest: holds some of them back.
    """

    def __init__(self, scheduler: Scheduler, processor: OutputProcessor, rest: Rest) -> None:
        self._scheduler = scheduler
        self._processor = processor
        self._rest = rest
        self._blame = Blame()

    def accept(self, request: Request, num_deaths: int) -> None:
        """Take over what a client has counted of a request that it adds again."""
        self._blame.accept(request, num_deaths)

    def isolate(self) -> None:
        """Let a suspect run alone from the next step on; without any, all of them again."""
        self._blame.keep(self._is_living)
        suspect = self._blame.suspect()
        if suspect is not None and not self._rest.lets_run_request(suspect):
            suspect = None
        if suspect is not None and suspect is not self._scheduler.alone:
            client = suspect.client.hex()
            logger.warning("request_id=%s of client %s may end executors: it runs alone", suspect.request_id, client)
        self._scheduler.isolate(suspect)

    def clear(self, scheduled: Iterable[ScheduledChild]) -> None:
        """Note a step that came back: whoever drew in it is harmless."""
        if not self._blame:
            return
        for item in scheduled:
            if item.num_draws and not item.is_void:
                self._blame.clear(item.child.request)

    def count_death(self, in_flight: Iterable[Request], *, was_killed: bool) -> Request | None:
        """Note an executor's death; return the request that is proven to be why, if one is.

        Args:
            in_flight: the requests in unfinished steps.
            was_killed: it was killed or hung, which may have come from outside.
        """
        self._blame.keep(self._is_living)
        return self._blame.count_death(filter(self._is_living, in_flight), was_killed=was_killed)

    def convict(self, culprit: Request, cause: str) -> None:
        """Fail the request that ends executors."""
        error = poison_error(cause)
        logger.error("request_id=%s of client %s fails: %s", culprit.request_id, culprit.client.hex(), error)
        self._processor.end_early(culprit, FinishReason.ERROR, error.to_info())

    def _is_living(self, request: Request) -> bool:
        return self._processor.requests.get(request.key) is request
