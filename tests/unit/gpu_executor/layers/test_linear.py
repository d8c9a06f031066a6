from __future__ import annotations

import pytest
import torch

from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.layers.build_context import BuildContext
from pagewire.gpu_executor.layers.linear import FusedLinear, RowParallelLinear, Shard
from pagewire.gpu_executor.parallel.share import WHOLE, Share
from pagewire.gpu_executor.quantization.dense import DenseMethod
from tests.support.memory_tensor import load_target


def make_context(share: Share = WHOLE) -> BuildContext:
    ops = select_ops("reference")
    return BuildContext(ops, DenseMethod(ops), torch.float32, torch.float32, torch.device("cpu"), share)


def test_shards_fill_their_own_rows_whatever_order_they_come_in() -> None:
    shards = (Shard("q_proj", 6), Shard("k_proj", 2), Shard("v_proj", 2))
    layer = FusedLinear("attn", shards, 8, has_bias=True, context=make_context())
    generator = torch.Generator().manual_seed(0)
    stored = {target.name: torch.randn(target.shape, generator=generator) for target in layer.weight_targets()}
    for target in reversed(list(layer.weight_targets())):
        load_target(target, stored[target.name])
    x = torch.randn(3, 8, generator=generator)
    expected = [x @ stored[f"attn.{s.shard_id}.weight"].T + stored[f"attn.{s.shard_id}.bias"] for s in shards]
    torch.testing.assert_close(layer.forward(x), torch.cat(expected, dim=1))


def test_a_ranks_runs_of_rows_become_neighbours() -> None:
    runs = (range(2, 4), range(6, 7), range(8, 10))
    layer = FusedLinear(
        "attn", (Shard("a", 4, (range(1),)), Shard("qkv", 10, runs)), 8, has_bias=True, context=make_context()
    )
    generator = torch.Generator().manual_seed(0)
    stored = {target.name: torch.randn(target.shape, generator=generator) for target in layer.weight_targets()}
    for target in layer.weight_targets():
        load_target(target, stored[target.name])
    x = torch.randn(3, 8, generator=generator)
    whole = [x @ stored[f"attn.{name}.weight"].T + stored[f"attn.{name}.bias"] for name in ("a", "qkv")]
    expected = torch.cat([whole[0][:, :1], whole[1][:, [2, 3, 6, 8, 9]]], dim=1)
    torch.testing.assert_close(layer.forward(x), expected)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_parts_of_the_input_channels_give_summands_of_which_the_first_has_the_bias(size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    matrix, bias, x = (torch.randn(*shape, generator=generator) for shape in ((6, 8), (6,), (3, 8)))
    total = torch.zeros(3, 6)
    for rank in range(size):
        context = make_context(Share(rank, size))
        layer = RowParallelLinear("attn", "o_proj", 6, 8, has_bias=True, context=context)
        of_weight, of_bias = layer.weight_targets()
        assert (of_weight.name, of_bias.name) == ("attn.o_proj.weight", "attn.o_proj.bias")
        assert of_bias.is_elsewhere == (rank > 0)
        load_target(of_weight, matrix)
        load_target(of_bias, bias)
        columns = x[:, rank * 8 // size : (rank + 1) * 8 // size]
        total += context.ops.linear(columns, layer.weight)
    torch.testing.assert_close(total, x @ matrix.T + bias)


def test_what_another_stage_holds_is_a_target_and_takes_no_memory() -> None:
    context = make_context().elsewhere()
    for layer in (
        FusedLinear("mlp", (Shard("gate_proj", 6),), 8, has_bias=True, context=context),
        RowParallelLinear("mlp", "down_proj", 6, 8, has_bias=True, context=context),
    ):
        targets = list(layer.weight_targets())
        assert [target.shape for target in targets] == [(6, 8), (6,)]
        assert all(target.is_elsewhere for target in targets)
