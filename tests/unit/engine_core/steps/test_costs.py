from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.engine_core.steps.costs import StepCosts, StepShape

BASE_S, DECODE_S, TOKEN_S, ATTENDED_S = 0.004, 0.0015, 0.001, 1e-6


def true_s(shape):
    return BASE_S + DECODE_S * shape.num_decodes + TOKEN_S * shape.num_prefill_tokens + ATTENDED_S * shape.num_attended


def random_shape(rng):
    shape = StepShape()
    for _ in range(rng.randrange(0, 17)):
        shape.add(rng.randrange(10, 500), 1)
    if rng.random() < 0.7 or not shape.num_decodes:
        shape.add(rng.randrange(0, 2000), rng.randrange(2, 500))
    return shape


def learned(num_steps=200, *, noise=0.0, hold_up=0.0, seed=1):
    """Costs after steps whose times have a relative error, and of which some were held up tenfold."""
    rng = random.Random(seed)
    costs = StepCosts()
    for _ in range(num_steps):
        shape = random_shape(rng)
        step_s = true_s(shape) * rng.lognormvariate(0, noise)
        costs.observe(shape, 10 * step_s if rng.random() < hold_up else step_s)
    return costs


def test_shape_counts_what_the_tokens_attend_to():
    shape = StepShape()
    shape.add(9, 1)
    shape.add(4, 3)
    assert shape == StepShape(num_decodes=1, num_prefill_tokens=3, num_attended=10 + 5 + 6 + 7)
    shape.remove(9, 1)
    shape.remove(4, 3)
    assert shape == StepShape()


def test_costs_of_unlike_steps_are_found():
    costs = learned()
    rng = random.Random(2)
    for _ in range(50):
        shape = random_shape(rng)
        assert costs.predict_s(shape) == pytest.approx(true_s(shape), rel=0.02)


def test_steps_that_were_held_up_hardly_count():
    costs = learned(noise=0.1, hold_up=0.05)
    rng = random.Random(2)
    for _ in range(50):
        shape = random_shape(rng)
        assert costs.predict_s(shape) == pytest.approx(true_s(shape), rel=0.3)


def test_a_machine_that_became_slower_is_noticed():
    costs = learned()
    shape = StepShape(num_decodes=4, num_prefill_tokens=50, num_attended=5000)
    for _ in range(100):
        costs.observe(shape, 2 * true_s(shape))
    assert costs.predict_s(shape) == pytest.approx(2 * true_s(shape), rel=0.1)


def test_costs_that_no_step_shows_any_more_stay_known():
    costs = learned()
    prompt = StepShape(num_prefill_tokens=200, num_attended=20_000)
    decode = StepShape(num_decodes=8, num_attended=800)
    for _ in range(50_000):
        costs.observe(decode, true_s(decode))
    assert costs.predict_s(prompt) == pytest.approx(true_s(prompt), rel=0.1)


def test_steps_of_one_shape_are_put_down_to_their_tokens():
    costs = StepCosts()
    costs.observe(StepShape(num_prefill_tokens=512, num_attended=512 * 256), 0.5)
    assert costs.predict_s(StepShape(num_decodes=1)) < 0.01, "or the first decode would be taken for half a second"
    assert costs.prefill_tokens_within(0.05, 0) == pytest.approx(51.2, rel=0.01)


@given(seconds=st.floats(1e-4, 1.0), num_computed_tokens=st.integers(0, 4000))
def test_tokens_within_a_time_take_that_time(seconds, num_computed_tokens):
    costs = learned(50)
    num_tokens = costs.prefill_tokens_within(seconds, num_computed_tokens)
    attended = num_tokens * num_computed_tokens + num_tokens * (num_tokens + 1) / 2
    with_prefill = StepShape(num_prefill_tokens=num_tokens, num_attended=attended)
    assert costs.predict_s(with_prefill) - costs.predict_s(StepShape()) == pytest.approx(seconds, rel=1e-6)


def test_nothing_is_limited_before_anything_is_known():
    costs = StepCosts()
    assert costs.predict_s(StepShape(num_decodes=3)) == 0.0
    assert costs.prefill_tokens_within(0.05, 100) == math.inf
    assert learned().prefill_tokens_within(0.0, 100) == 0.0


@pytest.mark.parametrize("step_s", [0.0, -1.0, math.inf, math.nan])
def test_a_time_that_was_not_measured_teaches_nothing(step_s):
    costs = learned()
    shape = StepShape(num_decodes=4, num_attended=100)
    before = costs.predict_s(shape)
    costs.observe(shape, step_s)
    assert costs.predict_s(shape) == before
    assert costs.num_steps == 200


def test_equal_steps_give_equal_costs():
    shape = StepShape(num_decodes=3, num_prefill_tokens=40, num_attended=900)
    assert learned(noise=0.2).predict_s(shape) == learned(noise=0.2).predict_s(shape)
