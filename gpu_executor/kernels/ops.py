"""The op list: everything that a model may ask of a device.

A backend is a subclass of `Ops`, chosen once at start by `select_ops` (select.py) and handed to the model's layers,
which call it and never ask which it is. The small ops (small_ops.py) must be written by every backend. The blocks, and
the decoder of all layers, are composed from them here; a backend that gains by fusing a whole block, or all of them,
overrides it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pagewire.checkpoint.model_config import Activation

from ..batch.forward_metadata import ForwardMetadata
from ..kv_cache_spec import LayerKVCache
from ..parallel.rank_group import ALONE, RankGroup
from .draws import OutputRows
from .expert_choice import ExpertChoice, choose_experts
from .layouts import AttentionWeights, DecoderWeights, LinearWeight, MixtureWeights, MLPWeights
from .low_rank import UNCHANGED, LayerChanges, TokensOfChange
from .small_ops import SmallOps


class Ops(SmallOps):
    """One backend's kernels, and the blocks that they make up.

    Attributes:
        ranks: that share the layers; each holds a part of every weight, and blocks add up what they give.
    """

    ranks: RankGroup = ALONE

    def join(self, ranks: RankGroup) -> None:
        """Take part in a group; called once, before the first weight is prepared."""
        self.ranks = ranks

    def decoder(
        self,
        input_ids: Tensor,
        weights: DecoderWeights,
        kv_caches: Sequence[LayerKVCache],
        metadata: ForwardMetadata,
        stream: Tensor | None = None,
    ) -> Tensor:
        """Look tokens up, run the decoder layers one after the other, and norm what comes out.

        Of several pipeline stages, one that is not the first goes on with the stream that the stage before it gave,
        and one that is not the last gives the stream itself.

        Args:
            input_ids: [num_tokens] int64, each below the vocabulary's size.
            weights: a backend may keep what it makes of them: the same object must come every time.
            kv_caches: the paged memory of each layer; likewise.
            metadata: the step.
            stream: [num_tokens, hidden_size], compute dtype: the residual stream, where `weights` has no embedding.

        Returns:
            [num_tokens, hidden_size], compute dtype: normed rows, or the stream where `weights` has no norm.
        """
        hidden, residual = self._enter(input_ids, weights) if stream is None else stream, None
        for index, (layer, kv_cache) in enumerate(zip(weights.layers, kv_caches, strict=True)):
            changes = LayerChanges.of(metadata.adapters, index)
            hidden, residual = self.attention_block(hidden, residual, layer.attention, kv_cache, metadata, changes)
            if isinstance(layer.mlp, MixtureWeights):
                hidden, residual = self.mixture_block(hidden, residual, layer.mlp)
            else:
                hidden, residual = self.mlp_block(hidden, residual, layer.mlp, changes)
        if weights.norm is None:
            return hidden if residual is None else hidden + residual
        return self._norm(hidden, residual, weights.norm, weights.norm_eps)[0]

    def _enter(self, input_ids: Tensor, weights: DecoderWeights) -> Tensor:
        """Return the rows of the tokens; of several ranks, each looks up the ids that it holds, the others add 0."""
        assert weights.embedding is not None, "a stage that holds no embedding is given the stream"
        if self.ranks.size == 1:
            hidden = self.embedding(input_ids, weights.embedding, weights.dtype)
        else:
            hidden = self.ranks.sum_in_order(self._rows_held(input_ids, weights.embedding, weights))
        return hidden if weights.embedding_scale == 1.0 else hidden * weights.embedding_scale

    def _rows_held(self, input_ids: Tensor, embedding: LinearWeight, weights: DecoderWeights) -> Tensor:
        """Return the rows of the tokens that this rank holds, zeros for the others."""
        if embedding.out_features == 0:
            size = (input_ids.shape[0], embedding.in_features)
            return torch.zeros(size, dtype=weights.dtype, device=input_ids.device)
        row_ids = input_ids - weights.first_token_id
        is_elsewhere = (row_ids < 0) | (row_ids >= embedding.out_features)
        rows = self.embedding(row_ids.masked_fill(is_elsewhere, 0), embedding, weights.dtype)
        return rows.masked_fill(is_elsewhere.unsqueeze(1), 0)

    def attention_block(
        self,
        hidden: Tensor,
        residual: Tensor | None,
        weights: AttentionWeights,
        kv_cache: LayerKVCache,
        metadata: ForwardMetadata,
        changes: LayerChanges = UNCHANGED,
    ) -> tuple[Tensor, Tensor]:
        """Run norm, projections, rotation, KV store, attention and output projection of one layer.

        Args:
            hidden: [num_tokens, hidden_size], the previous block's output, not yet added to the residual.
            residual: like `hidden`; None at the first block, where `hidden` is the stream itself.
            weights: the block's parameters and shape.
            kv_cache: the layer's paged memory.
            metadata: the step.
            changes: what adapters add to the products.

        Returns:
            This block's output, not yet added, and the residual.
        """
        w = weights
        x, residual = self._norm(hidden, residual, w.norm, w.norm_eps)
        num_tokens, query_size, kv_size = x.shape[0], w.num_heads * w.head_dim, w.num_kv_heads * w.head_dim
        qkv = self.changed_linear(x, w.qkv, changes.qkv)
        query, key, value = torch.split(qkv, [query_size, kv_size, kv_size], dim=1)
        query = query.reshape(num_tokens, w.num_heads, w.head_dim)
        key = key.reshape(num_tokens, w.num_kv_heads, w.head_dim)
        value = value.reshape(num_tokens, w.num_kv_heads, w.head_dim)
        if w.query_norm is not None and w.key_norm is not None:
            query = self.rms_norm(query, w.query_norm, w.norm_eps)
            key = self.rms_norm(key, w.key_norm, w.norm_eps)
        query, key = self.rotary(query, key, metadata.positions, w.rotary)
        self.store_kv(key, value, kv_cache, metadata.slot_mapping)
        context = self.paged_attention(
            query, kv_cache, metadata, scale=w.scale, sliding_window=w.sliding_window, soft_cap=w.soft_cap
        )
        context = context.reshape(num_tokens, query_size)
        output = self.ranks.sum_in_order(self.changed_linear(context, w.output, changes.output))
        return self._finish_block(output, w.post_norm, w.norm_eps, w.output_scale), residual

    def mlp_block(
        self, hidden: Tensor, residual: Tensor | None, weights: MLPWeights, changes: LayerChanges = UNCHANGED
    ) -> tuple[Tensor, Tensor]:
        """Run norm, gate and up projection, gating and down projection of one layer.

        Args:
            hidden: [num_tokens, hidden_size], the previous block's output, not yet added to the residual.
            residual: like `hidden`; None if `hidden` is the stream itself.
            weights: the block's parameters.
            changes: what adapters add to the products.

        Returns:
            This block's output, not yet added, and the residual.
        """
        w = weights
        x, residual = self._norm(hidden, residual, w.norm, w.norm_eps)
        gated = self._put_through(self.changed_linear(x, w.gate_up, changes.gate_up), w.activation)
        output = self.ranks.sum_in_order(self.changed_linear(gated, w.down, changes.down))
        return self._finish_block(output, w.post_norm, w.norm_eps, w.output_scale), residual

    def changed_linear(self, x: Tensor, weight: LinearWeight, changes: Sequence[TokensOfChange]) -> Tensor:
        """Multiply by a weight, as `linear` does, and add to some tokens' rows what their adapter gives.

        An adapter's tokens are multiplied together, by products that keep rows apart: so a row has the same bits
        whichever adapters share the step, and a row without one those of `linear`.

        Args:
            x: [num_tokens, in_features], compute dtype.
            weight: as of `linear`.
            changes: of this weight; no token is in two of them.
        """
        y = self.linear(x, weight)
        for each in changes:
            rows = x if each.token_ids is None else x[each.token_ids]
            added = self.linear(self.linear(rows, each.change.a), each.change.b)
            if each.token_ids is None:
                y = y + added
            else:
                y[each.token_ids] += added
        return y

    def mixture_block(self, hidden: Tensor, residual: Tensor | None, weights: MixtureWeights) -> tuple[Tensor, Tensor]:
        """Run norm, router and the chosen experts of one layer; arguments and results are those of `mlp_block`."""
        w = weights
        x, residual = self._norm(hidden, residual, w.norm, w.norm_eps)
        choice = self.choose_experts(self.linear(x, w.router), w.num_chosen, is_renormalized=w.is_renormalized)
        return self.ranks.sum_in_order(self.experts(x, choice, w)), residual

    def choose_experts(self, logits: Tensor, num_chosen: int, *, is_renormalized: bool) -> ExpertChoice:
        """Choose the likeliest experts of each token; see `expert_choice.choose_experts`, which this calls."""
        return choose_experts(logits, num_chosen, is_renormalized=is_renormalized)

    def experts(self, x: Tensor, choice: ExpertChoice, weights: MixtureWeights) -> Tensor:
        """Compute each token by its experts of this rank, and add up what they give, in the order of experts.

        A token's sum depends on the token alone: every product keeps rows apart, and no sum's order on the batch.

        Args:
            x: [num_tokens, hidden_size], compute dtype.
            choice: of all experts, those that compute each token.
            weights: the block's parameters.

        Returns:
            [num_tokens, hidden_size], x's dtype; zero where none of a token's experts is here.
        """
        w, num_chosen = weights, choice.expert_ids.shape[1]
        chosen, shares = choice.expert_ids.flatten(), choice.weights.flatten()
        by_expert = chosen.argsort(stable=True)
        num_pairs = torch.bincount(chosen, minlength=w.router.out_features).tolist()
        pairs = torch.split(by_expert, num_pairs)
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert, mine in zip(w.experts, pairs[w.first_expert :], strict=False):  # later ranks have the rest
            if mine.numel() == 0:
                continue
            token_ids = mine // num_chosen
            gated = self._put_through(self.linear(x[token_ids], expert.gate_up), w.activation)
            total[token_ids] += self.linear(gated, expert.down).float() * shares[mine].unsqueeze(1)
        return total.to(x.dtype)

    def _put_through(self, gate_up: Tensor, activation: Activation) -> Tensor:
        return self.silu_and_mul(gate_up) if activation == "silu" else self.gelu_tanh_and_mul(gate_up)

    def output_layer(
        self, hidden: Tensor, weight: LinearWeight, num_drawable: int, kept_rows: Sequence[int]
    ) -> OutputRows:
        """Multiply by the output matrix and find each row's best token; keep the logits that are asked for alone.

        A greedy token needs no logits in memory, which are 200 KB a row at a vocabulary of 50,000.

        Args:
            hidden: [num_rows, hidden_size], compute dtype.
            weight: vocab_size rows of hidden_size channels.
            num_drawable: ids that can be drawn; logits from there on belong to rows that only pad the matrix, and
                count nowhere.
            kept_rows: indices of the rows whose logits are kept, ascending.
        """
        logits = self.linear(hidden, weight)[:, :num_drawable].float()
        best_values, best_ids = logits.max(dim=-1)
        kept: Tensor | None = logits
        if not kept_rows:
            kept = None
        elif len(kept_rows) < logits.shape[0]:
            kept = logits[torch.tensor(kept_rows, dtype=torch.int64, device=logits.device)]
        return OutputRows(best_values=best_values.tolist(), best_ids=best_ids.tolist(), logits=kept)

    def _finish_block(self, output: Tensor, post_norm: Tensor | None, eps: float, scale: float) -> Tensor:
        if post_norm is not None:
            output = self.rms_norm(output, post_norm, eps)
        return output if scale == 1.0 else output * scale

    def _norm(self, hidden: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        if residual is None:
            return self.rms_norm(hidden, weight, eps), hidden
        return self.add_rms_norm(hidden, residual, weight, eps)
