"""When a request's tokens came: what it reports to the metrics when it ends."""

from __future__ import annotations

from collections.abc import Callable

from pagewire.ipc.sampling_params import SamplingParams

from ..text.generation import Generation, TextChunk
from .metrics import Metrics
from .request_record import RequestRecord


class RequestTimer:
    """Watches one request (one prompt, n children).

    Args:
        metrics: where it reports to.
        params: as asked for.
        clock: seconds, monotonic. The time of construction is the request's arrival.
    """

    def __init__(self, metrics: Metrics, params: SamplingParams, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._params = params
        self._clock = clock
        self._arrival = clock()
        self._has_begun = False
        self._last = [self._arrival] * params.n
        self._reasons: dict[int, str] = {}
        self.num_output_tokens = [0] * params.n

    def chunk_came(self, chunk: TextChunk) -> None:
        """Count a chunk's tokens and the time since the child's last ones."""
        child = chunk.index
        num_new = chunk.num_output_tokens - self.num_output_tokens[child]
        if num_new > 0:
            now = self._clock()
            if not self._has_begun:
                self._has_begun = True
                self._metrics.time_to_first_token.observe(now - self._arrival)
            elif self.num_output_tokens[child]:
                # Tokens that came together share the wait for them.
                self._metrics.inter_token_latency.observe((now - self._last[child]) / num_new, num_new)
            self._last[child] = now
            self.num_output_tokens[child] = chunk.num_output_tokens
        if chunk.finish_reason is not None:
            self._reasons[child] = chunk.finish_reason

    def done(self, generation: Generation, *, has_failed: bool) -> RequestRecord:
        """Report the request, once, however it ended; children without an end were aborted, or failed.

        Returns:
            What was reported.
        """
        missing = "error" if has_failed else "abort"
        times = generation.metrics
        finished_s = times.finished_time
        record = RequestRecord(
            finish_reasons=tuple(self._reasons.get(child, missing) for child in range(self._params.n)),
            num_prompt_tokens=len(generation.prompt_token_ids),
            num_cached_tokens=generation.num_cached_tokens,
            num_output_tokens=sum(self.num_output_tokens),
            max_child_output_tokens=max(self.num_output_tokens),
            n=self._params.n,
            max_tokens=self._params.max_tokens,
            num_preemptions=times.num_preemptions,
            e2e_s=self._clock() - self._arrival if finished_s is None else finished_s,
            queue_s=times.time_in_queue,
            first_token_s=times.first_token_time,
            last_token_s=times.last_token_time,
        )
        self._metrics.request_done(record)
        return record
