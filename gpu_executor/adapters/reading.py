"""An adapter from its files to what the kernels multiply by: this rank's part of it, every tensor accounted for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from pagewire.checkpoint.lora.adapter_config import AdapterConfig, read_adapter_config
from pagewire.checkpoint.lora.digest import digest_adapter, stamp_adapter
from pagewire.checkpoint.lora.tensor_names import FILE_NAME, PICKLED_NAME, parse_name
from pagewire.ipc.errors import ConfigError

from ..formats.safetensors import SafetensorsTensor, open_safetensors_file
from ..kernels.layouts import DenseWeight, LinearWeight
from ..kernels.low_rank import AdapterLayer, AdapterWeights, LowRank
from ..kernels.ops import Ops
from ..layers.adapted_layer import AdaptedLayer
from ..layers.linear import AdaptedProjection
from ..models.base import Model

# Ranks of a weight's change are filled up with zeros to so many: a tile of every matrix instruction is full then.
_RANK_MULTIPLE = 16
_MAX_NAMED = 5


class _Pair(NamedTuple):
    a: SafetensorsTensor
    b: SafetensorsTensor


class ReadAdapter(NamedTuple):
    """An adapter that was read.

    Attributes:
        weights: its changes; on a device they are still to be put in place.
        digest: of the files.
    """

    weights: AdapterWeights
    digest: str


@dataclass(frozen=True, slots=True)
class AdapterReader:
    """Reads adapters for one model.

    Attributes:
        model: built; says what can be changed, and which part of it is here.
        ops: prepares the matrices.
        dtype: that they are kept in.
        device: where.
        max_rank: the highest that is taken.
    """

    model: Model
    ops: Ops
    dtype: torch.dtype
    device: torch.device
    max_rank: int

    @torch.inference_mode()
    def read(self, directory: Path) -> ReadAdapter:
        """Read the changes of this stage's layers, on whatever thread; `put_in_place` makes them ready for steps.

        Raises:
            ConfigError: the files are no adapter, or none for this model, or were written to meanwhile. The message
                names what is wrong.
            OSError: they can't be read.
        """
        config = read_adapter_config(directory)
        config.check_rank(self.max_rank)
        layers = self.model.adapted_layers()
        path = _weights_file(directory)
        stamp = stamp_adapter(directory)
        with open_safetensors_file(path) as tensors:
            pairs = _match(tensors, config, layers)
            here = layers[self.model.stage_layers.start : self.model.stage_layers.stop]
            weights = AdapterWeights(tuple(self._read_layer(layer, pairs, config) for layer in here))
        digest = digest_adapter(directory)
        if stamp_adapter(directory) != stamp:
            raise ConfigError(f"{directory}: the files were written to while they were read; load it again")
        return ReadAdapter(weights, digest)

    @torch.inference_mode()
    def put_in_place(self, read: ReadAdapter) -> AdapterWeights:
        """Return the changes as steps multiply by them, on the thread of the steps.

        On a device a copy is quick, and what other threads do there would disturb the capture of a graph. On a CPU it
        is all done by then.
        """
        if self._prepares_at_once:
            return read.weights

        def prepared(change: LowRank | None) -> LowRank | None:
            return None if change is None else self._prepared(change)

        return AdapterWeights(
            tuple(
                AdapterLayer(
                    qkv=prepared(layer.qkv),
                    output=prepared(layer.output),
                    gate_up=prepared(layer.gate_up),
                    down=prepared(layer.down),
                )
                for layer in read.weights.layers
            )
        )

    @property
    def _prepares_at_once(self) -> bool:
        return self.device.type == "cpu"

    def most_bytes(self) -> int:
        """Return what an adapter of the highest rank takes that changes all that can be changed."""
        here = self.model.adapted_layers()[self.model.stage_layers.start : self.model.stage_layers.stop]
        numbers = 0
        for layer in here:
            for projections in (layer.qkv, layer.output, layer.gate_up, layer.down):
                if projections:
                    num_rows, num_columns = _size_here(projections)
                    numbers += _filled_up(self.max_rank * len(projections)) * (num_rows + num_columns)
        return numbers * self.dtype.itemsize

    def _read_layer(self, layer: AdaptedLayer, pairs: Mapping[str, _Pair], config: AdapterConfig) -> AdapterLayer:
        def read(projections: Sequence[AdaptedProjection]) -> LowRank | None:
            return self._read_change(projections, pairs, config)

        return AdapterLayer(
            qkv=read(layer.qkv), output=read(layer.output), gate_up=read(layer.gate_up), down=read(layer.down)
        )

    def _read_change(
        self, projections: Sequence[AdaptedProjection], pairs: Mapping[str, _Pair], config: AdapterConfig
    ) -> LowRank | None:
        changed = [projection for projection in projections if projection.module in pairs]
        if not changed:
            return None
        ranks = [pairs[projection.module].a.shape[0] for projection in changed]
        most = len(projections) * self.max_rank if self.ops.pads_ranks else sum(ranks)
        total = _filled_up(most)
        num_rows, num_columns = _size_here(projections)
        a, b = torch.zeros(total, num_columns), torch.zeros(num_rows, total)
        first = 0
        for projection, rank in zip(changed, ranks, strict=True):
            pair = pairs[projection.module]
            a[first : first + rank] = _values(pair.a.sliced(projection.part_of_a))
            rows = _values(pair.b.sliced(projection.part_of_b)) * config.scale_of(projection.module)
            b[projection.first_row : projection.first_row + len(rows), first : first + rank] = rows
            first += rank
        change = LowRank(DenseWeight(a.to(self.dtype)), DenseWeight(b.to(self.dtype)))
        return self._prepared(change) if self._prepares_at_once else change

    def _prepared(self, change: LowRank) -> LowRank:
        def prepare(matrix: LinearWeight) -> LinearWeight:
            assert isinstance(matrix, DenseWeight)
            return self.ops.prepare_weight(DenseWeight(matrix.weight.to(self.device).contiguous()))

        return LowRank(prepare(change.a), prepare(change.b))


def _filled_up(num_ranks: int) -> int:
    return -(-num_ranks // _RANK_MULTIPLE) * _RANK_MULTIPLE


def _size_here(projections: Sequence[AdaptedProjection]) -> tuple[int, int]:
    """Return the rows and the columns of a product's weight on this rank."""
    num_rows = sum(projection.part_of_b.shape_of((projection.out_features,))[0] for projection in projections)
    return num_rows, len(projections[0].part_of_a.column_run(projections[0].in_features))


def _weights_file(directory: Path) -> Path:
    path = directory / FILE_NAME
    if not path.is_file() and (directory / PICKLED_NAME).is_file():
        raise ConfigError(
            f"{directory / PICKLED_NAME}: pickled weights are not read, as they may run code; save the adapter as "
            f"{FILE_NAME}."
        )
    return path


def _match(
    tensors: Iterable[SafetensorsTensor], config: AdapterConfig, layers: Sequence[AdaptedLayer]
) -> dict[str, _Pair]:
    """Pair all tensors with the projections that they change, by module."""
    known = {projection.module: projection for layer in layers for projection in layer}
    found: dict[str, dict[str, SafetensorsTensor]] = {}
    for tensor in tensors:
        name = parse_name(tensor.name)
        if name is None:
            raise ConfigError(f"{tensor.source}: is no matrix of LoRA; an adapter may hold lora_A and lora_B alone.")
        if name.module not in known:
            raise ConfigError(
                f"{tensor.source}: changes {name.module}, which adapters can't change in this model; they may change "
                f"{', '.join(_kinds(known))}."
            )
        found.setdefault(name.module, {})[name.matrix] = tensor
    if not found:
        raise ConfigError(f"{config.path.parent / FILE_NAME}: holds no tensor")
    lacking = [f"{module}.lora_{name}" for module, pair in found.items() for name in "AB" if name not in pair]
    if lacking:
        more = f" and {len(lacking) - _MAX_NAMED} more" if len(lacking) > _MAX_NAMED else ""
        raise ConfigError(
            f"{config.path.parent / FILE_NAME}: lacks {', '.join(lacking[:_MAX_NAMED])}{more}, half of a change"
        )
    pairs = {module: _Pair(pair["A"], pair["B"]) for module, pair in found.items()}
    for module, pair in pairs.items():
        projection, rank = known[module], config.rank_of(module)
        _check_shape(pair.a, (rank, projection.in_features))
        _check_shape(pair.b, (projection.out_features, rank))
    return pairs


def _kinds(modules: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(module.rpartition(".")[2] for module in modules))


def _check_shape(tensor: SafetensorsTensor, shape: tuple[int, int]) -> None:
    if tensor.shape != shape:
        raise ConfigError(
            f"{tensor.source}: has shape {list(tensor.shape)}; the model and the adapter's rank ask for {list(shape)}"
        )


def _values(tensor: SafetensorsTensor) -> Tensor:
    values = torch.empty(tensor.shape)
    tensor.copy_to(values)
    return values
