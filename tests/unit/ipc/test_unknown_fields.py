"""A sampling parameter that there is not is refused like a bad value of one that there is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("temprature", "SamplingParams has no temprature; did you mean temperature?"),
        ("max_new_tokens", "did you mean max_tokens?"),
        ("xyz", "there are n, temperature, top_p"),
    ],
)
def test_unknown_field_is_named_with_the_nearest(name: str, text: str) -> None:
    values: dict[str, Any] = {"temperature": 0, name: 1}  # Any: each parameter has its own type
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**values)
    assert text in caught.value.message
    assert caught.value.param == name


def test_values_without_names_are_still_a_programming_error() -> None:
    with pytest.raises(TypeError, match="positional"):
        SamplingParams(1)  # type: ignore[call-arg]


def test_struct_is_read_and_changed_as_before() -> None:
    params = SamplingParams(top_k=3)
    assert msgspec.json.decode(msgspec.json.encode(params), type=SamplingParams) == params
    assert msgspec.structs.replace(params, top_k=4) == SamplingParams(top_k=4)
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode(b'{"temprature": 1}', type=SamplingParams)
