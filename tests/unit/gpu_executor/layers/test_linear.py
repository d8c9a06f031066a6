from __future__ import annotations

import torch

from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.layers.build_context import BuildContext
from pagewire.gpu_executor.layers.linear import FusedLinear, Shard
from pagewire.gpu_executor.quantization.dense import DenseMethod


class StoredTensor:
    """A checkpoint tensor in memory."""

    def __init__(self, name: str, values: torch.Tensor) -> None:
        self.name = name
        self.source = name
        self.shape = tuple(values.shape)
        self._values = values

    def copy_to(self, destination: torch.Tensor) -> None:
        destination.copy_(self._values)


def test_shards_fill_their_own_rows_whatever_order_they_come_in() -> None:
    ops = select_ops("reference")
    context = BuildContext(ops, DenseMethod(ops), torch.float32, torch.float32, torch.device("cpu"))
    shards = (Shard("q_proj", 6), Shard("k_proj", 2), Shard("v_proj", 2))
    layer = FusedLinear("attn", shards, 8, has_bias=True, context=context)
    generator = torch.Generator().manual_seed(0)
    stored = {target.name: torch.randn(target.shape, generator=generator) for target in layer.weight_targets()}
    for target in reversed(list(layer.weight_targets())):
        target.load(StoredTensor(target.name, stored[target.name]))
    x = torch.randn(3, 8, generator=generator)
    expected = [x @ stored[f"attn.{s.shard_id}.weight"].T + stored[f"attn.{s.shard_id}.bias"] for s in shards]
    torch.testing.assert_close(layer.forward(x), torch.cat(expected, dim=1))
