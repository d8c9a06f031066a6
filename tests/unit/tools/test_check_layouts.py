"""The check of layouts, where it decides: what counts as another answer, and how far logits lie apart."""

from __future__ import annotations

from typing import Any

import pytest

from tools.check_layouts import MAX_ERROR, Answers, Case, Layout, compare_logits, holds

PLAIN, QUANTIZED = Case("plain", "", is_quantized=False), Case("quantized", "", is_quantized=True)
# Two positions of one prompt: token id -> logprob.
PLACES: list[list[dict[int, float]]] = [[{5: -1.0, 6: -2.0, 7: -6.0}, {5: -2.0, 9: -1.0}]]


def answers(**changes: Any) -> Answers:
    fields: dict[str, Any] = {"prompts": PLACES, "requests": [([5], [b"a"]), ([7], [b"b"])], "num_differing": 0}
    return Answers(**{**fields, **changes})


def shifted(by: float) -> list[list[dict[int, float]]]:
    """The places, with token 6 moved."""
    return [[{**PLACES[0][0], 6: PLACES[0][0][6] + by}, PLACES[0][1]]]


def test_layouts_are_read_as_they_are_printed():
    assert Layout.parse("4x2") == Layout(tp=4, pp=2)
    assert str(Layout(3, 1)) == "3x1"


def test_a_constant_of_a_position_is_no_difference_of_logits():
    moved = [[{token: value - 0.5 for token, value in place.items()} for place in PLACES[0]]]
    error, num_same, num_places = compare_logits(PLACES, moved)
    assert error == pytest.approx(0)
    assert (num_same, num_places) == (2, 2)


def test_an_error_is_relative_to_the_largest_centred_logit():
    error, num_same, _ = compare_logits(PLACES, shifted(0.3))  # the mean, -3, moves by 0.1; the largest is 3 from it
    assert error == pytest.approx(0.2 / 3)
    assert num_same == 2
    assert compare_logits(PLACES, shifted(1.5))[1] == 1


def test_tokens_that_one_side_does_not_list_are_left_out():
    fewer = [[{5: -1.0, 6: -2.0, 8: -7.0}, {5: -2.0, 9: -1.0}]]
    assert compare_logits(PLACES, fewer)[0] == pytest.approx(0)


def test_other_ids_rule_out_a_plain_layout_and_not_a_quantized_one():
    other = answers(requests=[([5], [b"a"]), ([8], [b"b"])])
    assert holds(PLAIN, answers(), answers())
    assert not holds(PLAIN, other, answers())
    assert holds(QUANTIZED, other, answers())


def test_logits_too_far_apart_rule_out_a_quantized_layout():
    assert MAX_ERROR < 0.3
    assert not holds(QUANTIZED, answers(prompts=shifted(1.0)), answers())


@pytest.mark.parametrize("case", [PLAIN, QUANTIZED])
def test_other_bits_in_another_batch_rule_out_any_layout(case: Case):
    assert not holds(case, answers(num_differing=1), answers())
