from __future__ import annotations

import msgspec
import pytest

from pagewire.ipc.errors import ProtocolError
from pagewire.ipc.outputs import FinishReason
from tests.support.builders import build_driver, build_request
from tests.support.fake_executor import logprob_of


def answer(driver, token_ids):
    """Let the oldest step draw these tokens for its first row, instead of the fake's own."""
    result = driver.results[0]
    rows = [msgspec.structs.replace(result.rows[0], token_ids=token_ids), *result.rows[1:]]
    driver.results[0] = msgspec.structs.replace(result, rows=rows)
    driver.receive()


def start_one(driver, **options):
    driver.add(build_request(1, [5, 6, 7], **options))
    driver.send()


def test_end_of_text_ends_without_a_stop_reason():
    driver = build_driver()
    start_one(driver, eos=[9], stop=[8])
    answer(driver, [9])
    child = driver[1].children[0]
    assert (child.token_ids, child.finish_reason, child.stop_reason) == ([9], FinishReason.STOP, None)


def test_stop_token_ends_with_its_id_as_the_reason():
    driver = build_driver()
    start_one(driver, eos=[9], stop=[8])
    answer(driver, [8])
    child = driver[1].children[0]
    assert (child.token_ids, child.finish_reason, child.stop_reason) == ([8], FinishReason.STOP, 8)


def test_token_that_is_both_counts_as_end_of_text():
    driver = build_driver()
    start_one(driver, eos=[9], stop=[9])
    answer(driver, [9])
    assert driver[1].children[0].stop_reason is None


def test_stop_token_wins_over_the_length_that_it_also_reaches():
    driver = build_driver()
    start_one(driver, stop=[8], max_tokens=1)
    answer(driver, [8])
    assert driver[1].children[0].finish_reason is FinishReason.STOP


def test_request_ends_once_after_its_last_child():
    driver = build_driver(vocab_size=12)
    driver.add(build_request(1, [5, 6], n=4, max_tokens=30, eos=[0]))
    driver.run()
    driver.check_complete(1)
    lengths = {len(child.token_ids) for child in driver[1].children}
    assert len(lengths) > 1, "the children should not all end at once"


def test_logprobs_come_with_their_tokens():
    driver = build_driver(is_async=True)
    driver.add(build_request(1, [5, 6], n=2, max_tokens=5, logprobs=1))
    driver.run()
    for child in driver[1].children:
        assert [entry.token_id for entry in child.logprobs] == child.token_ids


@pytest.mark.parametrize("is_async", [False, True])
def test_aborted_request_reports_its_children_and_frees_everything(is_async):
    driver = build_driver(is_async=is_async)
    driver.add(build_request(1, range(6), n=2, max_tokens=50))
    driver.step()
    driver.send()
    driver.abort(1)
    assert [child.finish_reason for child in driver[1].children] == [FinishReason.ABORT] * 2
    assert driver[1].end.error is None
    assert driver.engine.stats.num_used_blocks == 0
    driver.abort(1)  # idempotent
    driver.run()


@pytest.mark.parametrize("num_sends", [0, 1])
def test_request_aborted_before_its_first_token_gets_its_end_alone(num_sends):
    driver = build_driver(budget=4)
    driver.add(build_request(1, range(10)))
    for _ in range(num_sends):
        driver.send()
    driver.abort(1, 77)
    assert driver[1].start is None
    assert driver[1].end is not None
    driver.run()
    assert driver[1].children[0].token_ids == []


def test_row_of_an_aborted_request_is_removed_with_the_next_step():
    driver = build_driver()
    driver.add(build_request(1, range(10), max_tokens=50), build_request(2, [3], max_tokens=50))
    driver.step()
    driver.abort(1)
    assert driver.step().removed_row_ids == [1]
    assert driver.step().removed_row_ids == []


def test_child_stopped_by_the_client_ends_alone():
    driver = build_driver()
    driver.add(build_request(1, range(6), n=2, max_tokens=9))
    driver.step()
    driver.abort(children=[(1, 0), (1, 0), (1, 5), (1, -1), (77, 0)])
    assert driver[1].children[0].finish_reason is FinishReason.STOP
    assert driver[1].end is None
    driver.run()
    assert driver[1].children[1].finish_reason is FinishReason.LENGTH
    assert len(driver[1].children[1].token_ids) == 9


def test_last_child_stopped_by_the_client_ends_the_request():
    driver = build_driver()
    driver.add(build_request(1, range(6), max_tokens=9))
    driver.step()
    driver.abort(children=[(1, 0)])
    assert driver[1].end is not None
    driver.run()


@pytest.mark.parametrize("n", [1, 2])
def test_child_stopped_before_it_has_a_token_ends_with_its_first(n):
    driver = build_driver()
    driver.add(build_request(1, range(6), n=n, max_tokens=9))
    driver.abort(children=[(1, n - 1)])
    driver.run()
    child = driver[1].children[n - 1]
    assert (len(child.token_ids), child.finish_reason) == (1, FinishReason.STOP)


def test_prompt_logprobs_that_come_twice_are_told_once():
    driver = build_driver(budget=4)
    driver.add(build_request(1, range(10), prompt_logprobs=1))
    driver.step()
    driver.send()
    # As after a preemption: the chunk begins before what was collected.
    row = driver.results[0].rows[0]
    longer = [logprob_of(token) for token in range(1, 9)]
    driver.results[0] = msgspec.structs.replace(
        driver.results[0], rows=[msgspec.structs.replace(row, prompt_logprobs=longer, prompt_logprobs_start=1)]
    )
    driver.run()
    assert [entry.token_id for entry in driver[1].start.prompt_logprobs] == list(range(1, 10))


def test_result_that_lacks_a_drawing_row_is_a_protocol_error():
    driver = build_driver()
    start_one(driver)
    driver.results[0] = msgspec.structs.replace(driver.results[0], rows=[])
    with pytest.raises(ProtocolError, match="was to draw 1 tokens, the executor sent 0"):
        driver.receive()


def test_result_with_too_many_tokens_is_a_protocol_error():
    driver = build_driver()
    start_one(driver)
    with pytest.raises(ProtocolError, match="was to draw 1 tokens, the executor sent 2"):
        answer(driver, [1, 2])


def test_result_with_a_gap_in_prompt_logprobs_is_a_protocol_error():
    driver = build_driver()
    start_one(driver, prompt_logprobs=1)
    row = msgspec.structs.replace(driver.results[0].rows[0], prompt_logprobs_start=2)
    driver.results[0] = msgspec.structs.replace(driver.results[0], rows=[row])
    with pytest.raises(ProtocolError, match="prompt logprobs from position 2"):
        driver.receive()


def test_counters_count_each_token_once_in_spite_of_preemptions():
    driver = build_driver(num_blocks=8, block_size=4, max_model_len=28)
    driver.add(*(build_request(i, [i] * 9, max_tokens=12) for i in range(3)))
    driver.run()
    stats = driver.engine.stats
    assert stats.num_preemptions > 0
    assert stats.num_preemptions == sum(driver[i].end.num_preemptions for i in range(3))
    assert (stats.num_prompt_tokens, stats.num_generation_tokens) == (27, 36)
