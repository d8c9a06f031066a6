"""Which request ends executors: whoever is there again and again is run alone, until it is proven or cleared."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pagewire.ipc.errors import PoisonRequest

from ..request import Request

MAX_DEATHS = 2
"""Deaths without a token between that make a request a suspect, and then, alone, the culprit."""
MAX_KILLS_ALONE = 3
"""As many are the proof if executors are killed or hang: that may be done to them by anybody, at any moment."""


class Blame:
    """Counts the deaths at which each request was in an unfinished step.

    A death says nothing of any one of them: a machine that runs out of memory takes whatever runs. A committed token
    shows that a request is harmless, and its count begins anew. One that has MAX_DEATHS is a suspect; suspects run
    alone, the earliest first, each until it commits a token. One that is alone at MAX_DEATHS deaths of which nothing
    outside can have been the cause, or at MAX_KILLS_ALONE deaths of any kind, is the culprit.
    """

    def __init__(self) -> None:
        self._num_deaths: dict[Request, int] = {}
        self._num_deaths_alone: dict[Request, int] = {}
        self._num_kills_alone: dict[Request, int] = {}  # of those, the ones that came from outside

    def __bool__(self) -> bool:
        """Whether any request was there at a death and has not committed a token since."""
        return bool(self._num_deaths)

    def accept(self, request: Request, num_deaths: int) -> None:
        """Take over what a client has counted of a request that it adds again."""
        if num_deaths:
            self._num_deaths[request] = num_deaths

    def clear(self, request: Request) -> None:
        """Note that a request has committed a token."""
        self._num_deaths.pop(request, None)
        self._num_deaths_alone.pop(request, None)
        self._num_kills_alone.pop(request, None)

    def keep(self, is_living: Callable[[Request], bool]) -> None:
        """Forget the requests that have ended."""
        for request in [request for request in self._num_deaths if not is_living(request)]:
            self.clear(request)

    def count_death(self, in_flight: Iterable[Request], *, was_killed: bool = False) -> Request | None:
        """Count a death for all requests in the unfinished steps, and return the culprit if there is one.

        Args:
            in_flight: the living requests in those steps.
            was_killed: the executor was killed or hung, instead of ending by itself.
        """
        requests = set(in_flight)
        alone = self.suspect()
        for request in requests:
            self._num_deaths[request] = self._num_deaths.get(request, 0) + 1
        # The last step of those that ran before may still have been in flight: then it may be one of them.
        if alone is None or requests != {alone}:
            return None
        num_deaths = self._num_deaths_alone[alone] = self._num_deaths_alone.get(alone, 0) + 1
        num_kills = self._num_kills_alone[alone] = self._num_kills_alone.get(alone, 0) + was_killed
        is_proven = num_deaths - num_kills >= MAX_DEATHS or num_deaths >= MAX_KILLS_ALONE
        return alone if is_proven else None

    def suspect(self) -> Request | None:
        """Return the request that has to run alone now, or None."""
        suspects = [request for request, num_deaths in self._num_deaths.items() if num_deaths >= MAX_DEATHS]
        return min(suspects, key=lambda request: request.arrival, default=None)


def poison_error(cause: str) -> PoisonRequest:
    """Return what the culprit fails of.

    Args:
        cause: what ended the executor the last time.
    """
    return PoisonRequest(
        f"The request ended the executor each time that it ran alone; the last time {cause}. "
        "Other requests are not touched; change this one."
    )
