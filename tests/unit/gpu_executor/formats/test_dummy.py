"""Random weights: of the right shapes, the same each time, and of sizes that keep logits finite."""

from __future__ import annotations

import pytest
import torch

from pagewire.gpu_executor.formats.dummy import dummy_tensors
from pagewire.gpu_executor.kernels.layouts import DenseWeight


def read(name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    (tensor,) = dummy_tensors([(name, shape)], dtype)
    destination = torch.full(shape, torch.nan, dtype=dtype)
    tensor.copy_to(destination)
    return destination


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_matrix_keeps_the_variance_of_what_it_multiplies(dtype: torch.dtype) -> None:
    weight = read("model.layers.0.mlp.down_proj.weight", (300, 400), dtype).double()
    assert weight.isfinite().all()
    assert weight.std().item() == pytest.approx(400**-0.5, rel=0.02)


def test_no_two_rows_are_alike_though_numbers_are_repeated() -> None:
    weight = read("lm_head.weight", (2200, 1024))  # more than are drawn
    assert len({tuple(row) for row in weight[:, :8].tolist()}) == 2200


def test_norms_multiply_by_one_and_biases_are_small() -> None:
    assert (read("model.norm.weight", (64,)) == 1).all()
    bias = read("model.layers.0.self_attn.q_proj.bias", (64,))
    assert 0 < bias.abs().max() <= 0.02


def test_equal_names_give_equal_numbers_and_others_do_not() -> None:
    first = read("a.weight", (8, 8))
    assert torch.equal(first, read("a.weight", (8, 8)))
    assert not torch.equal(first, read("b.weight", (8, 8)))


def test_a_matrix_is_read_dense_in_the_dtype_that_is_wanted() -> None:
    (tensor,) = dummy_tensors([("a.weight", (6, 4))], torch.bfloat16)
    weight = tensor.read_matrix(None)
    assert isinstance(weight, DenseWeight)
    assert (weight.weight.dtype, tuple(weight.weight.shape)) == (torch.bfloat16, (6, 4))
    assert tensor.read_matrix(torch.float16).weight.dtype == torch.float16  # type: ignore[attr-defined]
    assert (tensor.matrix_bytes(None), tensor.matrix_bytes(torch.float32)) == (48, 96)
