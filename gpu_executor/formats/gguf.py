"""Reading the tensors of a GGUF model."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterator

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor

from pagewire.checkpoint.ggml_types import GGMLType
from pagewire.checkpoint.gguf_file import GGUFFile
from pagewire.checkpoint.gguf_header import GGUFTensor
from pagewire.checkpoint.model_config import ModelConfig
from pagewire.ipc.errors import ConfigError

from ..kernels.layouts import GROUP_SIZE, DenseWeight, LinearWeight
from .checkpoint_tensor import CheckpointTensor
from .cut_columns import cut_columns
from .gguf_dequantize import SUPPORTED_TYPES, dequantize
from .gguf_grouped import bytes_per_value, convert, group_size
from .gguf_names import canonical_name, stacked_names
from .tensor_part import TensorPart

logger = logging.getLogger(__name__)

# Values unpacked at a time: half a megabyte of float32, so that the temporaries stay in the second-level cache (one
# thread unpacked SmolLM2 in 0.5 s so, in 0.7 s by chunks of four megabytes, in 1.2 s by chunks of 128 kB).
_CHUNK_VALUES = 1 << 17
_FLOAT_DTYPES = {GGMLType.F32: torch.float32, GGMLType.F16: torch.float16, GGMLType.BF16: torch.bfloat16}
# ggml rotates neighbouring channels for these, so the converter interleaved the two halves of each query and key head.
_INTERLEAVED_ARCHITECTURES = frozenset(
    {"GraniteForCausalLM", "LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"}
)


def iterate_gguf(file: GGUFFile, config: ModelConfig) -> Iterator[CheckpointTensor]:
    """Yield every tensor of the file under its canonical name; what has none keeps its own.

    The matrices of a layer's experts lie in one tensor, and are yielded one by one.

    Args:
        file: the open model; it must stay open while the tensors are read.
        config: the model, for the order of query and key rows and the number of experts.

    Raises:
        ConfigError: if there are more or fewer experts in a tensor than the metadata states.
    """
    num_experts = config.mixture.num_experts if config.mixture is not None else 0
    for tensor in file.tensors.values():
        names = stacked_names(tensor.name, config.architecture, num_experts)
        if names is not None:
            for name, matrix in zip(names, _unstacked(tensor, num_experts), strict=True):
                yield GGUFCheckpointTensor(file, matrix, name, None)
            continue
        name = canonical_name(tensor.name, config.architecture) or tensor.name
        yield GGUFCheckpointTensor(file, tensor, name, _row_order(name, tensor.shape[0], config))


class GGUFCheckpointTensor:
    """One tensor of a GGUF file.

    Args:
        file: the open model.
        tensor: its row of the tensor table.
        name: its canonical name.
        row_order: [rows] int64, which stored row is row i; None: all as stored.

    Slices are the same with fewer rows in their order, and columns: whole blocks of them, that are read, and what is
    left of those.
    """

    def __init__(self, file: GGUFFile, tensor: GGUFTensor, name: str, row_order: Tensor | None) -> None:
        self.name = name
        self.source = f"{tensor.path}, tensor {tensor.name!r}"
        self.shape = tensor.shape
        self._file = file
        self._tensor = tensor
        self._row_order = row_order
        self._columns: range | None = None

    def sliced(self, part: TensorPart) -> GGUFCheckpointTensor:
        """Return a part, of a whole tensor of at most two dimensions; see `CheckpointTensor.sliced`."""
        assert self.shape == self._tensor.shape, "a part is not cut again"
        assert len(self.shape) <= 2, "what has more dimensions is cut by whoever takes it apart"
        piece = copy.copy(self)
        piece.shape, piece._columns = part.shape_of(self.shape), part.columns
        if part.rows is not None:
            rows = torch.cat([torch.arange(run.start, run.stop) for run in part.row_runs(self.shape[0])])
            piece._row_order = rows if self._row_order is None else self._row_order[rows]
        return piece

    def copy_to(self, destination: Tensor) -> None:
        """Unpack into `destination`; see `CheckpointTensor.copy_to`."""
        ggml_type = self._tensor.ggml_type
        self._refuse_unsupported(ggml_type)
        if len(self.shape) == 1:  # stored as one row
            values = dequantize(self._blocks(self._stored().copy()), ggml_type).view(-1)
            destination.copy_(values if self._row_order is None else values[self._row_order])
            return
        read, kept = self._read_columns()
        rows, stored = destination.view(-1, self.shape[-1]), self._stored()[:, self._bytes_of(read)]
        step = max(1, _CHUNK_VALUES // len(read))
        for start in range(0, rows.shape[0], step):
            # A copy of the packed bytes: the map is read-only, which torch does not know.
            if self._row_order is None:
                raw = stored[start : start + step].copy()
            else:
                raw = stored[self._row_order[start : start + step].numpy()]
            rows[start : start + step] = dequantize(self._blocks(raw), ggml_type).view(-1, len(read))[:, kept]

    def read_matrix(self, dtype: torch.dtype | None) -> LinearWeight:
        """Read in the nearest canonical layout; see `CheckpointTensor.read_matrix`."""
        if self._has_whole_groups:
            order = None if self._row_order is None else self._row_order.numpy()
            read, kept = self._read_columns()
            grouped = convert(self._stored()[:, self._bytes_of(read)], order, self._tensor.ggml_type)
            if grouped is not None:
                return grouped if len(read) == self.shape[1] else cut_columns(grouped, range(kept.start, kept.stop))
        if bytes_per_value(self._tensor.ggml_type) is not None:
            what = "has blocks" if self._has_whole_groups else "is cut into groups"
            logger.info(
                "%s: %s that no grouped layout holds; it takes more memory as a plain matrix", self.source, what
            )
        weight = torch.empty(self.shape, dtype=dtype or self._dense_dtype)
        self.copy_to(weight)
        return DenseWeight(weight)

    def matrix_bytes(self, dtype: torch.dtype | None, max_scale_group: int = GROUP_SIZE) -> int:
        """Return about what a matrix takes; see `CheckpointTensor.matrix_bytes`."""
        of_one = bytes_per_value(self._tensor.ggml_type) if self._has_whole_groups else None
        return int((of_one or (dtype or self._dense_dtype).itemsize) * math.prod(self.shape))

    @property
    def _dense_dtype(self) -> torch.dtype:
        return _FLOAT_DTYPES.get(self._tensor.ggml_type, torch.float32)

    @property
    def _has_whole_groups(self) -> bool:
        """Whether the part's columns begin and end with groups of the canonical layout, if there is one."""
        size = group_size(self._tensor.ggml_type)
        return self._columns is None or (
            size is not None and self._columns.start % size == 0 and self._columns.stop % size == 0
        )

    def _read_columns(self) -> tuple[range, slice]:
        """Return the columns of a matrix that are read, whole blocks, and which of those are the part's."""
        columns = range(self._tensor.shape[-1]) if self._columns is None else self._columns
        size = self._tensor.ggml_type.block_values
        read = range(columns.start // size * size, -(-columns.stop // size) * size)
        return read, slice(columns.start - read.start, columns.stop - read.start)

    def _bytes_of(self, columns: range) -> slice:
        """Return which bytes of a row hold some columns, whole blocks of them."""
        ggml_type = self._tensor.ggml_type
        first, last = (end // ggml_type.block_values * ggml_type.block_bytes for end in (columns.start, columns.stop))
        return slice(first, last)

    def _blocks(self, raw: NDArray[np.uint8]) -> Tensor:
        return torch.from_numpy(raw.reshape(-1, self._tensor.ggml_type.block_bytes))

    def _stored(self) -> NDArray[np.uint8]:
        """Return the packed bytes of the whole tensor, [rows, bytes of a row], a view of the file."""
        num_rows = math.prod(self._tensor.shape[:-1])
        return np.frombuffer(self._file.bytes_of(self._tensor), dtype=np.uint8).reshape(num_rows, -1)

    def _refuse_unsupported(self, ggml_type: GGMLType) -> None:
        if ggml_type not in SUPPORTED_TYPES:
            known = ", ".join(sorted(member.name for member in SUPPORTED_TYPES))
            raise ConfigError(
                f"{self.source}: is stored as {ggml_type.name}, which can't be read; readable are {known}"
            )


def _unstacked(stack: GGUFTensor, count: int) -> list[GGUFTensor]:
    """Return the matrices of a tensor [count, rows, columns]."""
    if len(stack.shape) != 3 or stack.shape[0] != count:
        raise ConfigError(
            f"{stack.path}, tensor {stack.name!r}: has shape {list(stack.shape)}, which is not that of {count} experts"
        )
    size = stack.num_bytes // count
    return [
        replace(
            stack,
            name=f"{stack.name}[{index}]",
            shape=stack.shape[1:],
            offset=stack.offset + index * size,
            num_bytes=size,
        )
        for index in range(count)
    ]


def _row_order(name: str, num_rows: int, config: ModelConfig) -> Tensor | None:
    if config.architecture not in _INTERLEAVED_ARCHITECTURES:
        return None
    if ".self_attn.q_proj." not in name and ".self_attn.k_proj." not in name:
        return None
    if num_rows % config.head_dim:
        return None  # a wrong shape: the loader refuses it by name
    # Stored row 2i + h of a head is its row i of half h.
    stored = torch.arange(num_rows).view(-1, config.head_dim // 2, 2)
    return stored.transpose(1, 2).reshape(-1)
