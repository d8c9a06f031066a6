from __future__ import annotations

import pytest

from pagewire.engine_core.steps.costs import StepShape
from pagewire.engine_core.steps.in_flight import StepInFlight, StepsInFlight
from pagewire.ipc.errors import ProtocolError


def step(step_id: int) -> StepInFlight:
    return StepInFlight(step_id, [], 0, StepShape(), sent_s=0.0)


def test_there_is_room_for_so_many():
    steps = StepsInFlight(2)
    for step_id in (1, 2):
        assert steps.has_room
        steps.add(step(step_id))
    assert not steps.has_room
    steps.drop_oldest()
    assert steps.has_room
    assert len(steps) == 1


def test_answers_come_in_the_order_of_the_steps():
    steps = StepsInFlight(2)
    with pytest.raises(ProtocolError, match="answered step 1; the oldest one in flight is none"):
        steps.oldest(1)
    steps.add(step(1))
    steps.add(step(2))
    with pytest.raises(ProtocolError, match="answered step 2; the oldest one in flight is 1"):
        steps.oldest(2)
    assert steps.oldest(1).step_id == 1
    steps.clear()
    assert not steps
