"""How a step's attention is cut into tiles of one fixed shape.

A tile is up to `QUERY_TILE` (query token, query head) pairs of one request that share a KV head, against the keys from
a multiple of `KEY_STEP` on. Whatever the batch looks like, a query row then meets the same keys in steps of the same
size at the same borders; what differs is only how many steps, and rows of the tile, are padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...batch.forward_metadata import ForwardMetadata

QUERY_TILE = 16
# Keys of one step: borders are multiples of it, counted from the request's first token.
KEY_STEP = 64
# Keys that one group of tiles gathers at most, for each KV head: bounds the work space of a long prefill.
_MAX_GROUP_KEYS = 8192


@dataclass(frozen=True, slots=True)
class TileShape:
    """The shape of all tiles of a model.

    Attributes:
        num_kv_heads: KV heads of a block; each makes tiles of its own.
        heads: query heads that read one KV head.
        tokens: query tokens that a tile has room for.
        pairs: rows of a tile: tokens * heads, rounded up to whole `QUERY_TILE`s. Pairs lie token by token, a token's
            heads side by side; what is left over is padding.
    """

    num_kv_heads: int
    heads: int
    tokens: int
    pairs: int

    @classmethod
    def of(cls, num_heads: int, num_kv_heads: int) -> TileShape:
        """Return the shape for a model's head counts."""
        heads = num_heads // num_kv_heads
        tokens = max(1, QUERY_TILE // heads)
        return cls(num_kv_heads, heads, tokens, -(-tokens * heads // QUERY_TILE) * QUERY_TILE)


@dataclass(frozen=True, slots=True)
class TileGroup:
    """Tiles that are computed together, each padded to the longest one's number of key steps.

    Attributes:
        query_rows: [num_tiles * tokens of the shape] int64, the token of each tile row; padding rows repeat a token.
        tokens: [num_group_tokens] int64, the tokens of this group.
        token_rows: like `tokens`, where each lies among `query_rows`.
        key_rows: [num_tiles * num_kv_heads * num_keys] int64, where each key of each KV head lies if the cache is seen
            as rows of head_dim channels; keys beyond a tile's last repeat the last.
        mask: [num_tiles, 1, num_steps, pairs of the shape, KEY_STEP] float32, added to the scores: -inf where a pair
            doesn't see a key, else 0.
        num_tiles: tiles.
        num_steps: key steps.
    """

    query_rows: Tensor
    tokens: Tensor
    token_rows: Tensor
    key_rows: Tensor
    mask: Tensor
    num_tiles: int
    num_steps: int


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """A step's tiles.

    Attributes:
        shape: of each tile.
        groups: the tiles, in groups of similar length.
    """

    shape: TileShape
    groups: tuple[TileGroup, ...]


def plan_attention(metadata: ForwardMetadata, shape: TileShape, sliding_window: int | None) -> AttentionPlan:
    """Cut a step into tiles. Rows that only pad it have no keys, and get none.

    Args:
        metadata: the step.
        shape: of the tiles.
        sliding_window: keys a token sees, its own included; None: all before it.
    """
    tiles = _cut_into_tiles(metadata, shape.tokens, sliding_window)
    if not tiles.num_steps.all():
        tiles = tiles.select(np.flatnonzero(tiles.num_steps))
    block_tables = metadata.block_tables.cpu().numpy()
    groups = tuple(
        _build_group(tiles.select(chosen), metadata, block_tables, shape, sliding_window)
        for chosen in _group_by_steps(tiles.num_steps)
    )
    return AttentionPlan(shape=shape, groups=groups)


@dataclass(frozen=True, slots=True)
class _Tiles:
    """One entry a tile, all int64: the request, first token, its position, number of tokens, first key, key steps."""

    request: np.ndarray
    first_token: np.ndarray
    first_position: np.ndarray
    num_tokens: np.ndarray
    first_key: np.ndarray
    num_steps: np.ndarray

    def select(self, chosen: np.ndarray) -> _Tiles:
        return _Tiles(
            self.request[chosen],
            self.first_token[chosen],
            self.first_position[chosen],
            self.num_tokens[chosen],
            self.first_key[chosen],
            self.num_steps[chosen],
        )


def _cut_into_tiles(metadata: ForwardMetadata, tile_tokens: int, sliding_window: int | None) -> _Tiles:
    query_start = metadata.query_start_loc.cpu().numpy().astype(np.int64)
    query_lens = np.diff(query_start)
    first_positions = metadata.seq_lens.cpu().numpy().astype(np.int64) - query_lens
    tiles_per_request = -(-query_lens // tile_tokens)
    request = np.repeat(np.arange(len(query_lens)), tiles_per_request)
    tile_starts = np.cumsum(tiles_per_request) - tiles_per_request
    offset = (np.arange(len(request)) - tile_starts[request]) * tile_tokens
    first_position = first_positions[request] + offset
    num_tokens = np.minimum(tile_tokens, query_lens[request] - offset)
    first_key = np.zeros_like(first_position)
    if sliding_window is not None:
        first_key = np.maximum(first_position - sliding_window + 1, 0) // KEY_STEP * KEY_STEP
    num_steps = -(-(first_position + num_tokens - first_key) // KEY_STEP)
    return _Tiles(request, query_start[request] + offset, first_position, num_tokens, first_key, num_steps)


def _group_by_steps(num_steps: np.ndarray) -> Iterator[np.ndarray]:
    """Yield index arrays: tiles within a factor of two in length, cut so that a group's gathered keys are bounded."""
    classes = np.ceil(np.log2(num_steps)).astype(np.int64)
    for length_class in np.unique(classes):
        members = np.flatnonzero(classes == length_class)
        most = max(1, _MAX_GROUP_KEYS // (KEY_STEP << int(length_class)))
        for start in range(0, len(members), most):
            yield members[start : start + most]


def _build_group(
    tiles: _Tiles,
    metadata: ForwardMetadata,
    block_tables: np.ndarray,
    shape: TileShape,
    sliding_window: int | None,
) -> TileGroup:
    rows = np.arange(shape.tokens)
    is_token = rows < tiles.num_tokens[:, None]
    query_rows = tiles.first_token[:, None] + np.minimum(rows, tiles.num_tokens[:, None] - 1)
    last_position = tiles.first_position + tiles.num_tokens - 1
    num_steps = int(tiles.num_steps.max())
    key_positions = tiles.first_key[:, None] + np.arange(num_steps * KEY_STEP)
    # Keys past the tile's last one are padding. They repeat that key, which is known to be finite: slots that hold no
    # token of this request may hold NaN, and a NaN times a probability of zero is NaN.
    stored_positions = np.minimum(key_positions, last_position[:, None])
    key_blocks = np.take_along_axis(block_tables[tiles.request], stored_positions // metadata.block_size, axis=1)
    head_blocks = key_blocks.astype(np.int64)[:, None] * shape.num_kv_heads + np.arange(shape.num_kv_heads)[:, None]
    key_rows = head_blocks * metadata.block_size + (stored_positions % metadata.block_size)[:, None]
    row_positions = np.minimum(tiles.first_position[:, None] + rows, last_position[:, None])
    device = metadata.positions.device

    def on_device(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return TileGroup(
        query_rows=on_device(query_rows.reshape(-1)),
        tokens=on_device(query_rows[is_token]),
        token_rows=on_device(np.flatnonzero(is_token)),
        key_rows=on_device(key_rows.reshape(-1)),
        mask=on_device(_mask(row_positions, key_positions, shape, sliding_window)),
        num_tiles=len(tiles.request),
        num_steps=num_steps,
    )


def _mask(
    row_positions: np.ndarray, key_positions: np.ndarray, shape: TileShape, sliding_window: int | None
) -> np.ndarray:
    rows, keys = row_positions[:, :, None], key_positions[:, None, :]
    hidden = keys > rows
    if sliding_window is not None:
        hidden |= keys <= rows - sliding_window
    num_tiles, num_keys = key_positions.shape
    # The padding pairs see everything, which keeps them finite.
    mask = np.zeros((num_tiles, shape.pairs, num_keys), dtype=np.float32)
    mask[:, : shape.tokens * shape.heads][np.repeat(hidden, shape.heads, axis=1)] = -np.inf
    return mask.reshape(num_tiles, 1, shape.pairs, -1, KEY_STEP).swapaxes(2, 3)
