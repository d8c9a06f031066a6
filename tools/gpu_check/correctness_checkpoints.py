"""Quantized checkpoints from their files to logits: those of the device beside those of the reference on the host.

A tiny model is rounded as `pagewire quantize` does it, loaded twice, and run over one prompt. What is compared is the
way through loaders, layouts and all kernels at once; single kernels are compared at the sizes of real models.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.batch.kv_cache import KVCache
from pagewire.gpu_executor.kernels.ops import Ops
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.quantize_checkpoint import main as quantize
from pagewire.gpu_executor.weights import load_weights
from tools.gpu_check.comparison import Case
from tools.gpu_check.inputs import BLOCK_SIZE, Chunk, moved, paged
from tools.gpu_check.setting import Setting
from tools.tiny_model.hugging_face import write_hugging_face
from tools.tiny_model.spec import TinyModelSpec

_PROMPT_TOKENS = 9
# Two layers round each number some dozen times, and what is rounded goes through products and softmaxes again.
_ROUNDED_OFTEN = 30.0

# Numbers that are exact in what a device computes in; rows of several groups of 128.
_LLAMA = TinyModelSpec(hidden_size=256, num_heads=4, num_kv_heads=2, head_dim=64, vocab_size=512, dtype="float16")
# Soft caps, a window that cuts, norms after blocks and with float32 weights, GELU.
_GEMMA = msgspec.structs.replace(
    _LLAMA, family="gemma2", sliding_window=5, attention_soft_cap=3.0, logit_soft_cap=5.0, tie_word_embeddings=True
)


class CheckpointKind(NamedTuple):
    """A checkpoint that is run.

    Attributes:
        options: of `pagewire quantize`; none: as it was written.
        spec: the model.
    """

    options: tuple[str, ...] = ()
    spec: TinyModelSpec = _LLAMA


CHECKPOINTS = {
    "plain": CheckpointKind(),
    "plain gemma2": CheckpointKind(spec=_GEMMA),
    "compressed-tensors, 4 bits": CheckpointKind(("--to", "int4")),
    "compressed-tensors, 4 bits without zero points": CheckpointKind(("--to", "int4", "--symmetric")),
    "gptq, 4 bits in groups of 128": CheckpointKind(("--to", "int4", "--format", "gptq", "--group-size", "128")),
    "compressed-tensors, 8 bits": CheckpointKind(("--to", "int8")),
    "compressed-tensors, fp8": CheckpointKind(("--to", "fp8")),
}
"""What is run, by name."""


def checkpoint_cases(ops: Ops, setting: Setting, dtype: torch.dtype) -> Iterator[Case]:
    """Yield a comparison for each checkpoint.

    Args:
        ops: on the device.
        setting: where to write, and the device.
        dtype: that the device's model computes in.
    """
    for name, kind in CHECKPOINTS.items():
        yield Case("checkpoint", name, _ROUNDED_OFTEN, partial(_logits_of_both, ops, setting, dtype, kind))


def _logits_of_both(ops: Ops, setting: Setting, dtype: torch.dtype, kind: CheckpointKind) -> tuple[Tensor, Tensor]:
    path = _write(setting.directory / f"tiny-{kind.spec.family}{'-'.join(kind.options)}", kind)
    return (
        _logits(path, ops, dtype, torch.device(setting.device)),
        _logits(path, ReferenceOps(), torch.float32, torch.device("cpu")),
    )


def _write(directory: Path, kind: CheckpointKind) -> Path:
    plain = directory / "plain"
    write_hugging_face(kind.spec, plain)
    if not kind.options:
        return plain
    with contextlib.redirect_stdout(io.StringIO()):
        code = quantize([str(plain), "--out", str(directory / "packed"), *kind.options])
    assert code == 0, "the tiny model can't be quantized"
    return directory / "packed"


@torch.inference_mode()
def _logits(path: Path, ops: Ops, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Load a checkpoint and return the logits of all tokens of a prompt."""
    config = load_model_config(path)
    model = build_model(config, ops, dtype=dtype, device=device, max_model_len=64)
    load_weights(model, config)
    memory = paged([Chunk(_PROMPT_TOKENS, _PROMPT_TOKENS)])
    cache = KVCache(
        model.kv_cache_specs(),
        num_blocks=memory.num_blocks,
        block_size=BLOCK_SIZE,
        dtype=dtype,
        device=device,
        ops=ops,
    )
    input_ids = torch.arange(_PROMPT_TOKENS, device=device) * 31 % config.vocab_size
    hidden = model.forward(input_ids, moved(memory.step, device), cache.layers)
    return model.compute_logits(hidden)
