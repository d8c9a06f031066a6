"""Linear products and embeddings over the canonical layouts."""

from __future__ import annotations

import torch
from torch import Tensor

from ..layouts import LinearWeight
from .dequantize import bias_of, dequantize, dequantize_rows

# Rows of one product. Matrix libraries pick another kernel, and with it another order of additions, for another number
# of rows (1, 2, 5 and 7 rows gave other bits than 16); at one fixed shape every row of the tile is treated alike.
# The matrix goes first: the output layer's product (49152 x 576) took 23 ms, as rows @ matrix.T 34 ms (MKL, 2 cores).
ROW_TILE = 16


def linear(x: Tensor, weight: LinearWeight) -> Tensor:
    """See `Ops.linear`. The product runs in tiles of `ROW_TILE` rows, the last one padded with zeros."""
    num_rows, in_features = x.shape
    padded_rows = -(-num_rows // ROW_TILE) * ROW_TILE
    values = x.float()
    if padded_rows != num_rows or not values.is_contiguous():
        values = torch.zeros(padded_rows, in_features, device=x.device)
        values[:num_rows] = x
    matrix = dequantize(weight)
    product = torch.empty(padded_rows, weight.out_features, device=x.device)
    for start in range(0, padded_rows, ROW_TILE):
        product[start : start + ROW_TILE] = torch.mm(matrix, values[start : start + ROW_TILE].t()).t()
    product = product[:num_rows]
    bias = bias_of(weight)
    if bias is not None:
        product += bias
    return product.to(x.dtype)


def embedding(input_ids: Tensor, weight: LinearWeight, dtype: torch.dtype) -> Tensor:
    """See `Ops.embedding`."""
    return dequantize_rows(weight, input_ids).to(dtype)
