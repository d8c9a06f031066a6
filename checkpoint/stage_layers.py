"""Which layers each pipeline stage has: so many that no stage keeps the others waiting for long."""

from __future__ import annotations

from collections.abc import Sequence

from .model_config import ModelConfig


def stage_layers(model: ModelConfig, num_stages: int) -> list[range]:
    """Return the layers of each stage, first to last.

    A decoded token's way through a stage takes as long as reading the weights that it is multiplied by. The last stage
    reads the output layer besides, which of a small model with a large vocabulary weighs as much as many layers: it has
    fewer of them. The slowest stage is as fast as it can be; each has one layer at least.

    Args:
        model: with as many layers as stages, or more.
        num_stages: of the pipeline.
    """
    layers = [_layer_weights(model, index) for index in range(model.num_layers)]
    output = model.vocab_size * model.hidden_size
    # The least limit that as many stages can keep, to within a weight.
    low, high = 0, sum(layers) + output
    while low < high:
        limit = (low + high) // 2
        if len(_fill(layers, output, limit, num_stages)) <= num_stages:
            high = limit
        else:
            low = limit + 1
    starts = _fill(layers, output, high, num_stages)[::-1]
    return [range(start, end) for start, end in zip(starts, [*starts[1:], len(layers)], strict=True)]


def _layer_weights(model: ModelConfig, index: int) -> int:
    """Return the weights of a layer that a token is multiplied by."""
    attention = 2 * (model.num_heads + model.num_kv_heads) * model.head_dim * model.hidden_size
    channels = model.intermediate_size
    if model.mixture is not None and index in model.mixture.layers:
        channels = model.mixture.num_chosen * model.mixture.intermediate_size
    return attention + 3 * channels * model.hidden_size


def _fill(layers: Sequence[int], output: int, limit: int, num_stages: int) -> list[int]:
    """Return the first layer of each stage, the last stage's first, if none may have more than the limit.

    Stages are filled from the last one on, and each leaves a layer for every stage before it. A layer that is beyond
    the limit by itself makes a stage of its own, one more than there may be in the end.
    """
    starts: list[int] = []
    end = len(layers)
    room = limit - output
    while end > 0:
        num_before = max(num_stages - len(starts) - 1, 0)
        start, room = end - 1, room - layers[end - 1]
        is_over = room < 0
        while start > num_before and room >= layers[start - 1]:
            start, room = start - 1, room - layers[start - 1]
        starts += [start] * (1 + num_stages * is_over)
        end, room = start, limit
    return starts
