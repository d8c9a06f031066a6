from __future__ import annotations

from pagewire.frontend.bench.offline.engine_observer import EngineObserver
from pagewire.ipc.outputs import StepStats


def observed(*steps: StepStats) -> EngineObserver:
    observer = EngineObserver(block_size=16)
    for stats in steps:
        observer.take(stats)
    return observer


def test_occupancy_is_what_the_core_counted():
    observer = observed(
        StepStats(num_steps=1, num_running=3, num_busy_rows=4, num_available_rows=8),
        StepStats(num_steps=2, num_running=2, num_busy_rows=19, num_available_rows=20),
    )
    assert (observer.num_steps, observer.peak_running, observer.slot_occupancy) == (2, 3, 0.95)


def test_times_of_the_device_are_means_over_the_steps():
    observer = observed(StepStats(num_steps=1, device_s=0.5), StepStats(num_steps=4, device_s=0.75, host_gap_s=0.125))
    assert (observer.device_ms, observer.host_gap_ms) == (187.5, 31.25)
    assert (observed().device_ms, observed().host_gap_ms) == (None, None)


def test_without_a_queue_there_is_no_occupancy():
    assert observed(StepStats(num_steps=1, num_running=1)).slot_occupancy is None
    assert observed().slot_occupancy is None


def test_filled_slots_are_averaged_over_steps_and_kept_at_the_peak():
    observer = observed(
        StepStats(num_steps=1, num_running=1, num_used_blocks=2, num_filled_slots=16),
        StepStats(num_steps=1, num_running=1, num_used_blocks=2, num_filled_slots=16),  # told again, no new step
        StepStats(num_steps=2, num_running=3, num_used_blocks=4, num_filled_slots=64),
        StepStats(num_steps=3),  # nothing in use: there is no share
    )
    assert observer.mean_filled == 0.75
    assert observer.filled_at_peak == 1.0
    assert observer.filled_if_reserved(128) == 64 / (3 * 128)


def test_a_run_without_a_block_has_no_shares():
    observer = observed(StepStats(num_steps=1))
    assert (observer.mean_filled, observer.filled_at_peak, observer.filled_if_reserved(8)) == (None, None, None)
