"""A model, or a stage of it, from token ids to normed rows as one native call."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pagewire.checkpoint.model_config import Activation
from pagewire.ipc.errors import EngineError, MachineError

from ...batch.forward_metadata import ForwardMetadata
from ...kv_cache_spec import LayerKVCache
from ...parallel.shared_memory_group import SharedMemoryGroup
from ..layouts import DecoderLayerWeights, DecoderWeights, LinearWeight, MixtureWeights, MLPWeights
from ..low_rank import AdapterLayer, AdapterWeights
from .engine import NativeEngine
from .native_library import (
    AdapterView,
    CacheView,
    DecoderView,
    ExpertView,
    LayerView,
    LinearView,
    LowRankView,
    MixtureView,
    StepView,
)
from .packed_weight import PackedWeight
from .step_views import address, view_cache, view_step

# csrc/model/step.h: Activation.
_ACTIVATIONS: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1}


class NativeDecoder:
    """A model's weights and paged memory as the library sees them, and the library's work space for them.

    Args:
        engine: runs it.
        weights: packed; the object keeps them.
        kv_caches: one a layer; kept likewise.
        ranks: those that hold the other parts of the layers; None: the layers are whole.
    """

    def __init__(
        self,
        engine: NativeEngine,
        weights: DecoderWeights,
        kv_caches: Sequence[LayerKVCache],
        ranks: SharedMemoryGroup | None = None,
    ) -> None:
        self.weights = weights
        self.kv_caches = kv_caches
        self._ranks = ranks  # must outlive the handle
        self._engine = engine
        self._vectors: list[Tensor] = []  # what the views point to besides
        self._mixtures: list[MixtureView] = []  # likewise
        self._viewed: ForwardMetadata | None = None
        self._step_view = StepView()
        self._adapter_views: ctypes.Array[AdapterView] | None = None  # what it points to besides
        self._changes: weakref.WeakKeyDictionary[AdapterWeights, ctypes.Array[LowRankView]] = (
            weakref.WeakKeyDictionary()
        )
        self._hidden_size = weights.layers[0].attention.norm.shape[0]
        layers = (LayerView * len(weights.layers))(*(self._view(layer) for layer in weights.layers))
        view = DecoderView(
            embedding=_embedding(weights.embedding),
            layers=layers,
            num_layers=len(layers),
            norm=self._vector(weights.norm),
            norm_eps=weights.norm_eps,
            embedding_scale=weights.embedding_scale,
            first_token_id=weights.first_token_id,
        )
        self._caches = (CacheView * len(kv_caches))(*(view_cache(cache) for cache in kv_caches))
        joined = None if ranks is None else ranks.handle
        self._handle: int = engine.library.pagewire_decoder_create(engine.handle, view, joined)
        if self._handle is None:
            raise MachineError("No memory for the work space of the decoder: free memory on this machine.")
        weakref.finalize(self, engine.library.pagewire_decoder_destroy, self._handle)

    @property
    def work_bytes(self) -> int:
        """Bytes of the work space, as the largest step has left it."""
        return int(self._engine.library.pagewire_decoder_work_bytes(self._handle))

    def run(self, input_ids: Tensor, metadata: ForwardMetadata, stream: Tensor | None = None) -> Tensor:
        """Run a step; see `Ops.decoder`."""
        assert input_ids.is_contiguous(), "a step's tensors are contiguous"
        assert (stream is None) == (self.weights.embedding is not None), "the stream has one beginning"
        hidden = torch.empty(input_ids.shape[0], self._hidden_size)
        # A step of decodes brings the tensors of the one before: their view still holds.
        if self._viewed is None or not _same_tensors(metadata, self._viewed):
            self._viewed, self._step_view = metadata, view_step(metadata)
            self._view_adapters(metadata)
        status = self._engine.library.pagewire_decoder_run(
            self._handle,
            self._step_view,
            self._caches,
            input_ids.data_ptr(),
            None if stream is None else address(stream),
            hidden.data_ptr(),
        )
        if status:
            raise EngineError(
                f"no memory for the work space of a step of {hidden.shape[0]} tokens: lower --max-num-batched-tokens"
            )
        return hidden

    def _view_adapters(self, metadata: ForwardMetadata) -> None:
        """Put into the view of a step what adapters change of it."""
        num_tokens, adapters = metadata.positions.shape[0], metadata.adapters
        self._adapter_views = (AdapterView * len(adapters))(
            *(
                AdapterView(
                    self._changes_of(each.weights),
                    None if each.token_ids is None else each.token_ids.data_ptr(),
                    num_tokens if each.token_ids is None else each.token_ids.shape[0],
                )
                for each in adapters
            )
        )
        self._step_view.adapters, self._step_view.num_adapters = self._adapter_views, len(adapters)

    def _changes_of(self, weights: AdapterWeights) -> ctypes.Array[LowRankView]:
        changes = self._changes.get(weights)
        if changes is None:
            views = [view for layer in weights.layers for view in _view_changes(layer)]
            changes = self._changes[weights] = (LowRankView * len(views))(*views)
        return changes

    def _view(self, layer: DecoderLayerWeights) -> LayerView:
        attention, mlp = layer.attention, layer.mlp
        return LayerView(
            qkv=_linear(attention.qkv),
            output=_linear(attention.output),
            gate_up=_linear(mlp.gate_up) if isinstance(mlp, MLPWeights) else LinearView(),
            down=_linear(mlp.down) if isinstance(mlp, MLPWeights) else LinearView(),
            mixture=self._mixture(mlp) if isinstance(mlp, MixtureWeights) else None,
            attention_norm=self._vector(attention.norm),
            mlp_norm=self._vector(mlp.norm),
            attention_post_norm=self._vector(attention.post_norm),
            mlp_post_norm=self._vector(mlp.post_norm) if isinstance(mlp, MLPWeights) else None,
            query_norm=self._vector(attention.query_norm),
            key_norm=self._vector(attention.key_norm),
            rotary_cos=self._vector(attention.rotary.cos),
            rotary_sin=self._vector(attention.rotary.sin),
            num_heads=attention.num_heads,
            num_kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
            rotary_dim=attention.rotary.rotary_dim,
            sliding_window=attention.sliding_window or 0,
            attention_norm_eps=attention.norm_eps,
            mlp_norm_eps=mlp.norm_eps,
            scale=attention.scale,
            soft_cap=attention.soft_cap or 0.0,
            attention_output_scale=attention.output_scale,
            mlp_output_scale=mlp.output_scale if isinstance(mlp, MLPWeights) else 1.0,
            activation=_ACTIVATIONS[mlp.activation],
        )

    def _mixture(self, weights: MixtureWeights) -> ctypes._Pointer[MixtureView]:
        experts = (ExpertView * len(weights.experts))(
            *(ExpertView(_linear(expert.gate_up), _linear(expert.down)) for expert in weights.experts)
        )
        view = MixtureView(
            router=_linear(weights.router),
            experts=experts,  # which it keeps
            num_experts=len(experts),
            first_expert=weights.first_expert,
            num_chosen=weights.num_chosen,
            is_renormalized=weights.is_renormalized,
        )
        self._mixtures.append(view)
        return ctypes.pointer(view)

    def _vector(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        kept = tensor.to(torch.float32).contiguous()
        self._vectors.append(kept)
        return kept.data_ptr()


def _embedding(weight: LinearWeight | None) -> LinearView:
    """Return the view of the rows that are here: of no parts, where a stage or the other ranks have them all."""
    return LinearView() if weight is None or weight.out_features == 0 else _linear(weight)


def _linear(weight: LinearWeight) -> LinearView:
    assert isinstance(weight, PackedWeight), "weights are packed at load (Ops.prepare_weight)"
    return weight.view


def _view_changes(layer: AdapterLayer) -> Iterator[LowRankView]:
    """Yield the views of a layer's changes, in the order of csrc/model/step.h's `Product`."""
    for change in (layer.qkv, layer.output, layer.gate_up, layer.down):
        yield LowRankView() if change is None else LowRankView(_linear(change.a), _linear(change.b))


def _same_tensors(step: ForwardMetadata, other: ForwardMetadata) -> bool:
    return (
        step.positions is other.positions
        and step.slot_mapping is other.slot_mapping
        and step.block_tables is other.block_tables
        and step.query_start_loc is other.query_start_loc
        and step.seq_lens is other.seq_lens
        and step.adapters is other.adapters
    )
