"""A step's masks are made once, as soon as what its rows drew before is known."""

from __future__ import annotations

from pagewire.ipc.structured_outputs import Grammar
from tests.support.builders import build_driver, build_request
from tests.support.engine_driver import ALICE

GRAMMAR = Grammar("regex", "[a-z]*")


def engine_of(*requests, **options):
    driver = build_driver(vocab_size=30, **options)
    driver.add(*requests)
    return driver.engine, driver.executor


def step_ids(engine):
    return [masks.step_id for masks in engine.take_masks()]


def test_masks_of_a_step_in_turn_are_there_at_once_and_those_of_one_ahead_behind_the_last_result():
    engine, executor = engine_of(build_request(1, [5, 6], grammar=GRAMMAR, max_tokens=9), is_async=True)
    first = engine.schedule(1.0)
    assert first.rows[0].is_masked
    (masks,) = engine.take_masks()
    second = engine.schedule(2.0)
    assert second.rows[0].is_masked
    assert step_ids(engine) == []
    engine.apply(executor.execute(first, {row.row_id: row.masks for row in masks.rows}), 3.0)
    assert step_ids(engine) == [second.step_id]
    assert step_ids(engine) == []


def test_steps_without_grammars_have_none_and_rows_that_draw_nothing_are_not_masked():
    engine, executor = engine_of(build_request(1, [5, 6, 7, 8, 9], grammar=GRAMMAR), budget=3)
    first = engine.schedule(1.0)
    assert not first.rows[0].is_masked
    assert step_ids(engine) == []
    engine.apply(executor.execute(first), 2.0)
    assert engine.schedule(3.0).rows[0].is_masked
    assert len(step_ids(engine)) == 1


def test_request_that_ended_meanwhile_still_gets_its_masks_and_they_are_empty():
    engine, executor = engine_of(build_request(1, [5, 6], grammar=GRAMMAR, max_tokens=9), is_async=True)
    first = engine.schedule(1.0)
    (masks,) = engine.take_masks()
    engine.schedule(2.0)
    engine.abort_client(ALICE)
    engine.apply(executor.execute(first, {row.row_id: row.masks for row in masks.rows}), 3.0)
    (masks,) = engine.take_masks()
    assert [row.masks for row in masks.rows] == [b""]


def test_masks_of_steps_that_were_lost_are_not_made():
    engine, _ = engine_of(build_request(1, [5, 6], grammar=GRAMMAR))
    engine.schedule(1.0)
    engine.lose_executor("killed")
    assert step_ids(engine) == []
