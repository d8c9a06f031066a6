"""Rounds a model's linear layers while it runs over samples of text, each layer to the inputs that reach it.

One pass is enough: when a layer's turn comes, those before it are rounded already, so that it sees what it will see
when the copy is served, and makes up for some of what they lost. Keys and values are kept for the layer that runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pagewire.checkpoint.model_config import ModelConfig
from pagewire.ipc.errors import ConfigError

from .batch.forward_metadata import ForwardMetadata
from .batch.kv_cache import KVCache
from .compute_dtype import CHECKPOINT_DTYPES
from .formats.quantized.integer_matrix import IntegerMatrix
from .formats.writing.packing import IntegerPacking
from .kernels.layouts import DenseWeight, LinearWeight
from .kernels.reference.reference_ops import ReferenceOps
from .models.registry import build_model
from .quantization.error_feedback import fit_integers_to_inputs
from .weights import load_weights

_BLOCK_SIZE = 64
_CPU = torch.device("cpu")


@torch.inference_mode()
def round_along_text(
    config: ModelConfig,
    packing: IntegerPacking,
    layers: Mapping[str, tuple[int, int]],
    sequences: Sequence[Sequence[int]],
    *,
    num_threads: int,
    progress: Callable[[str], None],
) -> dict[str, IntegerMatrix]:
    """Round layers so that what they give along a text changes little.

    It holds the model as it is stored, a byte for each rounded weight, of a layer the float32 inputs and outputs of
    all tokens, and 40 bytes for each number of the largest in_features^2.

    Args:
        config: of a plain checkpoint.
        packing: what is to store the matrices.
        layers: the shapes of the matrices, by the layers' names.
        sequences: token ids, each sequence by itself, none empty or longer than the model's context.
        num_threads: that read the checkpoint.
        progress: called with the name of each matrix that was rounded.

    Returns:
        The matrices, by the layers' names. Experts of a mixture that no token reached are not among them.

    Raises:
        ConfigError: if the checkpoint is damaged, or a matrix can't be rounded.
        MachineError: if memory runs out.
    """
    ops = _RoundingOps(config.model_path, packing, layers, progress)
    # Weights as they are stored, activations in float32.
    dtype = CHECKPOINT_DTYPES.get(config.dtype, torch.float32)
    longest = max(len(sequence) for sequence in sequences)
    model = build_model(config, ops, dtype=dtype, device=_CPU, max_model_len=longest)
    load_weights(model, config, num_threads=num_threads)
    ops.awaited = {id(weight): modules for modules, weight in model.linear_weights()}
    metadata = _side_by_side([len(sequence) for sequence in sequences])
    # Layers run one after the other, and each reads only what it has just written: those that are alike share memory.
    specs = model.kv_cache_specs()
    num_blocks = int(metadata.block_tables.max()) + 1
    kinds = list(dict.fromkeys(specs))
    cache = KVCache(kinds, num_blocks=num_blocks, block_size=_BLOCK_SIZE, dtype=torch.float32, device=_CPU, ops=ops)
    of_kind = dict(zip(kinds, cache.layers, strict=True))
    input_ids = torch.tensor([token_id for sequence in sequences for token_id in sequence])
    model.forward(input_ids, metadata, [of_kind[spec] for spec in specs])
    return ops.rounded


class _RoundingOps(ReferenceOps):
    """The reference, but that a linear layer is rounded to its inputs before they are multiplied with it."""

    has_float32_activations = True

    def __init__(
        self,
        source: str,
        packing: IntegerPacking,
        layers: Mapping[str, tuple[int, int]],
        progress: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._source = source
        self._packing = packing
        self._layers = layers
        self._progress = progress
        self.awaited: dict[int, tuple[str, ...]] = {}
        """By the identity of weights: the layers whose rows each holds."""
        self.rounded: dict[str, IntegerMatrix] = {}

    def linear(self, x: Tensor, weight: LinearWeight) -> Tensor:
        modules = self.awaited.get(id(weight))
        if modules is None:
            return super().linear(x, weight)  # a router, which stays as it is
        assert isinstance(weight, DenseWeight), "plain checkpoints have plain weights"
        rounded = self._round(modules, weight.weight, x)
        first = 0
        for module in modules:
            rows = slice(first, first + self._layers[module][0])
            self.rounded[module] = replace(
                rounded, codes=rounded.codes[rows], scale=rounded.scale[rows], zero=rounded.zero[rows]
            )
            self._progress(module)
            first = rows.stop
        return F.linear(x, rounded.dequantize(), None if weight.bias is None else weight.bias.float())

    def _round(self, modules: tuple[str, ...], matrix: Tensor, inputs: Tensor) -> IntegerMatrix:
        try:
            return fit_integers_to_inputs(
                matrix,
                inputs.t() @ inputs / len(inputs),
                bits=self._packing.bits,
                group_size=self._packing.group_size,
                is_symmetric=self._packing.is_symmetric,
                scale_dtypes=self._packing.scale_dtypes(matrix.dtype),
            )
        except ValueError as exc:
            raise ConfigError(f"{self._source}: {', '.join(modules)} can't be rounded: {exc}") from exc


def _side_by_side(lengths: Sequence[int]) -> ForwardMetadata:
    """Return a step that prefills sequences of these lengths, each in blocks of its own."""
    num_blocks = [-(-length // _BLOCK_SIZE) for length in lengths]
    tables = np.zeros((len(lengths), max(num_blocks)), dtype=np.int32)
    first_block = 0
    for table, count in zip(tables, num_blocks, strict=True):
        table[:count] = np.arange(first_block, first_block + count)
        first_block += count
    positions = np.concatenate([np.arange(length) for length in lengths])
    blocks = tables[np.repeat(np.arange(len(lengths)), lengths), positions // _BLOCK_SIZE].astype(np.int64)
    ends = np.cumsum(lengths)
    return ForwardMetadata(
        positions=torch.from_numpy(positions),
        slot_mapping=torch.from_numpy(blocks * _BLOCK_SIZE + positions % _BLOCK_SIZE),
        block_tables=torch.from_numpy(tables),
        query_start_loc=torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        logits_indices=torch.from_numpy(ends - 1),
        block_size=_BLOCK_SIZE,
        max_query_len=max(lengths),
        max_seq_len=max(lengths),
    )
