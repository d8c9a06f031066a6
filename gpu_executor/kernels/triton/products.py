"""Which product computes what: torch's for dense weights, our own for quantized ones and where batches must not show.

Under --batch-invariant every product is one of fixed tiles, and is launched as for `INVARIANT_ROWS` rows, in blocks of
rows that only bound the memory of split sums. Otherwise a quantized weight is unpacked for large products, some rows of
it at a time, and torch multiplies. Where a weight's columns are in another order than the input channels, activations
are brought into that order first: a copy of few kilobytes a row, beside a product's whole matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ..layouts import DenseWeight, Fp8Weight, Int4Weight, Int8Weight, LinearWeight, StackedWeight
from .dense_matmul import dense_matmul
from .dequantize import dequantize
from .launches.products import INVARIANT_BLOCK, INVARIANT_ROWS, UNPACK_NUMBERS, UNPACK_ROWS
from .packed_weight import PackedWeight, pack_fp8, pack_int4, pack_int8
from .quantized_matmul import quantized_matmul


def prepare_weight(weight: LinearWeight, device: torch.device) -> LinearWeight:
    """Bring a weight to the device, in the order in which products read it.

    Args:
        weight: in any canonical layout, anywhere; one that is prepared is returned as it is.
        device: where the products run.

    Raises:
        TypeError: the layout is unknown here.
    """
    match weight:
        case PackedWeight():
            return weight
        case StackedWeight():
            return StackedWeight(_share_permutations([prepare_weight(part, device) for part in weight.parts]))
        case DenseWeight():
            # torch adds a bias of the product's dtype.
            bias = None if weight.bias is None else weight.bias.to(device, weight.weight.dtype)
            return DenseWeight(weight.weight.to(device), bias)
        case Int4Weight():
            return pack_int4(
                replace(
                    weight,
                    codes=weight.codes.to(device),
                    scale=weight.scale.to(device),
                    minimum=weight.minimum.to(device),
                    bias=_move(weight.bias, device),
                    permutation=_move(weight.permutation, device),
                )
            )
        case Int8Weight():
            return pack_int8(
                replace(
                    weight,
                    codes=weight.codes.to(device),
                    scale=weight.scale.to(device),
                    minimum=_move(weight.minimum, device),
                    bias=_move(weight.bias, device),
                    permutation=_move(weight.permutation, device),
                )
            )
        case Fp8Weight():
            return pack_fp8(
                replace(
                    weight,
                    codes=weight.codes.to(device),
                    scale=weight.scale.to(device),
                    bias=_move(weight.bias, device),
                )
            )
    raise TypeError(f"the Triton kernels don't know the layout {type(weight).__name__}")


def multiply(x: Tensor, weight: LinearWeight, *, is_batch_invariant: bool) -> Tensor:
    """Multiply each row by a weight matrix and add its bias; see `Ops.linear`.

    Args:
        x: [num_rows, in_features], float16, bfloat16 or float32.
        weight: as `prepare_weight` gave it.
        is_batch_invariant: a row's bits must not depend on the number of rows.

    Returns:
        [num_rows, out_features], x's dtype.
    """
    if isinstance(weight, DenseWeight) and not is_batch_invariant:
        return F.linear(x, weight.weight, weight.bias)
    if x.stride(1) != 1:
        x = x.contiguous()
    out = torch.empty(x.shape[0], weight.out_features, dtype=x.dtype, device=x.device)
    first = 0
    permutation, rows = None, x
    for part in weight.parts if isinstance(weight, StackedWeight) else (weight,):
        columns = out[:, first : first + part.out_features]
        wanted = part.permutation if isinstance(part, PackedWeight) else None
        if wanted is not permutation:
            permutation, rows = wanted, x if wanted is None else x.index_select(1, wanted)
        if is_batch_invariant:
            _multiply_in_fixed_tiles(rows, part, columns)
        else:
            _multiply(rows, part, columns)
        first += part.out_features
    return out


def _share_permutations(parts: Sequence[LinearWeight]) -> tuple[LinearWeight, ...]:
    """Give parts that take channels in the same order one tensor of it, so that `multiply` gathers for all at once."""
    shared: list[LinearWeight] = []
    known: Tensor | None = None
    for part in parts:
        if isinstance(part, PackedWeight) and part.permutation is not None:
            if known is not None and torch.equal(known, part.permutation):
                part = replace(part, permutation=known)
            known = part.permutation
        shared.append(part)
    return tuple(shared)


def _multiply(x: Tensor, weight: LinearWeight, out: Tensor) -> None:
    match weight:
        case DenseWeight():
            _multiply_dense(x, weight.weight, weight.bias, out)
        case PackedWeight() if x.shape[0] <= UNPACK_ROWS:
            quantized_matmul(x, weight, out)
        case PackedWeight():
            _multiply_unpacked(x, weight, out)
        case _:
            raise TypeError(f"a {type(weight).__name__} was not prepared for the Triton kernels")


def _multiply_unpacked(x: Tensor, weight: PackedWeight, out: Tensor) -> None:
    step = max(1, UNPACK_NUMBERS // weight.in_features)
    bias = None if weight.bias is None else weight.bias.to(x.dtype)
    for first in range(0, weight.out_features, step):
        last = min(first + step, weight.out_features)
        matrix = dequantize(weight, first, last - first, x.dtype)
        _multiply_dense(x, matrix, None if bias is None else bias[first:last], out[:, first:last])


def _multiply_dense(x: Tensor, matrix: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Multiply straight into some columns of a result, which `F.linear` can't."""
    if bias is None:
        torch.mm(x, matrix.t(), out=out)
    else:
        torch.addmm(bias, x, matrix.t(), out=out)  # one rounding: the bias is added before


def _multiply_in_fixed_tiles(x: Tensor, weight: LinearWeight, out: Tensor) -> None:
    for first in range(0, x.shape[0], INVARIANT_BLOCK):
        rows, rows_out = x[first : first + INVARIANT_BLOCK], out[first : first + INVARIANT_BLOCK]
        match weight:
            case DenseWeight():
                dense_matmul(rows, weight.weight, weight.bias, rows_out)
            case PackedWeight():
                quantized_matmul(rows, weight, rows_out, num_rows_as=INVARIANT_ROWS)
            case _:
                raise TypeError(f"a {type(weight).__name__} was not prepared for the Triton kernels")


def _move(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    return None if tensor is None else tensor.to(device)
