from __future__ import annotations

import pytest

from pagewire.checkpoint.quantization.describe import describe_quantization
from pagewire.checkpoint.quantization.quantization_config import QuantizationConfig, SchemeRule
from pagewire.checkpoint.quantization.schemes import (
    AWQScheme,
    Fp8Scheme,
    GPTQScheme,
    Int8Scheme,
    PackedIntScheme,
    RoundedScheme,
    Scheme,
)

_PLAIN_OUTPUT = SchemeRule(pattern="lm_head$", scheme=None)
_GPTQ = GPTQScheme(bits=4, group_size=128, is_symmetric=True, zero_offset=1)


@pytest.mark.parametrize(
    ("method", "default", "rules", "text"),
    [
        ("gptq", _GPTQ, (_PLAIN_OUTPUT,), "4-bit gptq"),
        ("awq", AWQScheme(group_size=128), (), "4-bit awq"),
        ("fp8", Fp8Scheme(granularity="block", block_shape=(128, 128)), (), "fp8"),
        ("fp8", RoundedScheme(to="fp8"), (_PLAIN_OUTPUT,), "fp8"),
        ("compressed-tensors", Int8Scheme(group_size=None, is_symmetric=True), (), "int8 compressed-tensors"),
        (
            "compressed-tensors",
            PackedIntScheme(bits=4, group_size=32, is_symmetric=False),
            (SchemeRule(pattern=".*down_proj", scheme=PackedIntScheme(bits=8, group_size=32, is_symmetric=True)),),
            "4-bit and 8-bit compressed-tensors",
        ),
        ("compressed-tensors", None, (), "compressed-tensors"),
    ],
)
def test_numbers_come_first_and_then_the_method(
    method: str, default: Scheme | None, rules: tuple[SchemeRule, ...], text: str
) -> None:
    assert describe_quantization(QuantizationConfig(method=method, default=default, rules=rules)) == text
