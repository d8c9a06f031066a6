"""--quantization int8 and fp8 of a plain checkpoint."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from pagewire.checkpoint.loading import load_model_config
from pagewire.checkpoint.quantization.quantization_config import QuantizationConfig
from pagewire.checkpoint.quantization.requested import apply_requested
from pagewire.checkpoint.quantization.schemes import AWQScheme, RoundedScheme
from pagewire.gpu_executor.kernels.layouts import DenseWeight, Fp8Weight, Int8Weight
from pagewire.gpu_executor.kernels.reference.dequantize import dequantize
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.weights import load_weights
from pagewire.ipc.errors import ConfigError
from tests.support.one_layer import open_layer, unpacked
from tests.support.tiny_model import tiny_checkpoint

INT8, FP8 = RoundedScheme(to="int8"), RoundedScheme(to="fp8")


def matrix(columns: int = 64) -> torch.Tensor:
    return torch.randn(24, columns, generator=torch.Generator().manual_seed(0)).bfloat16()


def half_steps(scheme: RoundedScheme) -> torch.Tensor:
    """Return how far each number of `matrix()` may be from what it is rounded to, by the formats' definitions."""
    exact = matrix().double().abs()
    if scheme is INT8:  # 127 steps to the largest of 32 neighbours; the step is rounded to 11 bits
        largest = exact.view(24, 2, 32).amax(dim=2, keepdim=True).expand(24, 2, 32).reshape(24, 64)
        return largest / 127 / 2 * (1 + 2**-10)
    # Three bits after the leading one; below 2^-6, of which the row's largest is 448, steps are 2^-9.
    return torch.maximum(exact / 16, exact.amax(dim=1, keepdim=True) / 448 * 2**-10) * (1 + 2**-20)


@pytest.mark.parametrize(("scheme", "layout"), [(INT8, Int8Weight), (FP8, Fp8Weight)])
def test_both_ways_of_reading_give_the_nearest_numbers(
    tmp_path: Path, scheme: RoundedScheme, layout: type[Int8Weight | Fp8Weight]
) -> None:
    with open_layer(tmp_path, {"weight": matrix(), "bias": torch.ones(24)}, scheme) as tensors:
        assert sorted(tensors) == ["bias", "weight"]
        weight = tensors["weight"].read_matrix(None)
        assert isinstance(weight, layout)
        rounded = unpacked(tensors["weight"])
        assert torch.equal(dequantize(weight), rounded)
        off = (rounded.double() - matrix().double()).abs() / half_steps(scheme)
        assert 0.9 < off.max() <= 1
        assert tensors["weight"].matrix_bytes(None) == weight.codes.nbytes + (24 * 2 * 2 if scheme is INT8 else 0)


def test_rows_without_an_int8_layout_stay_as_they_are(tmp_path: Path) -> None:
    with open_layer(tmp_path, {"weight": matrix(80)}, INT8) as tensors:
        weight = tensors["weight"].read_matrix(None)
        assert isinstance(weight, DenseWeight)
        assert torch.equal(weight.weight, matrix(80))
        assert tensors["weight"].matrix_bytes(None) == weight.weight.nbytes


def test_what_is_packed_already_or_missing_is_named_before_it_is_read(tmp_path: Path) -> None:
    packed = {"weight": matrix().to(torch.float8_e4m3fn)}
    with pytest.raises(ConfigError, match=r"down_proj\.weight'.*stored as F8_E4M3"), open_layer(tmp_path, packed, FP8):
        pass
    with (
        pytest.raises(ConfigError, match=r"lacks .*down_proj\.weight"),
        open_layer(tmp_path, {"bias": torch.ones(24)}, FP8),
    ):
        pass


@pytest.mark.parametrize("scheme", [INT8, FP8])
def test_what_can_not_be_rounded_names_the_tensor(tmp_path: Path, scheme: RoundedScheme) -> None:
    damaged = matrix()
    damaged[3, 3] = torch.nan
    with (
        open_layer(tmp_path, {"weight": damaged}, scheme) as tensors,
        pytest.raises(ConfigError, match=rf"down_proj\.weight'.*can't be rounded to {scheme.to}: .*NaN"),
    ):
        tensors["weight"].read_matrix(None)


@pytest.mark.parametrize("to", ["int8", "fp8"])
@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_linear_layers_of_a_model_are_rounded_and_its_output_layer_is_not(to: str, load_format: str) -> None:
    plain = load_model_config(tiny_checkpoint())
    models = []
    for config in (plain, apply_requested(plain, to)):
        model = build_model(config, ReferenceOps(), dtype=torch.float32, device=torch.device("cpu"), max_model_len=64)
        load_weights(model, config, load_format=load_format)
        models.append(model)
    exact, rounded = models
    for mine, theirs in zip(rounded.layers, exact.layers, strict=True):  # type: ignore[attr-defined]
        expected = dequantize(theirs.mlp.down.weight)
        error = (dequantize(mine.mlp.down.weight) - expected).abs().max() / expected.abs().max()
        assert 0 < error < (0.005 if to == "int8" else 0.04)
    assert torch.equal(dequantize(rounded.output.weight), dequantize(exact.output.weight))  # type: ignore[attr-defined]


def test_packed_layers_of_a_directory_have_no_random_form() -> None:
    packed = QuantizationConfig(method="awq", default=AWQScheme(group_size=32))
    config = msgspec.structs.replace(load_model_config(tiny_checkpoint()), quantization=packed)
    model = build_model(config, ReferenceOps(), dtype=torch.float32, device=torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"--load-format dummy: .*packed weights \(awq\).*leave the flag out"):
        load_weights(model, config, load_format="dummy")
