from __future__ import annotations

import pytest

from pagewire.checkpoint.lora.tensor_names import AdapterTensor, parse_name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("base_model.model.model.layers.0.q_proj.lora_A.weight", AdapterTensor("model.layers.0.q_proj", "A")),
        ("base_model.model.model.layers.0.q_proj.lora_B.default.weight", AdapterTensor("model.layers.0.q_proj", "B")),
        ("base_model.model.lm_head.weight", None),
        ("base_model.model.model.layers.0.q_proj.lora_magnitude_vector", None),
    ],
)
def test_names_say_the_module_and_the_matrix(name: str, expected: AdapterTensor | None) -> None:
    assert parse_name(name) == expected
