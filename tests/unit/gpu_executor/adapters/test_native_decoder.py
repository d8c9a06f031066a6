"""Steps with adapters as one native call: the bits are those of the small ops, one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.kernels.cpu.cpu_ops import CpuOps
from pagewire.gpu_executor.kernels.ops import Ops
from tests.support.adapted_model import AdaptedModel
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf
from tools.tiny_model.lora_writer import ALL_MODULES, write_adapter
from tools.tiny_model.spec import Family, TinyModelSpec

LENGTHS = [30, 1, 12, 70]


class OpByOp(CpuOps):
    """The same kernels, each called by itself."""

    decoder = Ops.decoder


@pytest.mark.parametrize(
    ("family", "form", "modules"),
    [
        ("gemma2", "float32", ALL_MODULES),
        ("granite", "bfloat16", ALL_MODULES),
        ("llama", "float32", ("q_proj", "down_proj")),
        ("llama", "bfloat16", ("v_proj", "gate_proj")),
        ("llama", "Q4_K", ALL_MODULES),
        ("llama", "Q6_K", ("o_proj", "up_proj")),
        ("mixtral", "float32", ("q_proj", "o_proj")),
        ("phi3", "float32", ("qkv_proj", "gate_up_proj")),
    ],
)
@pytest.mark.parametrize("adapter_ids", [(1, 0, 2, 1), (1, 1, 1, 1), (0, 0, 0, 2)])
def test_a_native_step_has_the_bits_of_its_ops(
    tmp_path: Path, family: Family, form: str, modules: tuple[str, ...], adapter_ids: tuple[int, ...]
) -> None:
    if form in ("float32", "bfloat16"):
        path, spec = tiny_checkpoint(family, dtype=form), TinyModelSpec(family=family)
    else:
        path, spec = tiny_gguf(family, form).path, TinyModelSpec(family=family, hidden_size=256, head_dim=64)
    adapters = [
        write_adapter(spec, tmp_path / "all", seed=1, rank=20, modules=(*ALL_MODULES, "qkv_proj", "gate_up_proj")),
        write_adapter(spec, tmp_path / "some", seed=2, rank=3, modules=modules),
    ]
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, 500, (length,), generator=generator) for length in LENGTHS]

    def run(ops: Ops) -> list[Tensor]:
        model = AdaptedModel(path, ops, adapters, dtype=None)
        model.hold(adapter_ids)
        caches = model.new_caches(len(LENGTHS))
        logits = model.run(caches, [(row, 0, ids[:-3] if len(ids) > 3 else ids) for row, ids in enumerate(prompts)])
        return logits + model.run(
            caches, [(row, len(ids) - 3, ids[-3:]) for row, ids in enumerate(prompts) if row != 1]
        )

    with torch.inference_mode():
        for native, expected in zip(run(CpuOps(2)), run(OpByOp(2)), strict=True):
            assert torch.equal(native, expected)


def test_what_is_made_of_an_adapter_goes_with_it(tmp_path: Path) -> None:
    ops = CpuOps(1)
    model = AdaptedModel(tiny_checkpoint(), ops, [write_adapter(TinyModelSpec(), tmp_path)])
    model.hold([1])
    with torch.inference_mode():
        caches = model.new_caches(1)
        model.run(caches, [(0, 0, torch.arange(5))])
        (decoder,) = ops._decoders.values()  # it tells nobody what it keeps
        assert len(decoder._changes) == 1
        model.store.unload(1)
        model.hold([0])
        model.run(caches, [(0, 5, torch.arange(5))])
    assert len(decoder._changes) == 0
