"""Steps that are run once at start: the largest ones, to see how much memory they take, and one of each kind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pagewire.ipc.config import StepLimits
from pagewire.ipc.sampling_params import Sampling

from .batch.forward_metadata import ForwardMetadata
from .kv_cache_spec import LayerKVCache
from .model_runner import PROMPT_LOGPROBS_ROWS
from .models.base import Model
from .sampling.draw import Draw, RowSampling
from .sampling.pending import Drawing
from .sampling.row_edits import TokenHistory

# What takes the most memory of what one draw can ask for: noise, every filter, processed logits beside the raw ones.
_LARGEST_DRAW = Sampling(
    temperature=1.0, top_p=0.9, top_k=50, min_p=0.01, frequency_penalty=0.1, repetition_penalty=1.1, num_logprobs=20
)
# What requests ask for as a rule.
_USUAL_DRAWS = (Sampling(temperature=0.0), Sampling(temperature=1.0), Sampling(temperature=0.7, top_p=0.9))
# Tokens of each row in steps of the kinds that serving brings: short prompts, chunks, chunks beside decodes. Kernels
# differ between them, and a GPU's are compiled when they are first launched, for a second or more each.
_USUAL_STEPS = ([1], [16], [64], [256], [1, 16, 300])


class ProfileRun:
    """Runs steps without the pool, which is not there yet.

    Token ids are all 0 and no key is stored; what they read, a block or two of whatever there is, and what comes out
    are of no interest. Launches are sized for requests of the longest context.

    Args:
        model: loaded.
        sampler: draws.
        kv_caches: of at least one block each.
        limits: of steps.
        max_model_len: the longest context.
        block_size: tokens a KV block holds.
        device: where the model runs.
    """

    def __init__(
        self,
        model: Model,
        sampler: Drawing,
        kv_caches: Sequence[LayerKVCache],
        limits: StepLimits,
        *,
        max_model_len: int,
        block_size: int,
        device: torch.device,
    ) -> None:
        self._model = model
        self._sampler = sampler
        self._kv_caches = kv_caches
        self._limits = limits
        self._max_model_len = max_model_len
        self._block_size = block_size
        self._device = device

    @torch.inference_mode()
    def rehearse(self) -> None:
        """Run small steps of all kinds: whatever is compiled or loaded at a first launch is there afterwards."""
        for lengths in _USUAL_STEPS:
            if sum(lengths) > self._limits.max_num_batched_tokens or max(lengths) > self._max_model_len:
                continue
            hidden = self._forward(lengths)
            for sampling in _USUAL_DRAWS:
                self._draw(hidden[: len(lengths)], sampling)

    @torch.inference_mode()
    def prefill(self) -> None:
        """Fill the token budget with prompts as long as they can be, and draw for as many rows as run at once."""
        num_tokens, longest = self._limits.max_num_batched_tokens, self._max_model_len
        lengths = [min(longest, num_tokens - start) for start in range(0, num_tokens, longest)]
        hidden = self._forward(lengths)
        self._draw(hidden[: self._limits.max_num_seqs], _LARGEST_DRAW)
        self._model.compute_logits(hidden[:PROMPT_LOGPROBS_ROWS])

    @torch.inference_mode()
    def decode(self) -> None:
        """Decode as many rows as run at once."""
        self._draw(self._forward(self._decode_lengths()), _LARGEST_DRAW)

    @torch.inference_mode()
    def decode_without_draws(self) -> None:
        """Run what a captured graph holds of the largest decode."""
        self._model.compute_logits(self._forward(self._decode_lengths()))

    def _decode_lengths(self) -> list[int]:
        return [1] * min(self._limits.max_num_seqs, self._limits.max_num_batched_tokens)

    def _forward(self, lengths: list[int]) -> Tensor:
        """Compute one chunk a row, each from its row's first token on."""
        device, counts = self._device, np.array(lengths)
        num_tokens = int(counts.sum())
        ends = counts.cumsum()
        positions = np.arange(num_tokens) - (ends - counts).repeat(counts)
        max_blocks = -(-self._max_model_len // self._block_size)
        metadata = ForwardMetadata(
            positions=torch.from_numpy(positions).to(device),
            slot_mapping=torch.full((num_tokens,), -1, dtype=torch.int64, device=device),
            block_tables=torch.zeros((len(lengths), max_blocks), dtype=torch.int32, device=device),
            query_start_loc=torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)).to(device),
            seq_lens=torch.from_numpy(counts.astype(np.int32)).to(device),
            logits_indices=torch.from_numpy(ends - 1).to(device),
            block_size=self._block_size,
            max_query_len=max(lengths),
            max_seq_len=self._max_model_len,
        )
        input_ids = torch.zeros(num_tokens, dtype=torch.int64, device=device)
        return self._model.forward(input_ids, metadata, self._kv_caches)

    def _draw(self, hidden: Tensor, sampling: Sampling) -> None:
        row_sampling = RowSampling.prepare(sampling, 0, self._sampler.vocab_size)
        history = TokenHistory(np.zeros(1, dtype=np.int32), num_prompt_tokens=0)
        self._sampler.begin(self._model, hidden, [Draw(row_sampling, history)] * hidden.shape[0]).collect()
