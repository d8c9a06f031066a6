"""Steps that are run once at start: the largest ones, to see how much memory they take, and one of each kind."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pagewire.ipc.config import StepLimits
from pagewire.ipc.sampling_params import Sampling

from .batch.forward_metadata import ForwardMetadata
from .batch.kv_cache import KVCache
from .model_runner import PROMPT_LOGPROBS_ROWS
from .models.base import Model
from .sampling.draw import Draw, RowSampling
from .sampling.pending import Drawing
from .sampling.row_edits import TokenHistory

# What takes the most memory of what one draw can ask for: noise, every filter, processed logits beside the raw ones.
_LARGEST_DRAW = Sampling(
    temperature=1.0, top_p=0.9, top_k=50, min_p=0.01, frequency_penalty=0.1, repetition_penalty=1.1, num_logprobs=20
)
# Kernels differ between the draws and steps below, and a GPU's are compiled when they are first launched, for a second
# or more each, with everybody's tokens waiting.
# What requests ask for as a rule.
_USUAL_DRAWS = (Sampling(temperature=0.0), Sampling(temperature=1.0), Sampling(temperature=0.7, top_p=0.9))
# What else takes other kernels than these and the largest: edits of greedy rows, more of top_k, less and more logprobs.
_RARE_DRAWS = (
    Sampling(temperature=0.0, logit_bias={0: 1.0}),
    Sampling(temperature=1.0, top_k=100),
    Sampling(temperature=0.0, num_logprobs=0),
    Sampling(temperature=0.0, num_logprobs=40),
)
# Tokens of each row in steps of the kinds that serving brings: short prompts, chunks, chunks beside decodes.
_USUAL_STEPS = ([1], [16], [64], [256], [512], [1, 16], [1, 16, 300])
# Contexts that these steps are launched for, beside the longest: attention over a few hundred keys, over some thousands
# and over all that a model can have is launched in different ways.
_USUAL_CONTEXTS = (512, 2048)


class ProfileRun:
    """Runs steps without the pool, which is not there yet.

    Token ids are all 0 and no key is stored; what they read, a block or two of whatever there is, and what comes out
    are of no interest. The largest steps are launched as for requests of the longest context, and so are small ones,
    which are launched as for short contexts as well.

    Args:
        model: loaded.
        sampler: draws.
        kv_cache: a stand-in for the pool, of two blocks or more.
        limits: of steps.
        max_model_len: the longest context.
        device: where the model runs.
        stream: one row of the residual stream, of the model's hidden size and compute dtype: what a pipeline stage that
            is not the first is given for each token. No link to other stages is used.
        graph_logits: [rows of the largest graph, vocab_size] float32, where graphs write; None: there are none.
    """

    def __init__(
        self,
        model: Model,
        sampler: Drawing,
        kv_cache: KVCache,
        limits: StepLimits,
        *,
        max_model_len: int,
        device: torch.device,
        stream: Tensor,
        graph_logits: Tensor | None = None,
    ) -> None:
        self._model = model
        self._sampler = sampler
        self._kv_cache = kv_cache
        self._limits = limits
        self._max_model_len = max_model_len
        self._device = device
        self._stream = stream
        self._graph_logits = graph_logits

    @torch.inference_mode()
    def rehearse(self) -> None:
        """Run small steps of all kinds: whatever is compiled or loaded at a first launch is there afterwards."""
        for lengths in _USUAL_STEPS:
            if sum(lengths) > self._limits.max_num_batched_tokens or max(lengths) > self._max_model_len:
                continue
            hidden = self._forward(lengths)
            for max_seq_len in _USUAL_CONTEXTS:
                if max_seq_len < self._max_model_len:
                    self._forward(lengths, max_seq_len=max_seq_len)
            for sampling in _USUAL_DRAWS:
                self._draw(hidden[: len(lengths)], sampling)
        for sampling in _RARE_DRAWS:
            self._draw(self._forward([1]), sampling)
        self._kv_cache.copy_blocks([(0, 0)])
        self._kv_cache.copy_blocks([(0, 1)])  # blocks that are apart may be copied in another way

    @torch.inference_mode()
    def prefill(self) -> None:
        """Fill the token budget with prompts as long as they can be, alone and beside decodes; draw for all rows.

        Beside decodes, attention keeps the results of shared splits, as many as in a step of decodes or more, while
        there are the activations of a prefill.
        """
        self._forward(self._prompt_lengths(self._limits.max_num_batched_tokens))
        decodes = self._decode_lengths()[1:]
        hidden = self._forward(decodes + self._prompt_lengths(self._limits.max_num_batched_tokens - len(decodes)))
        self._draw(hidden[: self._limits.max_num_seqs], _LARGEST_DRAW)
        self._compute_logits(hidden[:PROMPT_LOGPROBS_ROWS])

    @torch.inference_mode()
    def decode(self) -> None:
        """Decode as many rows as run at once."""
        self._draw(self._forward(self._decode_lengths()), _LARGEST_DRAW)

    @torch.inference_mode()
    def decode_without_draws(self) -> None:
        """Run what the largest captured graph holds, or would hold."""
        out = self._graph_logits
        lengths = self._decode_lengths() if out is None else [1] * out.shape[0]
        self._compute_logits(self._forward(lengths), out)

    def _prompt_lengths(self, num_tokens: int) -> list[int]:
        longest = self._max_model_len
        return [min(longest, num_tokens - start) for start in range(0, num_tokens, longest)]

    def _decode_lengths(self) -> list[int]:
        return [1] * min(self._limits.max_num_seqs, self._limits.max_num_batched_tokens)

    def _forward(self, lengths: list[int], *, max_seq_len: int | None = None) -> Tensor:
        """Compute one chunk a row, each from its row's first token on.

        Args:
            lengths: tokens of each.
            max_seq_len: of the contexts that it is launched for; None: of the longest.
        """
        device, counts = self._device, np.array(lengths)
        num_tokens = int(counts.sum())
        ends = counts.cumsum()
        positions = np.arange(num_tokens) - (ends - counts).repeat(counts)
        block_size = self._kv_cache.block_size
        max_blocks = -(-self._max_model_len // block_size)
        metadata = ForwardMetadata(
            positions=torch.from_numpy(positions).to(device),
            slot_mapping=torch.full((num_tokens,), -1, dtype=torch.int64, device=device),
            block_tables=torch.zeros((len(lengths), max_blocks), dtype=torch.int32, device=device),
            query_start_loc=torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32)).to(device),
            seq_lens=torch.from_numpy(counts.astype(np.int32)).to(device),
            logits_indices=torch.from_numpy(ends - 1).to(device),
            block_size=block_size,
            max_query_len=max(lengths),
            max_seq_len=max_seq_len or self._max_model_len,
        )
        input_ids = torch.zeros(num_tokens, dtype=torch.int64, device=device)
        stream = None if self._model.stage.is_first else self._stream.repeat(num_tokens, 1)
        return self._model.forward(input_ids, metadata, self._kv_cache.layers, stream)

    def _compute_logits(self, hidden: Tensor, out: Tensor | None = None) -> None:
        if self._model.stage.is_last:
            self._model.compute_logits(hidden, out)

    def _draw(self, hidden: Tensor, sampling: Sampling) -> None:
        if not self._model.stage.is_last:
            return
        row_sampling = RowSampling.prepare(sampling, 0, self._sampler.vocab_size)
        history = TokenHistory(np.zeros(1, dtype=np.int32), num_prompt_tokens=0)
        self._sampler.begin(self._model, hidden, [Draw(row_sampling, history)] * hidden.shape[0]).collect()
