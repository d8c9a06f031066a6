"""The backend of Triton kernels runs a model like the reference does, with plain weights and with packed ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.batch.forward_metadata import ForwardMetadata
from pagewire.gpu_executor.batch.kv_cache import KVCache
from pagewire.gpu_executor.kernels.layouts import LinearWeight, StackedWeight
from pagewire.gpu_executor.kernels.ops import Ops
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.models.base import Model
from pagewire.gpu_executor.models.llama import LlamaForCausalLM
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.weights import load_weights
from tests.support.sharded_model import ShardedModel
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf
from tests.support.weights import random_dense, random_int4

pytest.importorskip("triton")

from pagewire.gpu_executor.kernels.triton.packed_weight import PackedWeight
from pagewire.gpu_executor.kernels.triton.triton_ops import TritonOps

CPU = torch.device("cpu")
BLOCK_SIZE = 16


def triton_ops(*, is_batch_invariant: bool = False) -> TritonOps:
    return TritonOps(CPU, is_batch_invariant=is_batch_invariant, attention_backend="triton")


def load(path: Path, ops: Ops) -> LlamaForCausalLM:
    config = load_model_config(path)
    model = build_model(config, ops, dtype=torch.float32, device=CPU, max_model_len=64)
    load_weights(model, config)
    assert isinstance(model, LlamaForCausalLM)
    return model


def logits_of_a_prompt(path: Path, ops: Ops) -> Tensor:
    """Run one prompt of five tokens; return the logits of all, [5, vocab_size]."""
    return _logits_of_a_prompt(load(path, ops), ops)


def _logits_of_a_prompt(model: Model | ShardedModel, ops: Ops) -> Tensor:
    input_ids = torch.tensor([1, 7, 100, 7, 3])
    cache = KVCache(
        model.kv_cache_specs(), num_blocks=2, block_size=BLOCK_SIZE, dtype=torch.float32, device=CPU, ops=ops
    )
    for layer in cache.layers:
        layer.key.fill_(torch.nan)
        layer.value.fill_(torch.nan)
    positions = torch.arange(5)
    metadata = ForwardMetadata(
        positions=positions,
        slot_mapping=BLOCK_SIZE + positions,
        block_tables=torch.tensor([[1]], dtype=torch.int32),
        query_start_loc=torch.tensor([0, 5], dtype=torch.int32),
        seq_lens=torch.tensor([5], dtype=torch.int32),
        logits_indices=positions,
        block_size=BLOCK_SIZE,
        max_query_len=5,
        max_seq_len=5,
    )
    return model.compute_logits(model.forward(input_ids, metadata, cache.layers))


def assert_same_logits(expected: Tensor, actual: Tensor) -> None:
    spread = expected.std().item()
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4 * spread)


@pytest.mark.slow
@pytest.mark.parametrize("is_batch_invariant", [False, True])
def test_plain_model_gives_the_logits_of_the_reference(is_batch_invariant: bool) -> None:
    path = tiny_checkpoint()
    actual = logits_of_a_prompt(path, triton_ops(is_batch_invariant=is_batch_invariant))
    assert_same_logits(logits_of_a_prompt(path, ReferenceOps()), actual)


@pytest.mark.slow
def test_packed_model_gives_the_logits_of_the_weights_it_stands_for() -> None:
    path = tiny_gguf("llama", "Q4_K", value_quant="Q6_K", embedding_quant="Q8_0").path
    ops = triton_ops()
    layer = load(path, ops).layers[0].attention.qkv.weight
    assert isinstance(layer, StackedWeight)
    assert all(isinstance(part, PackedWeight) for part in layer.parts)
    expected, actual = logits_of_a_prompt(path, ReferenceOps()), logits_of_a_prompt(path, ops)
    # Scales of this type are rounded to fp16 when they become groups, on any backend that keeps them.
    torch.testing.assert_close(actual, expected, rtol=0, atol=0.05 * expected.std().item())


@pytest.mark.slow
@pytest.mark.parametrize(("tp", "divides_experts"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("is_packed", [False, True])
def test_mixture_gives_the_logits_of_the_reference(tp: int, divides_experts: bool, is_packed: bool) -> None:
    options = {"num_layers": 2, "num_experts": 5, "num_chosen_experts": 2}
    if is_packed:
        path = tiny_gguf("mixtral", "Q4_1", **options).path
    else:
        path = tiny_checkpoint("qwen3_moe", dense_layers=(1,), **options)
    model = ShardedModel(path, tp=tp, make_ops=triton_ops, max_model_len=64, divides_experts=divides_experts)
    assert_same_logits(logits_of_a_prompt(path, ReferenceOps()), _logits_of_a_prompt(model, triton_ops()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("weight", [random_dense(4, 32), random_int4(4, 32)])
def test_looked_up_rows_have_the_dtype_that_is_asked_for(weight: LinearWeight, dtype: torch.dtype) -> None:
    ops, ids = triton_ops(), torch.tensor([3, 0])
    rows = ops.embedding(ids, ops.prepare_weight(weight), dtype)
    assert rows.dtype == dtype
    torch.testing.assert_close(rows, ReferenceOps().embedding(ids, weight, dtype))


def test_rows_of_a_stack_can_not_be_looked_up() -> None:
    weight: LinearWeight = StackedWeight((random_int4(4, 32), random_int4(4, 32)))
    with pytest.raises(TypeError, match="StackedWeight"):
        triton_ops().embedding(torch.tensor([0]), weight, torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("is_packed", [False, True])
def test_ranks_and_stages_give_the_logits_of_the_whole_model(is_packed: bool) -> None:
    path = tiny_gguf("llama", "Q4_1").path if is_packed else tiny_checkpoint("llama", vocab_size=509)
    model = ShardedModel(path, tp=2, pp=2, make_ops=triton_ops, max_model_len=64)
    assert_same_logits(logits_of_a_prompt(path, ReferenceOps()), _logits_of_a_prompt(model, triton_ops()))
