"""Weights of norms are kept in the dtype that their family needs."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from pagewire.checkpoint.loading import load_model_config
from pagewire.checkpoint.model_config import ModelConfig
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.layers.build_context import BuildContext
from pagewire.gpu_executor.layers.rms_norm import RMSNorm
from pagewire.gpu_executor.quantization.dense import DenseMethod
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf

# 16-bit dtypes keep the first and not the sum.
STORED_LESS_1 = 2.0**-12


class StoredTensor:
    """A checkpoint tensor in memory."""

    name = source = "norm.weight"

    def __init__(self, values: torch.Tensor) -> None:
        self.shape = tuple(values.shape)
        self._values = values

    def copy_to(self, destination: torch.Tensor) -> None:
        destination.copy_(self._values)


def loaded_weight(config: ModelConfig, stored: float) -> torch.Tensor:
    """The weight of a norm in a model that computes in bfloat16."""
    ops = select_ops("reference")
    context = BuildContext(ops, DenseMethod(ops), torch.bfloat16, torch.bfloat16, torch.device("cpu"))
    norm = RMSNorm("norm", 4, config, context)
    (target,) = norm.weight_targets()
    target.load(StoredTensor(torch.full((4,), stored)))
    return norm.weight


@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_gemmas_weights_keep_their_bits_beside_1_from_every_file(family: Literal["gemma2", "gemma3"]) -> None:
    expected = torch.full((4,), 1 + STORED_LESS_1)
    from_safetensors = loaded_weight(load_model_config(tiny_checkpoint(family)), STORED_LESS_1)
    from_gguf = loaded_weight(load_model_config(tiny_gguf(family, "F32").path), 1 + STORED_LESS_1)
    assert torch.equal(from_safetensors, expected)
    assert torch.equal(from_gguf, expected)


def test_other_families_weights_have_the_dtype_of_activations() -> None:
    assert loaded_weight(load_model_config(tiny_checkpoint("llama")), 1.0).dtype == torch.bfloat16
