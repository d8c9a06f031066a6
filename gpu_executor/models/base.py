"""What every model offers to the runner and to the loader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import Tensor

from ..batch.forward_metadata import ForwardMetadata
from ..kernels.draws import OutputRows
from ..kv_cache_spec import KVCacheSpec, LayerKVCache
from ..kv_scales import KVScales
from ..layers.weight_target import WeightTarget


class Model(Protocol):
    """A decoder that turns scheduled tokens into logits over a paged KV cache."""

    def kv_cache_specs(self) -> list[KVCacheSpec]:
        """Return the paged memory that each layer needs, in layer order."""
        ...

    def forward(self, input_ids: Tensor, metadata: ForwardMetadata, kv_caches: Sequence[LayerKVCache]) -> Tensor:
        """Run the scheduled tokens through all layers, writing their keys and values.

        Args:
            input_ids: [num_tokens] int64.
            metadata: where each token sits.
            kv_caches: one a layer, as `kv_cache_specs` asks.

        Returns:
            [num_tokens, hidden_size], compute dtype, after the final norm.
        """
        ...

    def compute_logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the logits of some rows of `forward`'s result.

        Args:
            hidden: [num_rows, hidden_size].
            out: where to write them, which spares a matrix; None: new memory.

        Returns:
            [num_rows, vocab_size] float32; `out` if it is given.
        """
        ...

    def choose_tokens(self, hidden: Tensor, num_drawable: int, kept_rows: Sequence[int]) -> OutputRows:
        """Return the best token of some rows of `forward`'s result, and the logits of those that need more than that.

        Args:
            hidden: [num_rows, hidden_size].
            num_drawable: token ids that count.
            kept_rows: indices of the rows whose logits are wanted, ascending.
        """
        ...

    def weight_targets(self) -> Iterator[WeightTarget]:
        """Yield every tensor that the checkpoint must hold."""
        ...

    def linear_modules(self) -> frozenset[str]:
        """Return the canonical names of the checkpoint's linear layers: what may be quantized."""
        ...

    def kv_scales(self) -> list[KVScales | None]:
        """Return each layer's scales for an 8-bit KV cache, in layer order; None: the checkpoint has none for it."""
        ...

    def finish_loading(self) -> None:
        """Gather what was loaded for the kernels; called once, after the last tensor and before the first `forward`."""
        ...
