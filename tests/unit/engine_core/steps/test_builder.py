from __future__ import annotations

from pagewire.ipc.codec import encode, to_executor
from tests.support.builders import build_driver, build_request


def test_full_data_is_sent_once_and_deltas_after_it():
    driver = build_driver(block_size=4)
    driver.add(build_request(1, range(6), max_tokens=4))
    first, second, third = driver.step(), driver.step(), driver.step()
    (row,) = first.new_rows
    assert (row.token_ids, row.num_computed_tokens, row.num_prompt_tokens) == (list(range(6)), 0, 6)
    assert row.block_table == [0, 1]
    assert first.rows[0].new_block_ids == [], "they are part of the new row's block table"
    assert second.new_rows == third.new_rows == []
    assert (second.rows[0].new_block_ids, third.rows[0].new_block_ids) == ([], [])
    fourth = driver.step()
    assert fourth.rows[0].new_block_ids == [2]


def test_copy_on_write_is_told_to_the_known_row_and_built_into_the_new_one():
    driver = build_driver(block_size=4, num_blocks=9, max_model_len=16)
    driver.add(build_request(1, range(6), n=3))
    driver.step()
    step = driver.step()
    assert step.block_copies == [(1, 2), (1, 3)]
    assert [row.replaced_block for row in step.rows] == [(1, 2), None, None]
    assert [row.block_table for row in step.new_rows] == [[0, 3], [0, 1]]
    assert [row.child for row in step.new_rows] == [1, 2]
    assert [len(row.token_ids) for row in step.new_rows] == [7, 7]
    assert [row.num_computed_tokens for row in step.new_rows] == [6, 6]


def test_row_and_step_ids_are_never_used_again():
    driver = build_driver(num_blocks=8, block_size=4, max_model_len=28)
    driver.add(*(build_request(i, [i] * 9, max_tokens=12) for i in range(3)))
    driver.run()
    row_ids = [row.row_id for step in driver.steps for row in step.new_rows]
    assert len(row_ids) == len(set(row_ids)) > 3
    assert [step.step_id for step in driver.steps] == list(range(1, len(driver.steps) + 1))


def test_new_row_does_not_change_after_it_was_built():
    driver = build_driver()
    driver.add(build_request(1, range(6)))
    (row,) = driver.step().new_rows
    driver.run()
    assert row.token_ids == list(range(6))


def test_steps_survive_the_wire():
    driver = build_driver(is_async=True)
    driver.add(build_request(1, range(6), n=3, logprobs=2, stop=[3]), build_request(2, range(9)))
    driver.run()
    for step in driver.steps:
        assert to_executor.decode(encode(step)) == step
