"""Linear layers as GPTQ and AWQ tools store them, and whole checkpoints of them, from the formats' descriptions.

No line is shared with what reads them, nor with `pagewire quantize`. Each layer comes with the values that it stands
for, in float64.

Source: the packing of AutoGPTQ, GPTQModel (whose second format does not subtract 1 from zero points) and AutoAWQ.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.stored_layers import StoredLayer

_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_ORDER_SEED = 5


def gptq(
    weight: Tensor,
    *,
    bits: int = 4,
    group_size: int | None = 32,
    is_symmetric: bool = True,
    zero_offset: int = 1,
    has_act_order: bool = False,
    has_group_index: bool = True,
) -> StoredLayer:
    """Write a GPTQ layer.

    Args:
        weight: [out_features, in_features].
        bits: of a code, 4 or 8.
        group_size: channels of a group; None: a row.
        is_symmetric: every zero point is half the range.
        zero_offset: what is subtracted from zero points: 1 or 0.
        has_act_order: give channels to groups at random.
        has_group_index: store `g_idx`.
    """
    in_features = weight.shape[1]
    group_of = np.arange(in_features) // (group_size or in_features)
    if has_act_order:
        group_of = np.random.default_rng(_ORDER_SEED).permutation(group_of)
    codes, scales, zeros = _round(weight, bits, group_of, is_symmetric)
    tensors = {
        "qweight": _words(codes, bits).t().contiguous(),
        "qzeros": _words(zeros.T, bits, subtracted=zero_offset),
        "scales": torch.from_numpy(scales).t().contiguous().half(),
    }
    if has_group_index:
        tensors["g_idx"] = torch.from_numpy(group_of).int()
    return StoredLayer(tensors, _values(codes, scales, zeros, group_of))


def awq(weight: Tensor, *, group_size: int | None = 32) -> StoredLayer:
    """Write an AWQ layer; arguments are those of `gptq`."""
    in_features = weight.shape[1]
    group_of = np.arange(in_features) // (group_size or in_features)
    codes, scales, zeros = _round(weight, 4, group_of, is_symmetric=False)
    tensors = {
        "qweight": _words(_awq_order(codes.T), 4),
        "qzeros": _words(_awq_order(zeros.T), 4),
        "scales": torch.from_numpy(scales).t().contiguous().half(),
    }
    return StoredLayer(tensors, _values(codes, scales, zeros, group_of))


def write_quantized(
    source: Path,
    directory: Path,
    write: Callable[[str, Tensor], StoredLayer | None],
    quantization_config: dict[str, object],
) -> tuple[Path, Path]:
    """Write a quantized checkpoint, and a plain one (float32) of the same weights.

    Args:
        source: a checkpoint of one file.
        directory: where both are put.
        write: of a module's name and matrix, gives what is stored of it; None: the matrix itself.
        quantization_config: goes into config.json.

    Returns:
        the directories of the quantized checkpoint and of the plain one.
    """
    quantized, plain = directory / "quantized", directory / "plain"
    stored: dict[str, Tensor] = {}
    values: dict[str, Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        module, _, part = name.rpartition(".")
        is_matrix = part == "weight" and tensor.ndim == 2 and "embed_tokens" not in module
        layer = write(module, tensor.float()) if is_matrix else None
        if layer is None:
            stored[name] = values[name] = tensor
            continue
        stored.update({f"{module}.{part}": member for part, member in layer.tensors.items()})
        values[name] = layer.values.float()
    config = json.loads((source / "config.json").read_text())
    for target, tensors, extra in (
        (quantized, stored, {"quantization_config": quantization_config}),
        (plain, values, {}),
    ):
        shutil.copytree(source, target)
        save_file(tensors, target / "model.safetensors")
        (target / "config.json").write_text(json.dumps(config | extra))
    return quantized, plain


def _round(
    weight: Tensor, bits: int, group_of: np.ndarray, is_symmetric: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes [rows, columns], scales (as float16 holds them) and zero points [rows, groups]."""
    numbers, top = weight.double().numpy(), 2**bits - 1
    num_groups = int(group_of.max()) + 1
    scales = np.zeros((len(numbers), num_groups))
    zeros = np.zeros((len(numbers), num_groups), dtype=np.int64)
    codes = np.zeros(numbers.shape, dtype=np.int64)
    for group in range(num_groups):
        members = numbers[:, group_of == group]
        least, most = members.min(axis=1).clip(max=0), members.max(axis=1).clip(min=0)
        if is_symmetric:
            most = np.maximum(-least, most)
            least = -most
        scale = ((most - least) / top).astype(np.float16).astype(np.float64)
        zero = np.full(len(numbers), 2 ** (bits - 1)) if is_symmetric else np.rint(-least / scale).clip(0, top)
        scales[:, group], zeros[:, group] = scale, zero
        codes[:, group_of == group] = np.rint(members / scale[:, None] + zero[:, None]).clip(0, top)
    return codes, scales, zeros


def _values(codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray, group_of: np.ndarray) -> Tensor:
    return torch.from_numpy(scales[:, group_of] * (codes - zeros[:, group_of]))


def _words(rows: np.ndarray, bits: int, subtracted: int = 0) -> Tensor:
    """Pack each row into int32, the first number in the lowest bits, and subtract from all of a word at once."""
    per_word = 32 // bits
    words = np.zeros((len(rows), rows.shape[1] // per_word), dtype=np.int64)
    for index in range(per_word):
        words += (rows[:, index::per_word] - subtracted) << (bits * index)
    return torch.from_numpy((words % 2**32).astype(np.uint32).view(np.int32))


def _awq_order(rows: np.ndarray) -> np.ndarray:
    """Put the output channels of each eight into the order of a word's bits."""
    return rows.reshape(len(rows), -1, 8)[:, :, _AWQ_ORDER].reshape(len(rows), -1)
