"""The native decoder over ranks and stages gives the bits of the blocks that are composed over a group.

Ranks are threads which share memory as the processes of a host do; their areas are so small that most steps take
several exchanges.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pagewire.gpu_executor.kernels.cpu.cpu_ops import CpuOps
from pagewire.gpu_executor.kernels.cpu.native_library import LibraryMissing, load_library
from pagewire.gpu_executor.kernels.ops import Ops
from pagewire.gpu_executor.quantize_checkpoint import main
from tests.support.batch_invariance import assert_bits_are_a_requests_own
from tests.support.model_outputs import error_of, greedy_ids, logits_of
from tests.support.paged import Chunk, nan_filled_cache, paged_step
from tests.support.sharded_model import ShardedModel
from tests.support.shared_ranks import SharedMemoryRanks
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    try:
        load_library()
    except LibraryMissing as exc:
        pytest.skip(str(exc))


@pytest.fixture(scope="module", params=[1, 2], ids="{} threads".format)
def make_ops(request: pytest.FixtureRequest) -> Callable[[], CpuOps]:
    return partial(CpuOps, request.param)


class ComposedOps(CpuOps):
    """The same kernels, op by op."""

    decoder = Ops.decoder


def int8_checkpoint(directory: Path) -> Path:
    source = tiny_checkpoint("llama", dtype="bfloat16", hidden_size=128, head_dim=32)
    assert main(["--to", "int8", "--out", str(directory / "packed"), str(source)]) == 0
    return directory / "packed"


PLAIN: dict[str, tuple[Any, dict[str, Any]]] = {  # Any: a family's name; fields of TinyModelSpec
    "llama": ("llama", {"attention_bias": True, "mlp_bias": True, "vocab_size": 509}),
    "qwen3, tied": ("qwen3", {"tie_word_embeddings": True}),
    # Blocks that are normed, or scaled, after the ranks' sum.
    "gemma2": ("gemma2", {"sliding_window": 24, "attention_soft_cap": 1.5}),
    "granite": ("granite", {"embedding_multiplier": 12.0, "residual_multiplier": 0.3}),
    # More experts than a token has, which 4 ranks can't divide evenly; a dense layer among the mixtures.
    "mixtral": ("mixtral", {"num_experts": 6, "num_chosen_experts": 2}),
    "qwen3_moe": (
        "qwen3_moe",
        {"num_layers": 3, "dense_layers": (1,), "num_experts": 9, "num_chosen_experts": 3},
    ),
}


def checkpoint(name: str, directory: Path) -> Path:
    if name == "int8":
        return int8_checkpoint(directory)
    if name.startswith("Q"):
        return tiny_gguf("llama", name, hidden_size=256, head_dim=64).path
    family, options = PLAIN[name]
    return tiny_checkpoint(family, **options)


def answers(model: ShardedModel) -> tuple[Tensor, list[list[int]]]:
    return logits_of(model), greedy_ids(model)


@pytest.mark.parametrize("layout", [(1, 1), (2, 1), (4, 1), (2, 2)], ids="{0[0]} ranks, {0[1]} stages".format)
@pytest.mark.parametrize("name", [*PLAIN, "Q4_1", "Q8_0", "int8"])
def test_ranks_and_stages_give_the_bits_of_composed_blocks(
    make_ops: Callable[[], CpuOps], name: str, layout: tuple[int, int], tmp_path: Path
) -> None:
    path, (tp, pp) = checkpoint(name, tmp_path), layout
    dtype = torch.float32 if name in PLAIN else None
    composed = ShardedModel(path, tp=tp, pp=pp, make_ops=partial(ComposedOps, 1), dtype=dtype)
    native = ShardedModel(path, tp=tp, pp=pp, make_ops=make_ops, make_ranks=SharedMemoryRanks, dtype=dtype)
    (expected, expected_ids), (logits, ids) = answers(composed), answers(native)
    assert expected.std() > 0.05
    assert torch.equal(logits, expected)
    assert ids == expected_ids


@pytest.mark.parametrize("name", PLAIN)
def test_ranks_agree_with_one(make_ops: Callable[[], CpuOps], name: str, tmp_path: Path) -> None:
    path = checkpoint(name, tmp_path)
    whole = ShardedModel(path, make_ops=make_ops)
    native = ShardedModel(path, tp=2, make_ops=make_ops, make_ranks=SharedMemoryRanks)
    assert error_of(logits_of(native), logits_of(whole)) < 1e-5
    assert greedy_ids(native) == greedy_ids(whole)


def test_nine_heads_are_divided_by_three(make_ops: Callable[[], CpuOps]) -> None:
    path = tiny_checkpoint("llama", num_heads=9, num_kv_heads=3, head_dim=8, hidden_size=72, intermediate_size=96)
    whole = ShardedModel(path, make_ops=make_ops)
    composed = ShardedModel(path, tp=3, make_ops=partial(ComposedOps, 1))
    native = ShardedModel(path, tp=3, make_ops=make_ops, make_ranks=SharedMemoryRanks)
    logits = logits_of(native)
    assert torch.equal(logits, logits_of(composed))
    assert error_of(logits, logits_of(whole)) < 1e-5


@pytest.mark.parametrize("quant", ["Q4_1", "Q8_0"])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_packed_experts_that_ranks_divide_give_the_bits_of_composed_blocks(
    make_ops: Callable[[], CpuOps], quant: str, tp: int
) -> None:
    sizes = {"hidden_size": 256, "head_dim": 64, "expert_size": 96, "num_experts": 6, "num_chosen_experts": 2}
    path = tiny_gguf("mixtral", quant, **sizes).path
    composed = ShardedModel(path, tp=tp, make_ops=partial(ComposedOps, 1), dtype=None, divides_experts=True)
    native = ShardedModel(
        path, tp=tp, make_ops=make_ops, make_ranks=SharedMemoryRanks, dtype=None, divides_experts=True
    )
    (expected, expected_ids), (logits, ids) = answers(composed), answers(native)
    assert torch.equal(logits, expected)
    assert ids == expected_ids


@pytest.mark.parametrize("name", ["llama", "gemma2", "Q4_1"])
def test_stages_that_follow_each_other_give_the_bits_of_the_whole(
    make_ops: Callable[[], CpuOps], name: str, tmp_path: Path
) -> None:
    path = checkpoint(name, tmp_path)
    whole, stages = (ShardedModel(path, pp=pp, make_ops=make_ops, dtype=None) for pp in (1, 2))
    assert torch.equal(logits_of(stages), logits_of(whole))
    assert greedy_ids(stages) == greedy_ids(whole)


@pytest.mark.parametrize("name", ["llama", "gemma2", "Q4_1", "qwen3_moe"])
def test_a_tokens_bits_are_its_own_within_a_layout(make_ops: Callable[[], CpuOps], name: str, tmp_path: Path) -> None:
    path = checkpoint(name, tmp_path)
    model = ShardedModel(path, tp=2, pp=2, make_ops=make_ops, make_ranks=SharedMemoryRanks, dtype=None)
    assert_bits_are_a_requests_own(model, torch.float16)


def test_a_stage_leaves_the_stream_that_it_is_given(make_ops: Callable[[], CpuOps]) -> None:
    model = ShardedModel(tiny_checkpoint("llama"), pp=2, make_ops=make_ops).stages[1][0]
    stream = torch.randn(3, 64)
    kept = stream.clone()
    caches = [nan_filled_cache(spec, 2) for spec in model.kv_cache_specs()]
    model.forward(torch.zeros(3, dtype=torch.int64), paged_step([Chunk([1], 0, 3)]), caches, stream)
    assert torch.equal(stream, kept)
