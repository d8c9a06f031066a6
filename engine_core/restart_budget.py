"""How often executors may die before starting them again is pointless."""

from __future__ import annotations

MAX_FAILED_STARTS = 2


class RestartBudget:
    """Counts deaths in a row; progress between two deaths makes them begin anew.

    Args:
        max_restarts: deaths without a finished step between that are made good by another start.
    """

    def __init__(self, max_restarts: int) -> None:
        self._max_restarts = max_restarts
        self._num_deaths = 0
        self._num_failed_starts = 0

    def count_death(self, *, is_failed_start: bool) -> None:
        """Count one death.

        Args:
            is_failed_start: the executors themselves said, before they were ready, that they can't go on; when they are
                killed from outside at that time, another start may well do better.
        """
        self._num_deaths += 1
        self._num_failed_starts = self._num_failed_starts + 1 if is_failed_start else 0

    def start_succeeded(self) -> None:
        """Note that executors became ready."""
        self._num_failed_starts = 0

    def step_finished(self) -> None:
        """Note progress."""
        self._num_deaths = 0

    def exhausted_by(self) -> str | None:
        """Return why no more starts are to be tried, None while they are."""
        if self._num_failed_starts >= MAX_FAILED_STARTS:
            return f"{self._num_failed_starts} starts in a row have failed"
        if self._num_deaths > self._max_restarts:
            times = "time" if self._num_deaths == 1 else "times"
            return (
                f"the executor has ended {self._num_deaths} {times} in a row without finishing a step "
                f"(--max-restarts {self._max_restarts})"
            )
        return None
