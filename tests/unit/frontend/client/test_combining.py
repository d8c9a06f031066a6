"""Several cores' figures and answers as one."""

from __future__ import annotations

import msgspec

from pagewire.frontend.client.combining import combine_answers, combine_infos, sum_stats
from pagewire.ipc.outputs import StepStats
from tests.support.fake_core import engine_info

BUSY = StepStats(num_running=3, num_steps=10, step_s=0.5, device_s=1.5, is_serving=False)
IDLE = StepStats(num_waiting=1, num_steps=4, step_s=0.25, device_s=0.5)


def test_figures_add_up_and_one_core_that_serves_is_enough():
    assert sum_stats([BUSY, IDLE]) == StepStats(num_running=3, num_waiting=1, num_steps=14, step_s=0.5, device_s=2.0)
    assert sum_stats([BUSY]) is BUSY


def test_the_engine_rests_while_all_cores_do():
    asleep, paused = StepStats(sleep_level=2), StepStats(is_paused=True, sleep_level=1)
    assert (sum_stats([asleep, paused]).sleep_level, sum_stats([asleep, paused]).is_paused) == (1, False)
    assert sum_stats([paused, paused]).is_paused
    assert sum_stats([asleep, StepStats()]).sleep_level == 0


def test_accepted_drafts_add_up_by_place():
    stats = [StepStats(accepted_at=(5, 2)), StepStats(), StepStats(accepted_at=(1, 1, 1))]
    assert sum_stats(stats).accepted_at == (6, 3, 1)


def test_adapters_of_all_cores_are_told_once_each():
    stats = [StepStats(running_adapters=(2, 5)), StepStats(running_adapters=(1, 5), waiting_adapters=(5,))]
    assert (sum_stats(stats).running_adapters, sum_stats(stats).waiting_adapters) == ((1, 2, 5), (5,))


def test_requests_have_to_fit_every_core():
    info = combine_infos([engine_info(max_model_len=100, num_blocks=7), engine_info(max_model_len=80, num_blocks=5)])
    assert (info.max_model_len, info.num_blocks) == (80, 12)


def test_answers_are_put_together_by_their_kind():
    assert combine_answers("drain", [2, 3]) == 5
    assert combine_answers("reset_prefix_cache", [True, True]) is True
    assert combine_answers("block_tables", [[1], [], [2]]) == [1, 2]
    assert combine_answers("list_adapters", [[{"name": "a"}], [{"name": "a"}]]) == [{"name": "a"}]
    assert combine_answers(
        "pool", [{"num_blocks": 3, "ref_counts": {1: 2}}, {"num_blocks": 4, "ref_counts": {5: 1}}]
    ) == {
        "num_blocks": 7,
        "ref_counts": {1: 2, 5: 1},
    }
    assert combine_answers("stats", [msgspec.structs.asdict(BUSY), msgspec.structs.asdict(IDLE)])["num_steps"] == 14
