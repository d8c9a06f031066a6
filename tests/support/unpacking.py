"""Quantized layers back to float64, by the formats' public descriptions: shares no code with the readers and writers.

Bits are taken apart one by one with numpy.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]


def unpack_layer(tensors: Tensors, module: str, quantization: Mapping[str, object]) -> Tensor:
    """Return [out_features, in_features] float64 of a layer.

    Args:
        tensors: of the checkpoint.
        module: the layer's name.
        quantization: quantization_config of config.json.
    """
    if quantization["quant_method"] == "gptq":
        return _unpack_gptq(tensors, module, int(str(quantization["bits"])))
    if quantization["format"] == "float-quantized":
        return tensors[f"{module}.weight"].double() * tensors[f"{module}.weight_scale"].double()
    groups = quantization["config_groups"]
    assert isinstance(groups, Mapping)
    return _unpack_words(tensors, module, groups["group_0"]["weights"]["num_bits"])


def _unpack_words(tensors: Tensors, module: str, bits: int) -> Tensor:
    rows, columns = (int(size) for size in tensors[f"{module}.weight_shape"])
    codes = _fields(tensors[f"{module}.weight_packed"], bits)[:, :columns]
    scale = tensors[f"{module}.weight_scale"].double().numpy()
    zero = np.full(scale.shape, 2 ** (bits - 1))
    if f"{module}.weight_zero_point" in tensors:
        zero = _fields(tensors[f"{module}.weight_zero_point"].t(), bits).T[:rows]
    per_group = columns // scale.shape[1]
    return torch.from_numpy((codes - zero.repeat(per_group, 1)) * scale.repeat(per_group, 1))


def _unpack_gptq(tensors: Tensors, module: str, bits: int) -> Tensor:
    codes = _fields(tensors[f"{module}.qweight"].t(), bits)
    zero = _fields(tensors[f"{module}.qzeros"], bits).T + 1
    scale = tensors[f"{module}.scales"].t().double().numpy()
    group = tensors[f"{module}.g_idx"].numpy()
    return torch.from_numpy((codes - zero[:, group]) * scale[:, group])


def _fields(words: Tensor, bits: int) -> np.ndarray:
    """Return the fields of each word, the lowest bits first, a word's beside each other."""
    numbers = words.contiguous().numpy().view(np.uint32).astype(np.int64)
    fields = [numbers >> shift & (2**bits - 1) for shift in range(0, 32, bits)]
    return np.stack(fields, axis=2).reshape(numbers.shape[0], -1)
