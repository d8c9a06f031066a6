"""How often a process may die before starting it again is pointless: executors for their core, cores for theirs."""

from __future__ import annotations

MAX_FAILED_STARTS = 2


class RestartBudget:
    """Counts deaths in a row; progress between two deaths makes them begin anew.

    Args:
        process: its name in texts: "the executor".
        max_restarts: deaths without progress between that are made good by another start.
        progress: what that is, for texts.
    """

    def __init__(self, process: str, max_restarts: int, *, progress: str = "finishing a step") -> None:
        self._progress = progress
        self._process = process
        self._max_restarts = max_restarts
        self._num_deaths = 0
        self._num_failed_starts = 0

    @property
    def is_strained(self) -> bool:
        """Whether there was a death, and no progress since."""
        return self._num_deaths > 0

    def count_death(self, *, is_failed_start: bool) -> None:
        """Count one death.

        Args:
            is_failed_start: the process itself gave up before it was ready; when it is killed from outside at that
                time, another start may well do better.
        """
        self._num_deaths += 1
        self._num_failed_starts = self._num_failed_starts + 1 if is_failed_start else 0

    def start_succeeded(self) -> None:
        """Note that the process became ready."""
        self._num_failed_starts = 0

    def step_finished(self) -> None:
        """Note progress."""
        self._num_deaths = 0

    def exhausted_by(self) -> str | None:
        """Return why no more starts are to be tried, None while they are."""
        if self._num_failed_starts >= MAX_FAILED_STARTS:
            return f"{self._num_failed_starts} starts of {self._process} in a row have failed"
        if self._num_deaths > self._max_restarts:
            times = "time" if self._num_deaths == 1 else "times"
            return (
                f"{self._process} has ended {self._num_deaths} {times} in a row without {self._progress} "
                f"(--max-restarts {self._max_restarts})"
            )
        return None
