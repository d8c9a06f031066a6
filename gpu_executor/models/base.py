"""What every model offers to the runner and to the loader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import Tensor

from ..batch.forward_metadata import ForwardMetadata
from ..kernels.draws import OutputRows
from ..kernels.layouts import LinearWeight
from ..kv_cache_spec import KVCacheSpec, LayerKVCache
from ..kv_scales import KVScales
from ..layers.adapted_layer import AdaptedLayer
from ..layers.weight_target import WeightTarget
from ..parallel.share import Share


class Model(Protocol):
    """A decoder that turns scheduled tokens into logits over a paged KV cache; of several ranks, one rank's part."""

    @property
    def stage(self) -> Share:
        """Which pipeline stage this is: the first looks tokens up, the last gives logits."""
        ...

    @property
    def stage_layers(self) -> range:
        """Indices of this stage's layers, among those of the model."""
        ...

    def kv_cache_specs(self) -> list[KVCacheSpec]:
        """Return the paged memory that each layer of this stage needs on this rank, in layer order."""
        ...

    def forward(
        self,
        input_ids: Tensor,
        metadata: ForwardMetadata,
        kv_caches: Sequence[LayerKVCache],
        stream: Tensor | None = None,
    ) -> Tensor:
        """Run the scheduled tokens through this stage's layers, writing their keys and values.

        Args:
            input_ids: [num_tokens] int64.
            metadata: where each token sits.
            kv_caches: one a layer, as `kv_cache_specs` asks.
            stream: [num_tokens, hidden_size], compute dtype: what the stage before this one returned; None on the
                first.

        Returns:
            [num_tokens, hidden_size], compute dtype: of the last stage, after the final norm; of the others, the
            residual stream.
        """
        ...

    def compute_logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the logits of some rows of the last stage's result, on all of its ranks.

        Args:
            hidden: [num_rows, hidden_size].
            out: where to write them, which spares a matrix; None: new memory.

        Returns:
            [num_rows, vocab_size] float32; `out` if it is given.
        """
        ...

    def choose_tokens(self, hidden: Tensor, num_drawable: int, kept_rows: Sequence[int]) -> OutputRows:
        """Return the best token of some rows of the last stage's result, and the logits of those that need more.

        All ranks of the stage get the same.

        Args:
            hidden: [num_rows, hidden_size].
            num_drawable: token ids that count.
            kept_rows: indices of the rows whose logits are wanted, ascending.
        """
        ...

    def weight_targets(self) -> Iterator[WeightTarget]:
        """Yield every tensor that the checkpoint must hold, those too that only other ranks read."""
        ...

    def linear_modules(self) -> frozenset[str]:
        """Return the canonical names of the checkpoint's linear layers: what may be quantized."""
        ...

    def linear_weights(self) -> Iterator[tuple[tuple[str, ...], LinearWeight]]:
        """Yield the loaded weights of this stage's linear layers, but for the output layer and routers.

        Each comes with the canonical names of the checkpoint's layers whose rows it stacks, in their order.
        """
        ...

    def adapted_layers(self) -> Sequence[AdaptedLayer]:
        """Return what adapters may change of each of the model's layers, those of other stages too."""
        ...

    def kv_scales(self) -> list[KVScales | None]:
        """Return the scales of each of the model's layers for an 8-bit KV cache, those of other stages too.

        In layer order; None: the checkpoint has none for it.
        """
        ...

    def finish_loading(self) -> None:
        """Gather what was loaded for the kernels; called once, after the last tensor and before the first `forward`."""
        ...
