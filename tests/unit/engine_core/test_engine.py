from __future__ import annotations

import random

import msgspec
import pytest
from msgspec.structs import replace

from pagewire.ipc.channels import ClientId
from pagewire.ipc.codec import core_messages, encode
from pagewire.ipc.errors import ErrorInfo, ProtocolError
from pagewire.ipc.outputs import FinishReason
from pagewire.ipc.requests import CallUtility
from pagewire.ipc.steps import StepResult
from tests.support.builders import VOCAB_SIZE, build_driver, build_request
from tests.support.engine_driver import ALICE
from tests.support.fake_executor import TOKEN_S, FakeExecutor

BOB = ClientId(b"bob")


def test_invalid_request_is_refused_with_its_reason_and_leaves_nothing():
    driver = build_driver()
    driver.add(build_request(1, [10**6]))
    assert driver[1].end.is_refused
    assert driver[1].end.error.param == "prompt"
    assert not driver.engine.has_work()
    assert not driver.engine.can_schedule()


def test_request_id_in_use_is_refused_and_the_living_one_goes_on():
    driver = build_driver()
    driver.add(build_request(1, [1, 2]))
    driver.engine.add_request(ALICE, build_request(1, [3]), 0.0)
    (refusal,) = driver.engine.take_outputs()[ALICE].ends
    assert refusal.is_refused
    assert "in use" in refusal.error.message
    driver.run()
    driver.check_complete(1)


def test_two_clients_may_use_the_same_request_ids():
    driver = build_driver()
    driver.add(build_request(1, [1, 2]))
    driver.add(build_request(1, [3, 4]), client=BOB)
    assert driver.engine.live_clients() == {ALICE, BOB}
    driver.run()
    assert driver.engine.live_clients() == set()
    assert driver.transcripts[BOB, 1].children[0].token_ids != driver[1].children[0].token_ids


def test_client_that_goes_away_is_told_nothing_and_disturbs_nobody():
    driver = build_driver()
    driver.add(build_request(1, range(9)))
    driver.add(build_request(1, range(9), n=2), client=BOB)
    driver.step()
    driver.engine.abort_client(BOB)
    driver.engine.check_invariants()
    assert BOB not in driver.engine.take_outputs()
    del driver.transcripts[BOB, 1]
    driver.run()
    driver.check_complete(1)


def test_one_message_a_client_holds_all_news_and_survives_the_wire():
    driver = build_driver()
    driver.engine.add_request(ALICE, build_request(1, range(5), n=2, max_tokens=1), 0.0)
    driver.engine.add_request(ALICE, build_request(2, []), 0.0)
    step = driver.engine.schedule(1.0)
    driver.engine.apply(driver.executor.execute(step), 2.0)
    outputs = driver.engine.take_outputs()
    assert set(outputs) == {ALICE}
    news = outputs[ALICE]
    assert news.accepted == [1]
    assert [start.request_id for start in news.starts] == [1]
    assert [delta.child for delta in news.deltas] == [0, 1]
    assert [end.request_id for end in news.ends] == [2, 1]
    assert core_messages.decode(encode(news)) == news
    assert driver.engine.take_outputs() == {}


def test_result_of_another_epoch_is_dropped():
    driver = build_driver()
    driver.add(build_request(1, [1]))
    driver.send()
    driver.engine.apply(msgspec.structs.replace(driver.results[0], executor_epoch=0), 0.0)
    assert driver[1].start is None
    driver.run()
    driver.check_complete(1)


@pytest.mark.parametrize("step_id", [0, 2])
def test_result_of_another_step_is_a_protocol_error(step_id):
    driver = build_driver()
    driver.add(build_request(1, [1]))
    driver.send()
    with pytest.raises(ProtocolError, match="the oldest one in flight is 1"):
        driver.engine.apply(StepResult(executor_epoch=1, step_id=step_id), 0.0)


def test_result_without_a_step_is_a_protocol_error():
    with pytest.raises(ProtocolError, match="in flight is none"):
        build_driver().engine.apply(StepResult(executor_epoch=1, step_id=1), 0.0)


@pytest.mark.parametrize("is_async", [False, True])
def test_executor_that_is_gone_ends_every_request_once(is_async):
    driver = build_driver(is_async=is_async, max_num_seqs=2)
    driver.add(*(build_request(i, [i] * 5, n=2) for i in range(3)))
    driver.step()
    driver.send()
    driver.engine.fail_all(ErrorInfo(kind="ExecutorDied", message="killed"))
    driver.engine.check_invariants()
    driver.collect()
    assert {driver[i].end.error.kind for i in range(3)} == {"ExecutorDied"}
    assert driver[0].children[0].finish_reason is FinishReason.ERROR
    assert not driver.engine.has_work()
    driver.check_ended()


def test_engine_has_work_until_the_last_step_is_back():
    driver = build_driver()
    driver.add(build_request(1, [1]))
    driver.send()
    driver.abort(1)
    assert driver.engine.has_work()
    driver.receive()
    assert not driver.engine.has_work()


def test_stats_say_what_the_step_did():
    driver = build_driver(block_size=4, budget=6)
    driver.add(build_request(1, range(8)), build_request(2, [7]))
    driver.step()
    stats = driver.engine.stats
    assert (stats.num_running, stats.num_waiting) == (1, 1)
    assert (stats.num_blocks, stats.num_used_blocks) == (64, 2)
    assert (stats.num_steps, stats.num_scheduled_tokens) == (1, 6)
    assert stats.step_s == 6 * TOKEN_S
    driver.run()


def test_trace_of_calls_replays_exactly():
    def trace():
        driver = build_driver(num_blocks=9, block_size=4, max_model_len=32, is_async=True, budget=16)
        driver.add(*(build_request(i, [i] * 9, n=2, max_tokens=12) for i in range(4)))
        driver.run()
        return driver.steps

    assert trace() == trace()


def test_invariants_notice_a_lost_request():
    driver = build_driver()
    driver.add(build_request(1, range(8)))
    driver.step()
    driver.engine._processor.requests.clear()
    with pytest.raises(AssertionError, match="lost"):
        driver.engine.check_invariants()
    result = driver.engine.call_utility(ALICE, CallUtility(call_id=4, method="check_invariants"))
    assert result.error.kind == "EngineError"
    assert "lost" in result.error.message


def test_every_step_is_told_to_every_client_that_waits():
    driver = build_driver(budget=4)
    driver.engine.add_request(ALICE, build_request(1, range(10)), 0.0)
    driver.engine.take_outputs()
    step = driver.engine.schedule(1.0)
    driver.engine.apply(driver.executor.execute(step), 2.0)
    news = driver.engine.take_outputs()[ALICE]
    assert (news.starts, news.deltas, news.ends) == ([], [], []), "a chunk of a prompt brings no token"
    assert news.stats.num_scheduled_tokens == 4
    assert news.stats.num_steps == 1


def test_times_of_steps_add_up_and_those_that_were_lost_do_not_count():
    driver = build_driver(is_async=True)
    driver.add(build_request(1, [1, 2], max_tokens=5))
    driver.send()
    driver.send()
    times = ({"step_s": 0.75, "device_s": 0.5, "host_gap_s": 0.25}, {"step_s": 0.125, "device_s": 0.125})
    for given in times:
        driver.results[0] = replace(driver.results[0], **given)
        driver.receive()
    stats = driver.engine.stats
    assert (stats.num_steps, stats.step_s, stats.device_s, stats.host_gap_s) == (2, 0.125, 0.625, 0.25)
    driver.send()
    driver.restart_executor(FakeExecutor(num_blocks=64, block_size=4, vocab_size=VOCAB_SIZE), 2)
    stats = driver.engine.stats
    assert (stats.num_steps, stats.device_s, stats.host_gap_s) == (2, 0.625, 0.25)
    driver.run()


def test_rows_count_while_requests_wait_and_not_once_the_queue_is_empty():
    driver = build_driver(max_num_seqs=2)
    driver.add(*(build_request(i, [i, i + 1], max_tokens=4) for i in range(1, 4)))
    driver.step()
    stats = driver.engine.stats
    assert (stats.num_busy_rows, stats.num_available_rows) == (2, 2)
    driver.run()
    stats = driver.engine.stats
    # Two requests run four steps side by side; while the third one runs nobody waits.
    assert (stats.num_busy_rows, stats.num_available_rows) == (8, 8)


def test_row_that_waits_for_token_budget_is_not_busy():
    driver = build_driver(max_num_seqs=4, budget=4)
    driver.add(*(build_request(i, range(4), max_tokens=2, salt=str(i)) for i in range(1, 4)))
    driver.step()
    stats = driver.engine.stats
    assert (stats.num_busy_rows, stats.num_available_rows) == (1, 4)


def test_filled_slots_are_those_of_the_tokens_that_are_kept():
    driver = build_driver(block_size=4)
    driver.add(build_request(1, range(6), n=3, max_tokens=3))
    driver.step()
    # Three children share the prompt's blocks: six of eight slots, counted once.
    assert driver.engine.stats.num_filled_slots == 6
    driver.step()
    assert driver.engine.stats.num_filled_slots == 4 + 3 * 3
    driver.run()
    assert driver.engine.stats.num_filled_slots == 0


def test_nearly_all_slots_in_allocated_blocks_hold_a_token():
    lengths = [500 + 7 * index for index in range(64)]
    driver = build_driver(block_size=16, num_blocks=64 * 70, max_model_len=2048, max_num_seqs=64, budget=4096)
    driver.checks_invariants = False  # they look at every slot of every step
    driver.add(*(build_request(i, [i] * length, max_tokens=20) for i, length in enumerate(lengths, start=1)))
    while driver.engine.stats.num_waiting or driver.engine.stats.num_generation_tokens < 64:
        driver.step()
    stats = driver.engine.stats
    assert stats.num_running == 64
    assert stats.num_filled_slots / (16 * stats.num_used_blocks) >= 0.95


def test_rows_are_nearly_always_busy_while_requests_wait_whatever_their_lengths():
    rng = random.Random(5)
    driver = build_driver(block_size=16, num_blocks=2000, max_model_len=1024, max_num_seqs=8, budget=512, is_async=True)
    driver.checks_invariants = False
    lengths = [(rng.randint(4, 60), min(200, round(rng.lognormvariate(4.2, 0.8)))) for _ in range(60)]
    driver.add(
        *(build_request(i, [i] * prompt, max_tokens=output) for i, (prompt, output) in enumerate(lengths, start=1))
    )
    driver.run()
    stats = driver.engine.stats
    assert stats.num_busy_rows / stats.num_available_rows >= 0.95
