"""Built-in shapes are those of the models that they are named after."""

from __future__ import annotations

import pytest

from pagewire.checkpoint.estimate.shapes import SHAPES, find_shape
from pagewire.checkpoint.estimate.weights import num_active_parameters, num_parameters


@pytest.mark.parametrize(
    ("shape", "billions"),
    [
        ("llama-3.2-1b", 1.236), ("llama-3.2-3b", 3.213), ("llama-3.1-8b", 8.030), ("llama-3-70b", 70.554),
        ("llama-3.1-405b", 405.853), ("llama-2-7b", 6.738), ("llama-2-13b", 13.016), ("llama-2-70b", 68.977),
        ("mistral-7b", 7.248), ("qwen2.5-7b", 7.616), ("qwen2.5-14b", 14.770), ("qwen2.5-32b", 32.764),
        ("qwen2.5-72b", 72.706), ("qwen3-8b", 8.191), ("qwen3-14b", 14.768), ("qwen3-32b", 32.762),
        ("smollm2-135m", 0.13452), ("mixtral-8x7b", 46.703), ("mixtral-8x22b", 140.630),
        ("qwen3-30b-a3b", 30.532), ("qwen3-235b-a22b", 235.094),
    ],
)  # fmt: skip
def test_built_in_shapes_have_the_published_number_of_parameters(shape: str, billions: float) -> None:
    assert num_parameters(SHAPES[shape].config) / 1e9 == pytest.approx(billions, rel=2e-4)


@pytest.mark.parametrize(
    ("shape", "billions"),
    [("mixtral-8x7b", 12.9), ("mixtral-8x22b", 39.2), ("qwen3-30b-a3b", 3.35), ("qwen3-235b-a22b", 22.2)],
)
def test_a_token_is_computed_by_the_published_number_of_parameters(shape: str, billions: float) -> None:
    assert num_active_parameters(SHAPES[shape].config) / 1e9 == pytest.approx(billions, rel=5e-3)


def test_all_parameters_of_a_model_without_experts_compute_a_token() -> None:
    config = SHAPES["llama-3.1-8b"].config
    assert num_active_parameters(config) == num_parameters(config)


def test_shapes_are_found_by_name_and_by_hub_id_in_any_case() -> None:
    for name in ("Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct", "META-LLAMA/meta-llama-3.1-8b"):
        found = find_shape(name)
        assert found is not None
        assert found[0] == "llama-3.1-8b"
    assert find_shape("someone/Llama-3.1-8B-Instruct-FP8") is None


def test_no_repository_stands_for_two_shapes() -> None:
    hub_ids = [hub_id for shape in SHAPES.values() for hub_id in shape.hub_ids]
    assert len(hub_ids) == len(set(hub_ids))
    assert all(hub_id == hub_id.lower() for hub_id in hub_ids)
