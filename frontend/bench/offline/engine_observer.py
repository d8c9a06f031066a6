"""What a run made of the batch and of KV memory, out of the core's stats of every step."""

from __future__ import annotations

from pagewire.ipc.outputs import StepStats


class EngineObserver:
    """Takes the stats after each step of an engine that has done nothing before.

    Args:
        block_size: tokens a KV block holds.

    Attributes:
        num_steps: steps that came back.
        peak_running: most requests that ran at once.
        peak: the stats of the step with the most KV blocks in use.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._last = StepStats()
        self._sum_filled_shares = 0.0
        self._num_shares = 0
        self.peak_running = 0
        self.peak = StepStats()

    def take(self, stats: StepStats) -> None:
        """Take the core's stats; they are the same again where a client is told something without a step."""
        is_new_step = stats.num_steps != self._last.num_steps
        self._last = stats
        self.peak_running = max(self.peak_running, stats.num_running)
        if stats.num_used_blocks > self.peak.num_used_blocks:
            self.peak = stats
        if is_new_step and stats.num_used_blocks:
            self._sum_filled_shares += self._filled(stats)
            self._num_shares += 1

    @property
    def num_steps(self) -> int:
        """Steps that came back."""
        return self._last.num_steps

    @property
    def device_ms(self) -> float | None:
        """Mean time of a step on the device; None without a step."""
        return 1000 * self._last.device_s / self.num_steps if self.num_steps else None

    @property
    def host_gap_ms(self) -> float | None:
        """Mean time that the device idled before a step whose requests were there; None without a step."""
        return 1000 * self._last.host_gap_s / self.num_steps if self.num_steps else None

    @property
    def slot_occupancy(self) -> float | None:
        """Rows that worked / rows there were, of the steps that left requests waiting; None if none ever waited."""
        available = self._last.num_available_rows
        return self._last.num_busy_rows / available if available else None

    @property
    def mean_filled(self) -> float | None:
        """Mean over the steps of the share of the slots in used KV blocks that hold a token, from 0 to 1."""
        return self._sum_filled_shares / self._num_shares if self._num_shares else None

    @property
    def filled_at_peak(self) -> float | None:
        """The same share in the step with the most blocks in use."""
        return self._filled(self.peak) if self.peak.num_used_blocks else None

    def filled_if_reserved(self, max_model_len: int) -> float | None:
        """What that share would be in that step if each running request had reserved the longest context."""
        reserved = self.peak.num_running * max_model_len
        return self.peak.num_filled_slots / reserved if reserved else None

    def _filled(self, stats: StepStats) -> float:
        return stats.num_filled_slots / (stats.num_used_blocks * self._block_size)
