"""A step's inputs from the host's arrays to tensors, where draws are made on the host."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .forward_metadata import ForwardMetadata
from .step_layout import StepLayout


def bring_to_device(
    layout: StepLayout, block_tables: np.ndarray, logits_indices: np.ndarray, block_size: int, device: torch.device
) -> tuple[Tensor, ForwardMetadata]:
    """Return a step's token ids and metadata.

    Args:
        layout: of the step.
        block_tables: [num_rows, at least the blocks of the longest row] int32.
        logits_indices: [num_logits] int64, the tokens whose logits are wanted.
        block_size: tokens a KV block holds.
        device: where the tensors are wanted.
    """

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    max_blocks = -(-layout.max_seq_len // block_size)
    metadata = ForwardMetadata(
        positions=tensor(layout.positions),
        slot_mapping=tensor(layout.slots),
        block_tables=tensor(block_tables[:, :max_blocks]),
        query_start_loc=tensor(layout.query_starts.astype(np.int32)),
        seq_lens=tensor(layout.seq_lens.astype(np.int32)),
        logits_indices=tensor(logits_indices),
        block_size=block_size,
        max_query_len=layout.max_query_len,
        max_seq_len=layout.max_seq_len,
    )
    return tensor(layout.input_ids), metadata
