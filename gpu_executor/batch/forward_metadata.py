"""Where each scheduled token sits: one struct, passed down to every layer, never a global."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..kernels.low_rank import AdapterTokens


@dataclass(frozen=True, slots=True)
class ForwardMetadata:
    """The step as the model sees it: the scheduled tokens of all requests, back to back.

    Request i owns the tokens [query_start_loc[i], query_start_loc[i + 1]); a decode is a request with one token,
    a prefill chunk one with many: nothing else tells them apart.

    Attributes:
        positions: [num_tokens] int64, position of each token in its request.
        slot_mapping: [num_tokens] int64, where its key and value go: block_id * block_size + offset.
        block_tables: [num_reqs, max_blocks] int32; entries beyond a request's last block are never read.
        query_start_loc: [num_reqs + 1] int32, cumulative token counts.
        seq_lens: [num_reqs] int32, tokens in the cache after this step's writes; 0 for a row that only pads a batch
            to a captured size: it has one token of slot -1, and any finite result.
        logits_indices: [num_logits] int64, the tokens whose logits the step needs.
        block_size: tokens a KV block holds.
        max_query_len: at least the most tokens that a request has here; what launches are sized by, never results.
        max_seq_len: at least the largest of seq_lens; likewise.
        adapters: which tokens' products are changed by adapters, no token's by two; empty: none are.
    """

    positions: Tensor
    slot_mapping: Tensor
    block_tables: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    logits_indices: Tensor
    block_size: int
    max_query_len: int
    max_seq_len: int
    adapters: tuple[AdapterTokens, ...] = ()
