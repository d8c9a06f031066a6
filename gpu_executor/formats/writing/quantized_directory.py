"""A quantized copy of a checkpoint directory: matrix by matrix, and in its place only when it is whole."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from torch import Tensor

from pagewire.checkpoint.json_reader import read_json_object
from pagewire.ipc.errors import ConfigError

from ..quantized.integer_matrix import IntegerMatrix
from ..quantized.scales import check_matrix
from ..safetensors import DTYPES, PLAIN, SafetensorsTensor, open_safetensors
from .packing import IntegerPacking, Packing, TensorSpec
from .safetensors_writer import SafetensorsWriter

# What lies beside the weights and belongs to the model: tokenizer, templates, generation_config, license.
_COPIED_SUFFIXES = frozenset({".json", ".jinja", ".txt", ".model", ".tiktoken"})
_COPIED_STEMS = frozenset({"LICENSE", "NOTICE", "USE_POLICY"})


@dataclass(frozen=True, slots=True)
class QuantizedSizes:
    """What was written.

    Attributes:
        num_layers: matrices that were packed.
        num_weights: numbers in all tensors, before.
        num_packed: of those, in the matrices that were packed.
        bytes_before: of all tensors.
        bytes_after: of all tensors.
        packed_bytes: of those, what the packed matrices take.
    """

    num_layers: int
    num_weights: int
    num_packed: int
    bytes_before: int
    bytes_after: int
    packed_bytes: int


def write_quantized(
    source: Path,
    target: Path,
    packing: Packing,
    modules: Collection[str],
    *,
    max_file_bytes: int,
    progress: Callable[[str, int], None],
    rounded: Mapping[str, IntegerMatrix] | None = None,
) -> QuantizedSizes:
    """Write a copy of a checkpoint whose linear layers are packed.

    Args:
        source: a Hugging Face directory with plain weights.
        target: the new directory; what lies there is replaced once the copy is whole.
        packing: of the layers.
        modules: names of the layers that are packed; all other tensors stay as they are, byte by byte.
        max_file_bytes: of a file of weights.
        progress: called with the name of a tensor and its size in the source, when it is written.
        rounded: matrices of layers that were rounded beforehand, for a packing that stores integers; the packing rounds
            the others itself.

    Raises:
        ConfigError: if the source is damaged, or holds a matrix that can't be packed. Nothing is left behind then.
        OSError: if the disk is full, or may not be written to.
    """
    with open_safetensors(source) as tensors, _whole_or_nothing(target) as partial:
        plans = [
            _Plan.of(
                tensor,
                packing if _module_of(tensor.name) in modules else None,
                (rounded or {}).get(_module_of(tensor.name)),
            )
            for tensor in tensors
        ]
        _check_all_found(source, plans, modules)
        with SafetensorsWriter(partial, [spec for plan in plans for spec in plan.specs], max_file_bytes) as writer:
            for plan in plans:
                for spec, stored in zip(plan.specs, plan.make(), strict=True):
                    writer.write(spec.name, stored)
                progress(plan.tensor.name, plan.bytes_before)
        _copy_companions(source, partial)
        _write_config(source, partial, packing)
    return _sizes(plans)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What becomes of a tensor; packing None: it is copied."""

    tensor: SafetensorsTensor
    packing: Packing | None
    specs: Sequence[TensorSpec]
    rounded: IntegerMatrix | None = None

    @staticmethod
    def of(tensor: SafetensorsTensor, packing: Packing | None, rounded: IntegerMatrix | None) -> _Plan:
        if tensor.stored_as not in PLAIN:
            raise ConfigError(
                f"{tensor.source}: is stored as {tensor.stored_as}; weights that can be quantized are "
                f"{', '.join(PLAIN)}"
            )
        dtype = DTYPES[tensor.stored_as]
        if packing is None:
            return _Plan(tensor, None, (TensorSpec(tensor.name, dtype, tensor.shape),))
        module, shape = _module_of(tensor.name), check_matrix(tensor)
        packing.check(module, shape)
        specs = [TensorSpec(f"{module}.{spec.name}", spec.dtype, spec.shape) for spec in packing.specs(shape, dtype)]
        return _Plan(tensor, packing, specs, rounded)

    @property
    def bytes_before(self) -> int:
        return DTYPES[self.tensor.stored_as].itemsize * math.prod(self.tensor.shape)

    def make(self) -> list[Tensor]:
        """Return the tensors of `specs`."""
        if self.rounded is not None:
            assert isinstance(self.packing, IntegerPacking), "only integers are rounded beforehand"
            return self.packing.store(self.rounded, DTYPES[self.tensor.stored_as])
        stored = self.tensor.read()
        if self.packing is None:
            return [stored]
        if not stored.isfinite().all():
            raise ConfigError(f"{self.tensor.source}: holds NaN or infinity, so the checkpoint is damaged")
        try:
            return self.packing.pack(stored)
        except ValueError as exc:
            raise ConfigError(f"{self.tensor.source}: can't be rounded: {exc}") from exc


def _module_of(name: str) -> str:
    """Return the module that a weight belongs to; of any other tensor the name, which no module has."""
    return name.removesuffix(".weight")


def _check_all_found(source: Path, plans: Sequence[_Plan], modules: Collection[str]) -> None:
    missing = sorted(set(modules) - {_module_of(plan.tensor.name) for plan in plans})
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ConfigError(f"{source}: the checkpoint lacks {missing[0]}.weight{more}")


@contextmanager
def _whole_or_nothing(target: Path) -> Iterator[Path]:
    """Give a directory beside the target, which takes its place at the end of the context, or is removed on errors."""
    target = target.resolve()
    partial, replaced = (target.with_name(f"{target.name}.{what}") for what in ("partial", "replaced"))
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed
    partial.mkdir(parents=True)
    try:
        yield partial
        if target.exists():
            target.rename(replaced)
        partial.rename(target)
    except BaseException:
        if replaced.exists() and not target.exists():
            replaced.rename(target)  # stopped between the two renames
        shutil.rmtree(partial, ignore_errors=True)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def foreign_files(directory: Path) -> list[str]:
    """Return the names in a directory that no checkpoint has, sorted: what must not be lost with one."""
    return sorted(
        path.name
        for path in directory.iterdir()
        if not path.is_file() or not (_is_companion(path) or path.suffix == ".safetensors")
    )


def _copy_companions(source: Path, target: Path) -> None:
    for path in sorted(source.iterdir()):
        is_of_weights = path.name == "config.json" or path.name.endswith(".index.json")
        if path.is_file() and _is_companion(path) and not is_of_weights:
            shutil.copyfile(path, target / path.name)


def _is_companion(path: Path) -> bool:
    return path.suffix in _COPIED_SUFFIXES or path.stem in _COPIED_STEMS


def _write_config(source: Path, target: Path, packing: Packing) -> None:
    config = read_json_object(source / "config.json").data
    content = {**config, "quantization_config": packing.quantization_config()}
    (target / "config.json").write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")


def _sizes(plans: Sequence[_Plan]) -> QuantizedSizes:
    packed = [plan for plan in plans if plan.packing is not None]
    return QuantizedSizes(
        num_layers=len(packed),
        num_weights=sum(math.prod(plan.tensor.shape) for plan in plans),
        num_packed=sum(math.prod(plan.tensor.shape) for plan in packed),
        bytes_before=sum(plan.bytes_before for plan in plans),
        bytes_after=sum(spec.num_bytes for plan in plans for spec in plan.specs),
        packed_bytes=sum(spec.num_bytes for plan in packed for spec in plan.specs),
    )
