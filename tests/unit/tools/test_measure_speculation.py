"""Which answers flatter lookup."""

from __future__ import annotations

import pytest

from tools.copy_prompts import COPY_PROMPTS
from tools.measure_speculation import LOOP_LENGTH, copying, goes_in_circles

RUN = list(range(LOOP_LENGTH))


@pytest.mark.parametrize(
    ("prompt", "answer", "expected"),
    [
        ([], [*RUN, 99, *RUN], True),
        (RUN, [*RUN, 99, *RUN], False),  # what is quoted twice stands in the prompt
        ([], RUN, False),
        ([], [*RUN[:-1], 99, *RUN[:-1]], False),
        ([], [7] * (LOOP_LENGTH + 1), True),
        ([7] * LOOP_LENGTH, [7] * (LOOP_LENGTH + 1), False),
    ],
)
def test_an_answer_goes_in_circles_by_itself_alone(prompt: list[int], answer: list[int], expected: bool):
    assert goes_in_circles(prompt, answer) is expected


def test_prompts_are_all_different_and_end_within_a_line():
    assert len(set(COPY_PROMPTS)) == len(COPY_PROMPTS)
    assert not [prompt for prompt in COPY_PROMPTS if prompt != prompt.rstrip()]


def test_a_part_of_a_workload_keeps_prompts_and_parameters_together():
    part = copying(5).part([1, 3])
    assert part.prompts == [COPY_PROMPTS[1], COPY_PROMPTS[3]]
    assert len(part.params) == 2
