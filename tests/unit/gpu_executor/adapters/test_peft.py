"""Logits of adapters beside those of `peft` on the same files, in every family, fp32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from pagewire.gpu_executor.kernels.select import select_ops
from tests.support.adapted_model import AdaptedModel
from tests.support.tiny_model import tiny_checkpoint
from tools.tiny_model.lora_writer import ALL_MODULES, write_adapter
from tools.tiny_model.spec import Family, TinyModelSpec

peft = pytest.importorskip("peft")

MAX_ERROR = 1e-4
FUSED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
CASES: list[tuple[Family, dict[str, Any]]] = [
    ("gemma2", {"modules": ALL_MODULES}),
    ("gemma3", {"modules": ALL_MODULES, "rank": 3}),
    ("granite", {"modules": ALL_MODULES}),
    ("llama", {"modules": ALL_MODULES}),
    ("llama", {"modules": ("q_proj", "v_proj"), "rank": 5, "config": {"use_rslora": True}}),
    ("llama", {"modules": ("k_proj", "down_proj"), "config": {"alpha_pattern": {"k_proj": 1, "0.mlp.down_proj": 3}}}),
    ("mistral", {"modules": ("gate_proj",), "rank": 20}),
    ("mixtral", {"modules": ("q_proj", "o_proj")}),
    ("phi3", {"modules": FUSED}),
    ("qwen2", {"modules": ALL_MODULES}),
    ("qwen3", {"modules": ("up_proj", "v_proj")}),
    ("qwen3_moe", {"modules": ("k_proj", "v_proj")}),
]


@pytest.mark.parametrize(("family", "options"), CASES)
@pytest.mark.parametrize("kernels", ["reference", "cpu"])
def test_logits_are_those_of_peft(tmp_path: Path, family: Family, options: dict[str, Any], kernels: str) -> None:
    path = tiny_checkpoint(family)
    adapter = write_adapter(TinyModelSpec(family=family), tmp_path, **options)
    ids = torch.randint(0, 500, (40,), generator=torch.Generator().manual_seed(0))
    theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        plain = theirs(ids[None]).logits[0]
        expected = peft.PeftModel.from_pretrained(theirs, str(adapter))(ids[None]).logits[0]
    ours = AdaptedModel(path, select_ops(kernels), [adapter])
    ours.hold([1])
    with torch.inference_mode():
        (logits,) = ours.run(ours.new_caches(1), [(0, 0, ids)])
    largest = expected.abs().max()
    assert (logits[:, : expected.shape[1]] - expected).abs().max() / largest < MAX_ERROR
    assert (plain - expected).abs().max() / largest > 100 * MAX_ERROR  # the adapter does something


def test_ranks_of_a_pattern_are_those_of_peft(tmp_path: Path) -> None:
    config = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=["q_proj", "down_proj"], rank_pattern={"down_proj": 7},
        init_lora_weights=False,
    )  # fmt: skip
    path = tiny_checkpoint("llama")
    theirs = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), config)
    theirs.save_pretrained(str(tmp_path))
    assert json.loads((tmp_path / "adapter_config.json").read_text())["rank_pattern"] == {"down_proj": 7}
    ids = torch.arange(30)
    with torch.inference_mode():
        expected = theirs(ids[None]).logits[0]
        ours = AdaptedModel(path, select_ops("reference"), [tmp_path])
        ours.hold([1])
        (logits,) = ours.run(ours.new_caches(1), [(0, 0, ids)])
    assert (logits - expected).abs().max() / expected.abs().max() < MAX_ERROR
