"""How much may wait for its first step, and when those who are turned away should come again."""

from __future__ import annotations

import math

from pagewire.ipc.config import SchedulerConfig
from pagewire.ipc.errors import Overloaded

from .waiting_queue import WaitingQueue

# Half of what was measured is forgotten in 21 s of waiting: long enough to see a few admissions of long requests.
_MEMORY_S = 30.0
MIN_RETRY_AFTER_S = 1
MAX_RETRY_AFTER_S = 60


class AdmissionRate:
    """How fast waiting requests get their first step: requests and prompt tokens per second, lately.

    Only time in which something waits counts. Otherwise admissions follow arrivals and say nothing of the engine.
    """

    def __init__(self) -> None:
        self._num_requests = 0.0  # these three fade alike
        self._num_tokens = 0.0
        self._waited_s = 0.0
        self._waiting_since: float | None = None  # what came after it is not in the sums yet

    def observe(self, num_requests: int, num_tokens: int, *, is_waiting: bool, now: float) -> None:
        """Take in what was admitted since the last call.

        Args:
            num_requests: that got their first step.
            num_tokens: of their prompts.
            is_waiting: whether others are left waiting.
            now: seconds on a monotonic clock.
        """
        if self._waiting_since is not None:
            passed_s = now - self._waiting_since
            kept = math.exp(-passed_s / _MEMORY_S)
            self._num_requests = kept * self._num_requests + num_requests
            self._num_tokens = kept * self._num_tokens + num_tokens
            self._waited_s = kept * self._waited_s + passed_s
        self._waiting_since = now if is_waiting else None

    def predict_s(self, num_requests: int, num_tokens: int, now: float) -> float:
        """Return the seconds until as many requests with as many prompt tokens are admitted; 0 if nothing is known.

        Time since the last admission counts as well: the longer an engine stands still, the longer it will take.
        """
        waited_s = self._waited_s + (0.0 if self._waiting_since is None else now - self._waiting_since)
        # One admission more than there were: the next one may be due now, and no rate is ever 0.
        by_requests = waited_s * num_requests / (self._num_requests + 1.0)
        by_tokens = waited_s * num_tokens / self._num_tokens if self._num_tokens else 0.0
        return max(by_requests, by_tokens)


class Admission:
    """Decides whether a new request may join those that wait for their first step.

    Args:
        config: has the bounds; 0 for none.
        waiting: the queue that is bounded.

    Attributes:
        rate: to be told of every step.
    """

    def __init__(self, config: SchedulerConfig, waiting: WaitingQueue) -> None:
        self._max_requests = config.max_waiting_requests or math.inf
        self._max_tokens = config.max_waiting_tokens or math.inf
        self._waiting = waiting
        self._is_draining = False
        self.rate = AdmissionRate()

    def drain(self) -> None:
        """Take no new requests from here on; those that are here run to their end."""
        self._is_draining = True

    def check(self, num_prompt_tokens: int, now: float, num_held: int = 0) -> None:
        """Let a new request pass, or refuse it.

        Args:
            num_prompt_tokens: of the request.
            now: seconds on the loop's monotonic clock.
            num_held: requests that wait for something else before they may wait here.

        Raises:
            Overloaded: too much waits already, or the engine drains.
        """
        if self._is_draining:
            raise Overloaded("The engine is shutting down and takes no new requests; send it to another one.")
        waiting = self._waiting
        num_requests = waiting.num_new_requests + num_held
        if num_requests >= self._max_requests:
            raise self._overloaded(f"{num_requests} requests wait already (--max-waiting-requests)", now)
        # A single prompt may be longer than the bound: alone it waits for nobody, and it would never get in.
        num_tokens = waiting.num_new_tokens
        if num_tokens and num_tokens + num_prompt_tokens > self._max_tokens:
            raise self._overloaded(
                f"requests with {num_tokens} prompt tokens wait already, and {num_prompt_tokens} more are above the "
                f"{self._max_tokens} that may (--max-waiting-tokens)",
                now,
            )

    def _overloaded(self, reason: str, now: float) -> Overloaded:
        waiting = self._waiting
        seconds = self.rate.predict_s(waiting.num_new_requests, waiting.num_new_tokens, now)
        retry_after_s = min(max(math.ceil(seconds), MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
        return Overloaded(
            f"The engine is overloaded: {reason}. Try again in {retry_after_s} s.", retry_after_s=retry_after_s
        )
