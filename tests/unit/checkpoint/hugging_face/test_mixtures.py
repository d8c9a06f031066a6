"""Mixtures of experts as config.json states them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pagewire.checkpoint.hugging_face.mixtures import mixtral_mixture, no_mixture, qwen3_mixture
from pagewire.checkpoint.json_reader import JSONReader
from pagewire.ipc.errors import ConfigError


def reader(**keys: Any) -> JSONReader:  # Any: JSON values
    return JSONReader(Path("config.json"), keys)


def test_every_layer_of_mixtral_has_experts_of_the_stated_size():
    mixture = mixtral_mixture(reader(intermediate_size=96, num_local_experts=4, num_experts_per_tok=3), 5)
    assert mixture is not None
    assert mixture.layers == (0, 1, 2, 3, 4)
    assert (mixture.num_experts, mixture.num_chosen, mixture.intermediate_size) == (4, 3, 96)
    assert mixture.is_renormalized


def test_absent_keys_are_mixtrals_own():
    mixture = mixtral_mixture(reader(intermediate_size=96), 1)
    assert mixture is not None
    assert (mixture.num_experts, mixture.num_chosen) == (8, 2)


@pytest.mark.parametrize(
    ("keys", "layers"),
    [
        ({}, (0, 1, 2, 3, 4, 5)),
        ({"decoder_sparse_step": 2}, (1, 3, 5)),
        ({"mlp_only_layers": [0, 3]}, (1, 2, 4, 5)),
        ({"decoder_sparse_step": 3, "mlp_only_layers": [2]}, (5,)),
    ],
)
def test_qwen3_may_keep_layers_dense(keys: dict[str, Any], layers: tuple[int, ...]):
    shape = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "norm_topk_prob": True}
    mixture = qwen3_mixture(reader(**shape, **keys), 6)
    assert mixture is not None
    assert mixture.layers == layers
    assert (mixture.num_experts, mixture.num_chosen, mixture.intermediate_size) == (6, 3, 48)
    assert mixture.is_renormalized


def test_a_model_whose_layers_are_all_dense_has_no_mixture():
    assert qwen3_mixture(reader(mlp_only_layers=[0, 1]), 2) is None
    assert no_mixture(reader(), 2) is None


def test_more_chosen_experts_than_there_are_is_a_fault_of_the_file():
    with pytest.raises(ConfigError, match="num_experts_per_tok is 9, of 8 experts"):
        mixtral_mixture(reader(intermediate_size=96, num_experts_per_tok=9), 2)


def test_a_dense_layer_beyond_the_last_is_a_fault_of_the_file():
    with pytest.raises(ConfigError, match="mlp_only_layers must be a list of indices from 0 to 1, has 2"):
        qwen3_mixture(reader(mlp_only_layers=[2]), 2)


def test_experts_that_all_tokens_share_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"shared_expert_intermediate_size.*all tokens share are not supported"):
        qwen3_mixture(reader(shared_expert_intermediate_size=64), 2)
    assert mixtral_mixture(reader(intermediate_size=96, n_shared_experts=0), 1) is not None


def test_more_experts_than_any_model_has_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"num_local_experts.*1000000000; at most 10000"):
        mixtral_mixture(reader(intermediate_size=96, num_local_experts=10**9), 2)
