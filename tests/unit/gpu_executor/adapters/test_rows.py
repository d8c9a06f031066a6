"""Rows keep their bits whoever shares their steps: with an adapter, with another one, or with none."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from pagewire.gpu_executor.kernels.select import select_ops
from tests.support.adapted_model import AdaptedModel
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf
from tools.tiny_model.lora_writer import write_adapter
from tools.tiny_model.spec import TinyModelSpec

LENGTHS = [40, 17, 90, 1, 33]
ADAPTERS = [0, 1, 2, 1, 0]


def checkpoint(form: str, tmp_path: Path) -> tuple[Path, TinyModelSpec]:
    if form == "int4":
        return tiny_gguf("llama", "Q4_K").path, TinyModelSpec(hidden_size=256, head_dim=64)
    return tiny_checkpoint("llama", dtype=form), TinyModelSpec()


@pytest.mark.parametrize("kernels", ["reference", "cpu"])
@pytest.mark.parametrize("form", ["float32", "bfloat16", "int4"])
def test_rows_have_the_same_bits_alone_and_in_any_batch(tmp_path: Path, kernels: str, form: str) -> None:
    path, spec = checkpoint(form, tmp_path)
    adapters = [write_adapter(spec, tmp_path / str(seed), seed=seed, rank=4 + seed) for seed in (1, 2)]
    dtype = None if kernels == "cpu" else torch.float32
    model = AdaptedModel(path, select_ops(kernels), adapters, dtype=dtype)
    model.hold(ADAPTERS)
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, 500, (length,), generator=generator) for length in LENGTHS]
    with torch.inference_mode():
        alone = [model.run(model.new_caches(5), [(row, 0, prompts[row])])[0] for row in range(5)]
        rng, caches, done = random.Random(1), model.new_caches(5), [0] * 5
        while done != LENGTHS:
            waiting = [row for row in range(5) if done[row] < LENGTHS[row]]
            chosen = rng.sample(waiting, rng.randint(1, len(waiting)))
            parts = [(row, done[row], prompts[row][done[row] : done[row] + rng.randint(1, 20)]) for row in chosen]
            for (row, start, ids), logits in zip(parts, model.run(caches, parts), strict=True):
                assert torch.equal(logits, alone[row][start : start + len(ids)])
                done[row] += len(ids)
        # Without adapters in the model at all.
        plain = AdaptedModel(path, select_ops(kernels), dtype=dtype)
        (logits,) = plain.run(plain.new_caches(1), [(0, 0, prompts[0])])
        assert torch.equal(logits, alone[0])
        (other,) = plain.run(plain.new_caches(1), [(0, 0, prompts[1])])
        assert not torch.equal(other, alone[1])
