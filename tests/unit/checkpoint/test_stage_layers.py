"""Which layers each pipeline stage has."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.checkpoint.estimate.shapes import SHAPES
from pagewire.checkpoint.model_config import LayerKind, ModelConfig
from pagewire.checkpoint.stage_layers import stage_layers

SMALL, LARGE = SHAPES["smollm2-135m"].config, SHAPES["llama-3.1-70b"].config
SHAPE = SHAPES["qwen3-30b-a3b"].config


def lengths(model: ModelConfig, num_stages: int) -> list[int]:
    return [len(layers) for layers in stage_layers(model, num_stages)]


def test_a_large_vocabulary_takes_layers_off_the_last_stage():
    assert lengths(SMALL, 2) == [19, 11]  # its output layer is as large as eight layers


def test_a_small_share_of_the_vocabulary_takes_next_to_none():
    assert lengths(LARGE, 2) in ([41, 39], [40, 40])
    assert max(lengths(LARGE, 4)) <= 21


def test_one_stage_has_all():
    assert stage_layers(SMALL, 1) == [range(30)]


def test_as_many_stages_as_layers_have_one_each():
    assert lengths(SMALL, 30) == [1] * 30


@pytest.mark.parametrize("num_stages", [2, 3, 4])
def test_layers_of_experts_count_by_those_that_are_chosen(num_stages: int):
    assert SHAPE.mixture is not None
    dense = msgspec.structs.replace(
        SHAPE, mixture=None, intermediate_size=SHAPE.mixture.num_chosen * SHAPE.mixture.intermediate_size
    )
    assert lengths(SHAPE, num_stages) == lengths(dense, num_stages)


@given(num_layers=st.integers(1, 9), num_stages=st.integers(1, 5), vocab_size=st.integers(1, 60_000))
def test_no_other_division_has_a_faster_slowest_stage(num_layers: int, num_stages: int, vocab_size: int):
    num_stages = min(num_stages, num_layers)
    model = msgspec.structs.replace(
        SMALL, num_layers=num_layers, layer_kinds=(LayerKind.FULL,) * num_layers, vocab_size=vocab_size
    )
    layer = 2 * (9 + 3) * 64 * 576 + 3 * 1536 * 576

    def slowest(starts: tuple[int, ...]) -> int:
        sizes = [end - start for start, end in itertools.pairwise((0, *starts, num_layers))]
        return max(
            size * layer + (576 * vocab_size if last else 0)
            for size, last in zip(sizes, [False] * (num_stages - 1) + [True], strict=True)
        )

    stages = stage_layers(model, num_stages)
    assert [index for layers in stages for index in layers] == list(range(num_layers))
    assert all(stages)
    best = min(slowest(starts) for starts in itertools.combinations(range(1, num_layers), num_stages - 1))
    assert slowest(tuple(layers.start for layers in stages[1:])) == best
