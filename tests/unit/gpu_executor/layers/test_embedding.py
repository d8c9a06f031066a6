"""Logits are float32, whatever the weights are, and go where the caller wants them."""

from __future__ import annotations

import msgspec
import torch

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.layers.build_context import BuildContext
from pagewire.gpu_executor.layers.embedding import OutputLayer, VocabEmbedding
from pagewire.gpu_executor.quantization.dense import DenseMethod
from tests.support.tiny_model import tiny_checkpoint

CPU = torch.device("cpu")


class StoredTensor:
    """A checkpoint tensor in memory."""

    name = source = "embedding.weight"

    def __init__(self, values: torch.Tensor) -> None:
        self.shape = tuple(values.shape)
        self._values = values

    def copy_to(self, destination: torch.Tensor) -> None:
        destination.copy_(self._values)


def make_output_layer(rows: torch.Tensor) -> OutputLayer:
    """A layer tied to an embedding of these rows."""
    ops = select_ops("reference")
    context = BuildContext(ops, DenseMethod(ops), rows.dtype, rows.dtype, CPU)
    vocab_size, hidden_size = rows.shape
    embedding = VocabEmbedding("embedding", vocab_size, hidden_size, context)
    (target,) = embedding.weight_targets()
    target.load(StoredTensor(rows))
    config = msgspec.structs.replace(
        load_model_config(tiny_checkpoint()), vocab_size=vocab_size, hidden_size=hidden_size, tie_word_embeddings=True
    )
    return OutputLayer("output", embedding, config, context)


def test_logits_of_16_bits_are_written_to_the_callers_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = make_output_layer(torch.randn(48, 16, generator=generator).bfloat16())
    hidden = torch.randn(5, 16, generator=generator).bfloat16()
    out = torch.full((8, 48), torch.nan)
    logits = layer.forward(hidden)
    assert logits.dtype == torch.float32
    written = layer.forward(hidden, out[:5])
    assert written.data_ptr() == out.data_ptr()
    assert torch.equal(out[:5], logits)
    assert out[5:].isnan().all()
