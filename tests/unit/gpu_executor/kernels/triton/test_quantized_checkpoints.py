"""Quantized checkpoints, from their files to logits, give those of the weights that they stand for.

The reference keeps the same canonical weights: what is left between the two is the order of float32 additions.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pagewire.checkpoint.loading import load_model_config
from pagewire.checkpoint.quantization.schemes import PackedIntScheme
from pagewire.gpu_executor.formats.writing.quantized_directory import write_quantized
from pagewire.gpu_executor.kernels.layouts import Int4Weight
from pagewire.gpu_executor.kernels.ops import Ops
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.quantize_checkpoint import linear_layers, main
from pagewire.gpu_executor.weights import load_weights
from tests.support.one_layer import open_layer
from tests.support.paged import Chunk, nan_filled_cache, paged_step
from tests.support.stored_layers import StoredLayer, fp8, int8, packed_int
from tests.support.tiny_model import tiny_checkpoint
from tools.awq_packing import AWQPacking

pytest.importorskip("triton")

from pagewire.gpu_executor.kernels.triton.packed_weight import ROW_MULTIPLE, pack_int4
from pagewire.gpu_executor.kernels.triton.triton_ops import TritonOps

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("poisoned_memory")]

CPU = torch.device("cpu")
NUM_TOKENS = 3
Write = Callable[[Path, Path], None]


class KeepingReference(ReferenceOps):
    """The reference's products over the layouts that the kernels get."""

    keeps_quantized_weights = True


def quantized(*options: str) -> Write:
    """As `pagewire quantize` writes it."""

    def write(source: Path, target: Path) -> None:
        assert main(["--to", *options, "--out", str(target), str(source)]) == 0

    return write


def awq(group_size: int) -> Write:
    def write(source: Path, target: Path) -> None:
        layers = linear_layers(load_model_config(source))
        packing = AWQPacking(group_size)
        write_quantized(source, target, packing, layers, max_file_bytes=10**9, progress=lambda name, size: None)

    return write


def stored(store: Callable[[Tensor], StoredLayer], quantization: dict[str, Any]) -> Write:  # Any: JSON
    """With each linear layer written from its format's description."""

    def write(source: Path, target: Path) -> None:
        shutil.copytree(source, target)
        config = json.loads((source / "config.json").read_text())
        (target / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
        tensors = load_file(source / "model.safetensors")
        for module in linear_layers(load_model_config(source)):
            weight = tensors.pop(f"{module}.weight").float()
            tensors |= {f"{module}.{name}": tensor for name, tensor in store(weight).tensors.items()}
        save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})

    return write


def compressed(form: str, **weights: Any) -> dict[str, Any]:  # Any: JSON
    group = {"targets": ["Linear"], "weights": {"type": "int", "symmetric": True, "dynamic": False, **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


CHECKPOINTS: dict[str, Write] = {
    "4 bits": quantized("int4"),
    "4 bits, groups of 128": quantized("int4", "--group-size=128", "--no-symmetric"),
    "4 bits, act-order": stored(
        lambda weight: packed_int(weight, bits=4, group_size=64, has_permutation=True),
        compressed("pack-quantized", num_bits=4, strategy="group", group_size=64, actorder="group"),
    ),
    "gptq": quantized("int4", "--format=gptq", "--group-size=128"),
    "awq": awq(64),
    "8 bits": quantized("int8"),
    "8 bits, minima": stored(
        lambda weight: int8(weight, is_symmetric=False),
        compressed("int-quantized", num_bits=8, strategy="channel", symmetric=False),
    ),
    "fp8": quantized("fp8"),
    "fp8, a scale a matrix": stored(fp8, {"quant_method": "fp8", "activation_scheme": "dynamic"}),
    "fp8, blocks": stored(
        lambda weight: fp8(weight, (128, 128), scale_name="weight_scale_inv"),
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    ),
}


def logits_of(path: Path, ops: Ops, dtype: torch.dtype) -> Tensor:
    """Run a short prompt; return the logits of its tokens."""
    config = load_model_config(path)
    model = build_model(config, ops, dtype=dtype, device=CPU, max_model_len=16)
    load_weights(model, config)
    caches = [nan_filled_cache(spec, 2, dtype=dtype) for spec in model.kv_cache_specs()]
    input_ids = torch.tensor([1, 7, 100])
    return model.compute_logits(model.forward(input_ids, paged_step([Chunk([1], 0, NUM_TOKENS)]), caches))


@pytest.fixture(scope="module")
def source() -> Path:
    """One layer, whose rows are two groups of 128."""
    return tiny_checkpoint(num_layers=1, hidden_size=256, intermediate_size=256, head_dim=64, dtype="float16")


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_logits_are_those_of_the_reference_over_the_same_weights(tmp_path: Path, source: Path, name: str) -> None:
    path = tmp_path / "packed"
    CHECKPOINTS[name](source, path)
    ops = TritonOps(CPU, is_batch_invariant=False, attention_backend="triton")
    expected = logits_of(path, KeepingReference(), torch.float32)
    actual = logits_of(path, ops, torch.float32)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4 * expected.std().item())


@pytest.mark.parametrize(("group_size", "bits"), [(32, 5), (64, 4.5), (96, 5), (128, 4.25), (None, 4.25)])
def test_4_bits_are_announced_at_the_size_that_they_are_kept_in(
    tmp_path: Path, group_size: int | None, bits: float
) -> None:
    weight = torch.randn(ROW_MULTIPLE, 384, generator=torch.Generator().manual_seed(0))
    layer = packed_int(weight, bits=4, group_size=group_size)
    scheme = PackedIntScheme(bits=4, group_size=group_size, is_symmetric=True)
    with open_layer(tmp_path, layer.tensors, scheme) as tensors:
        announced = tensors["weight"].matrix_bytes(None, TritonOps.max_scale_group)
        matrix = tensors["weight"].read_matrix(None)
        assert tensors["weight"].matrix_bytes(None) == weight.numel() * 5 / 8  # with scales repeated
    assert isinstance(matrix, Int4Weight)
    packed = pack_int4(matrix)
    assert announced == packed.words.nbytes + packed.scales.nbytes == weight.numel() * bits / 8


def test_logits_of_16_bits_are_near_those_of_32(tmp_path: Path, source: Path) -> None:
    path = tmp_path / "packed"
    CHECKPOINTS["4 bits, act-order"](source, path)
    ops = TritonOps(CPU, is_batch_invariant=True, attention_backend="triton")
    expected = logits_of(path, KeepingReference(), torch.float32)
    actual = logits_of(path, ops, torch.float16)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0.02 * expected.std().item())
