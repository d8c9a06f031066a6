"""How long steps take of the requests in them, as far as the core's own clock and the executors' can tell."""

from __future__ import annotations

import math

from pagewire.ipc.steps import StepResult


class StepTimes:
    """Measures finished steps for `StepCosts`.

    Without a pipeline, the executor says what a step took. In a pipeline it can't: the output rank knows its own stage
    alone, and what matters to a request is the way through all stages, from sending to result. Of that, the time in
    which the step only stood behind slower ones is none of its own: a step that follows a long one comes back late, but
    then at once. So it took no longer than the stages' number times its distance from the result before.

    Args:
        num_stages: of the pipeline.
    """

    def __init__(self, num_stages: int) -> None:
        self._num_stages = num_stages
        self._last_result_s = -math.inf

    def measure(self, result: StepResult, sent_s: float, now: float) -> float:
        """Return the seconds that a step took; to be called once for each result, in order.

        Args:
            result: what came back.
            sent_s: when the step was sent, on the loop's monotonic clock.
            now: when its result was received.
        """
        if self._num_stages == 1:
            return result.step_s
        since_last_s, self._last_result_s = now - self._last_result_s, now
        # Results that wait for the core come together: then the output rank's own time is the least that is known.
        return max(result.step_s, min(now - sent_s, self._num_stages * since_last_s))
