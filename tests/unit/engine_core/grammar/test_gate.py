"""Requests wait for their grammars, and end as others do while they wait."""

from __future__ import annotations

import pytest

from pagewire.engine_core.grammar.gate import MAX_COMPILED, CompileResult, GrammarGate, Lane
from pagewire.ipc.errors import ErrorInfo
from pagewire.ipc.outputs import FinishReason
from pagewire.ipc.structured_outputs import Grammar
from tests.support.builders import build_driver, build_request
from tests.support.engine_driver import EngineDriver
from tests.support.grammars import BAD_GRAMMARS, EOS, GRAMMARS, STOP, compile_letters, spell

AB = Grammar("regex", "(ab)+c")
VOCAB_SIZE = 30


def driver_of(**options) -> EngineDriver:
    return build_driver(vocab_size=VOCAB_SIZE, **options)


def constrained(request_id: int, grammar: Grammar = AB, **options):
    return build_request(request_id, [5, 6, 7], grammar=grammar, max_tokens=20, **options)


def test_request_is_taken_when_its_grammar_is_there_and_others_run_meanwhile():
    driver = driver_of()
    driver.delays_grammars = True
    driver.add(constrained(1), constrained(2), build_request(3, [5, 6]))
    assert driver.orders == [AB]
    assert not driver[1].is_accepted
    driver.step()
    assert driver[3].start is not None
    assert driver[1].start is None
    driver.run()
    for request_id in (1, 2, 3):
        driver.check_complete(request_id)
    assert driver[1].children[0].finish_reason in (FinishReason.STOP, FinishReason.LENGTH)


@pytest.mark.parametrize("grammar", BAD_GRAMMARS)
def test_grammar_that_does_not_compile_refuses_its_request_alone(grammar):
    driver = driver_of()
    driver.add(build_request(1, [5, 6]), constrained(2, grammar))
    driver.run()
    driver.check_complete(1)
    assert driver[2].end.is_refused
    assert driver[2].end.error.kind == "InvalidRequest"


def test_compiled_grammar_is_used_again():
    driver = driver_of()
    driver.add(constrained(1))
    driver.run()
    driver.delays_grammars = True
    driver.add(constrained(2, seed=3))
    assert driver.orders == []
    driver.run()
    driver.check_complete(2)


def test_held_request_is_aborted_late_and_failed_like_others():
    driver = driver_of()
    driver.delays_grammars = True
    driver.add(constrained(1), constrained(2, timeout_s=5.0), constrained(3))
    driver.abort(1)
    assert driver[1].end.error is None
    driver.expire(10.0)
    assert driver[2].end.error.kind == "DeadlineExceeded"
    driver.engine.fail_all(ErrorInfo(kind="EngineDead", message="over"))
    driver.collect()
    assert driver[3].end.error.kind == "EngineDead"
    driver.compile()  # nobody waits for it any more
    assert not driver.engine.has_work()


def test_held_requests_count_among_those_that_wait():
    driver = driver_of(max_waiting_requests=2)
    driver.delays_grammars = True
    driver.add(constrained(1), constrained(2), constrained(3))
    assert driver[3].end.error.kind == "Overloaded"
    driver.run()


def test_order_that_nobody_waits_for_is_dropped():
    driver = driver_of()
    driver.engine.add_request(b"bob", constrained(1), 0.0)
    driver.engine.add_request(b"ann", constrained(2, Grammar("regex", "a+")), 0.0)
    driver.engine.abort_client(b"bob")
    assert driver.engine.grammars.take_order(Lane.QUICK) == Grammar("regex", "a+")
    assert driver.engine.grammars.take_order(Lane.QUICK) is None


def test_grammar_that_takes_long_leaves_its_lane_to_others_and_waits_for_the_other_one():
    driver = driver_of()
    grammars = driver.engine.grammars
    slow, late = Grammar("regex", "a+"), Grammar("regex", "b+")
    driver.delays_grammars = True
    driver.add(constrained(1, slow), constrained(2, late))
    assert driver.orders == [slow, late]
    grammars.finish(CompileResult(slow, None))
    driver.add(constrained(3, slow))
    assert grammars.take_order(Lane.QUICK) is None
    assert grammars.take_order(Lane.SLOW) == slow
    assert grammars.take_order(Lane.SLOW) is None
    driver.orders.reverse()
    driver.run()
    for request_id in (1, 2, 3):
        driver.check_complete(request_id)


@pytest.mark.parametrize("lane", Lane)
def test_grammar_that_nobody_waits_for_is_dropped_in_both_lanes(lane):
    driver = driver_of()
    grammars = driver.engine.grammars
    driver.engine.add_request(b"bob", constrained(1), 0.0)
    if lane is Lane.SLOW:
        grammars.take_order(Lane.QUICK)
        grammars.finish(CompileResult(AB, None))
    driver.engine.abort_client(b"bob")
    assert grammars.take_order(lane) is None
    driver.engine.add_request(b"ann", constrained(2), 0.0)
    assert grammars.take_order(Lane.QUICK) == AB, "as if it had never been asked for"


def test_grammar_that_takes_long_when_nobody_waits_any_more_is_forgotten():
    driver = driver_of()
    driver.engine.add_request(b"bob", constrained(1), 0.0)
    driver.engine.grammars.take_order(Lane.QUICK)
    driver.engine.abort_client(b"bob")
    driver.engine.grammars.finish(CompileResult(AB, None))
    assert driver.engine.grammars.take_order(Lane.SLOW) is None
    driver.engine.add_request(b"bob", constrained(2), 0.0)
    assert driver.engine.grammars.take_order(Lane.QUICK) == AB


def test_clients_take_turns_and_share_what_several_ask_for():
    driver = driver_of()
    grammars = [Grammar("regex", f"a{{{length}}}") for length in range(1, 7)]
    for number, grammar in enumerate(grammars[:4]):
        driver.engine.add_request(b"bob", constrained(number, grammar), 0.0)
    driver.engine.add_request(b"ann", constrained(1, grammars[3]), 0.0)
    driver.engine.add_request(b"ann", constrained(2, grammars[4]), 0.0)
    driver.engine.add_request(b"bob", constrained(9, grammars[5], salt="pepper"), 0.0)
    taken = [driver.engine.grammars.take_order(Lane.QUICK) for _ in range(7)]
    assert taken == [grammars[0], grammars[3], grammars[5], grammars[1], grammars[4], grammars[2], None]


def test_held_request_survives_the_executors_death():
    driver = driver_of()
    driver.delays_grammars = True
    driver.add(constrained(1))
    driver.restart_executor(driver_of().executor, executor_epoch=2)
    driver.run()
    driver.check_complete(1)


@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("ignores_end", [False, True])
def test_answers_are_of_the_language_and_end_where_nothing_can_follow(grammar, ignores_end):
    driver = driver_of(is_async=True, max_model_len=64)
    for request_id in range(1, 9):
        ends = {} if ignores_end else {"eos": [EOS], "stop": [STOP]}
        driver.add(constrained(request_id, grammar, seed=request_id, n=1 + request_id % 3, **ends))
    driver.run()
    for request_id in range(1, 9):
        driver.check_complete(request_id)
        for child in driver[request_id].children:
            matcher = compile_letters(grammar).compiled.start(frozenset(), VOCAB_SIZE)
            assert all(matcher.advance(token_id) for token_id in child.token_ids if token_id > STOP), spell(
                child.token_ids
            )


def test_token_that_no_grammar_allows_fails_its_request_alone():
    driver = driver_of()
    driver.add(constrained(1), build_request(2, [5, 6]))
    driver.step()
    faulty = driver.executor.execute

    def execute(step, masks):
        result = faulty(step, masks)
        for row in result.rows:
            row.token_ids[:] = [4] * len(row.token_ids) if row.row_id == 1 else row.token_ids
        return result

    driver.executor.execute = execute
    driver.send()
    driver.receive()
    driver.executor.execute = faulty
    driver.run()
    assert "forbids" in driver[1].end.error.message
    driver.check_complete(2)


def test_engine_without_grammars_refuses_them():
    gate = GrammarGate(is_open=False)
    gate.check(None)
    with pytest.raises(Exception, match="disabled"):
        gate.check(AB)


def test_gate_keeps_as_many_grammars_as_it_may():
    gate = GrammarGate(is_open=True)
    for length in range(1, MAX_COMPILED + 2):
        gate.finish(compile_letters(Grammar("regex", f"a{{{length}}}")))
    assert gate.find(Grammar("regex", "a{1}")) is None
    assert gate.find(Grammar("regex", "a{2}")) is not None
