from __future__ import annotations

import pytest

from pagewire.engine_core.drafts.guess_costs import GuessCosts
from pagewire.engine_core.steps.costs import StepShape

BASE_S, DECODE_S, UNIT_S = 0.010, 0.002, 0.003


def run(costs: GuessCosts, num_steps: int, *, num_decodes: int, num_units: int = 0, held_up_s: float = 0.0) -> None:
    shape = StepShape(num_decodes=num_decodes, num_drafts=num_units // 2, num_guesses=num_units - num_units // 2)
    for _ in range(num_steps):
        costs.observe(shape, BASE_S + DECODE_S * num_decodes + UNIT_S * num_units + held_up_s)


def true_price(num_decodes: int) -> float:
    return 2 * UNIT_S * num_decodes / (BASE_S + DECODE_S * num_decodes)


@pytest.mark.parametrize("num_decodes", [1, 4, 16])
def test_a_guess_is_priced_in_tokens_of_the_decodes_even_if_every_later_step_has_guesses(num_decodes: int):
    costs = GuessCosts()
    run(costs, 2, num_decodes=num_decodes)
    run(costs, 40, num_decodes=num_decodes, num_units=10 * num_decodes)
    assert costs.price(num_decodes) == pytest.approx(true_price(num_decodes))


def test_nothing_is_known_before_steps_with_and_without_guesses_were_measured():
    costs = GuessCosts()
    assert costs.needs_plain_step(4)
    assert costs.price(4) is None
    run(costs, 2, num_decodes=4)
    assert not costs.needs_plain_step(4)
    assert costs.price(4) is None
    assert costs.needs_plain_step(16)  # what a few decodes take says nothing of many


def test_after_many_steps_with_guesses_it_is_measured_again_what_they_take_without():
    costs = GuessCosts()
    run(costs, 2, num_decodes=4)
    run(costs, 48, num_decodes=4, num_units=8)
    assert costs.needs_plain_step(4)
    run(costs, 1, num_decodes=4)
    assert not costs.needs_plain_step(4)


def test_a_step_that_was_held_up_counts_little():
    costs = GuessCosts()
    run(costs, 2, num_decodes=4)
    run(costs, 4, num_decodes=4, num_units=8)
    run(costs, 1, num_decodes=4, num_units=8, held_up_s=10.0)
    price = costs.price(4)
    assert price is not None
    assert price < 1.5 * true_price(4)


def test_steps_with_prefills_say_nothing():
    costs = GuessCosts()
    costs.observe(StepShape(num_decodes=4, num_prefill_tokens=100), 1.0)
    costs.observe(StepShape(num_decodes=4, num_prefill_tokens=100), 1.0)
    assert costs.needs_plain_step(4)
