from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pagewire.gpu_executor.kernels.reference.attention_plan import (
    KEY_STEP,
    QUERY_TILE,
    TileShape,
    plan_attention,
)
from tests.support.paged import Chunk, paged_step

CHUNKS = st.lists(st.tuples(st.integers(0, 700), st.integers(1, 90)), min_size=1, max_size=6)


@given(chunks=CHUNKS, heads=st.integers(1, 40), window=st.none() | st.integers(1, 200))
def test_every_token_is_in_one_tile_of_the_one_shape(
    chunks: list[tuple[int, int]], heads: int, window: int | None
) -> None:
    step = paged_step([Chunk(range(50), start, num_tokens) for start, num_tokens in chunks])
    shape = TileShape.of(num_heads=2 * heads, num_kv_heads=2)
    assert shape.pairs % QUERY_TILE == 0
    plan = plan_attention(step, shape, window)
    tokens = torch.cat([group.tokens for group in plan.groups])
    assert sorted(tokens.tolist()) == list(range(len(step.positions)))
    for group in plan.groups:
        assert torch.equal(group.query_rows[group.token_rows], group.tokens)
        assert group.mask.shape == (group.num_tiles, 1, group.num_steps, shape.pairs, KEY_STEP)


def test_tiles_of_very_different_length_are_not_padded_to_one_another() -> None:
    step = paged_step([Chunk(range(50), 767, 1), Chunk(range(50), 3, 1), Chunk(range(50), 40, 1)])
    plan = plan_attention(step, TileShape.of(num_heads=4, num_kv_heads=4), None)
    assert [(group.num_tiles, group.num_steps) for group in plan.groups] == [(2, 1), (1, 12)]


def test_window_skips_whole_key_steps_before_it() -> None:
    step = paged_step([Chunk(range(50), 700, 1)])
    (group,) = plan_attention(step, TileShape.of(num_heads=4, num_kv_heads=4), 100).groups
    assert group.num_steps == 2  # keys 601 to 700 lie in the steps from 576 on
    seen = (group.mask[0, 0, :, 0].flatten() == 0).nonzero().flatten() + 576
    assert seen.tolist() == list(range(601, 701))
