"""One question, all answers."""

from __future__ import annotations

import msgspec
import pytest

from pagewire.checkpoint.estimate.answer import Question, answer
from pagewire.checkpoint.estimate.devices import COMMON_DEVICES, find_device
from pagewire.checkpoint.estimate.served import KVLayout, Served
from pagewire.checkpoint.estimate.shapes import SHAPES
from pagewire.checkpoint.estimate.weights import format_bits
from pagewire.checkpoint.placement import Placement
from pagewire.ipc.errors import ConfigError

OF_8B = Question(
    name="of the test",
    served=Served(
        model=SHAPES["llama-3.1-8b"].config,
        bits=format_bits("bfloat16"),
        kv=KVLayout(name="bfloat16", bytes_a_value=2),
    ),
    device=find_device("h200"),
    placement=Placement(),
    context=1024,
    output_tokens=128,
    num_requests=None,
    share=0.7,
)
ask = msgspec.structs.replace


def test_a_fitting_device_is_compared_with_itself_alone():
    found = answer(OF_8B)
    assert found.asked is not None
    assert found.asked.fits
    assert {option.device for option in found.options} == {"h200"}


def test_one_that_does_not_fit_is_compared_with_others():
    found = answer(ask(OF_8B, device=find_device("t4")))
    assert found.asked is not None
    assert not found.asked.fits
    assert (found.asked.decodes, found.asked.requests, found.asked.ops) == ((), None, ())
    assert [option.device for option in found.options][::3] == ["t4", *COMMON_DEVICES]


def test_no_batch_is_shown_that_does_not_fit_or_may_not_run():
    found = answer(ask(OF_8B, device=find_device("l4"))).asked
    assert found is not None
    assert [one.num_requests for one in found.decodes] == sorted({1, 16, found.max_requests})
    assert found.requests is not None
    assert found.requests.num_requests == found.max_requests
    limited = answer(ask(OF_8B, num_requests=5)).asked
    assert limited is not None
    assert limited.requests is not None
    assert limited.requests.num_requests == 5
    assert limited.longest_context_of_all == 131_072


def test_the_most_that_may_run_is_the_largest_batch():
    found = answer(OF_8B).asked
    assert found is not None
    assert found.max_requests > 256
    assert found.decodes[-1].num_requests == 256


def test_keys_and_values_are_counted_over_all_devices():
    alone, shared = answer(OF_8B).kv, answer(ask(OF_8B, placement=Placement(tp=4))).kv
    assert alone == shared
    assert alone.a_request_with_all_heads == 4 * alone.a_request
    assert alone.all_requests is None
    assert answer(ask(OF_8B, num_requests=3)).kv.all_requests == 3 * alone.a_request


def test_a_shape_that_can_not_be_divided_is_refused():
    with pytest.raises(ConfigError, match="--tp 5"):
        answer(ask(OF_8B, placement=Placement(tp=5)))
