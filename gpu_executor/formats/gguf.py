"""Reading the tensors of a GGUF model."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pagewire.checkpoint.ggml_types import GGMLType
from pagewire.checkpoint.gguf_file import GGUFFile
from pagewire.checkpoint.gguf_header import GGUFTensor
from pagewire.checkpoint.model_config import ModelConfig
from pagewire.ipc.errors import ConfigError

from ..kernels.layouts import GROUP_SIZE, DenseWeight, LinearWeight
from .checkpoint_tensor import CheckpointTensor
from .gguf_dequantize import SUPPORTED_TYPES, dequantize
from .gguf_grouped import bytes_per_value, convert
from .gguf_names import canonical_name

logger = logging.getLogger(__name__)

# Values unpacked at a time: half a megabyte of float32, so that the temporaries stay in the second-level cache (one
# thread unpacked SmolLM2 in 0.5 s so, in 0.7 s by chunks of four megabytes, in 1.2 s by chunks of 128 kB).
_CHUNK_VALUES = 1 << 17
_FLOAT_DTYPES = {GGMLType.F32: torch.float32, GGMLType.F16: torch.float16, GGMLType.BF16: torch.bfloat16}
# ggml rotates neighbouring channels for these, so the converter interleaved the two halves of each query and key head.
_INTERLEAVED_ARCHITECTURES = frozenset({"GraniteForCausalLM", "LlamaForCausalLM", "MistralForCausalLM"})


def iterate_gguf(file: GGUFFile, config: ModelConfig) -> Iterator[CheckpointTensor]:
    """Yield every tensor of the file under its canonical name; what has none keeps its own.

    Args:
        file: the open model; it must stay open while the tensors are read.
        config: the model, for the order of query and key rows.
    """
    for tensor in file.tensors.values():
        name = canonical_name(tensor.name, config.architecture) or tensor.name
        yield GGUFCheckpointTensor(file, tensor, name, _row_order(name, tensor.shape[0], config))


class GGUFCheckpointTensor:
    """One tensor of a GGUF file.

    Args:
        file: the open model.
        tensor: its row of the tensor table.
        name: its canonical name.
        row_order: [rows] int64, which stored row is row i; None: as stored.
    """

    def __init__(self, file: GGUFFile, tensor: GGUFTensor, name: str, row_order: Tensor | None) -> None:
        self.name = name
        self.source = f"{tensor.path}, tensor {tensor.name!r}"
        self.shape = tensor.shape
        self._file = file
        self._tensor = tensor
        self._row_order = row_order

    def copy_to(self, destination: Tensor) -> None:
        """Unpack into `destination`; see `CheckpointTensor.copy_to`."""
        ggml_type = self._tensor.ggml_type
        self._refuse_unsupported(ggml_type)
        # A vector is one row, unless its elements are rows to be put in order (a bias).
        columns = 1 if self._row_order is not None and len(self.shape) == 1 else self.shape[-1]
        rows = destination.view(-1, columns)
        stored = self._stored_rows(rows.shape[0])
        step = max(1, _CHUNK_VALUES // columns)
        for start in range(0, rows.shape[0], step):
            # A copy of the packed bytes: the map is read-only, which torch does not know.
            if self._row_order is None:
                raw = stored[start : start + step].copy()
            else:
                raw = stored[self._row_order[start : start + step].numpy()]
            blocks = torch.from_numpy(raw).view(-1, ggml_type.block_bytes)
            rows[start : start + step] = dequantize(blocks, ggml_type).view(-1, columns)

    def read_matrix(self, dtype: torch.dtype | None) -> LinearWeight:
        """Read in the nearest canonical layout; see `CheckpointTensor.read_matrix`."""
        order = None if self._row_order is None else self._row_order.numpy()
        grouped = convert(self._stored_rows(self.shape[0]), order, self._tensor.ggml_type)
        if grouped is not None:
            return grouped
        if bytes_per_value(self._tensor.ggml_type) is not None:
            logger.info(
                "%s: has blocks that no grouped layout holds; it takes more memory as a plain matrix", self.source
            )
        weight = torch.empty(self.shape, dtype=dtype or self._dense_dtype)
        self.copy_to(weight)
        return DenseWeight(weight)

    def matrix_bytes(self, dtype: torch.dtype | None, max_scale_group: int = GROUP_SIZE) -> int:
        """Return about what a matrix takes; see `CheckpointTensor.matrix_bytes`."""
        of_one = bytes_per_value(self._tensor.ggml_type) or (dtype or self._dense_dtype).itemsize
        return int(of_one * math.prod(self.shape))

    @property
    def _dense_dtype(self) -> torch.dtype:
        return _FLOAT_DTYPES.get(self._tensor.ggml_type, torch.float32)

    def _stored_rows(self, num_rows: int) -> NDArray[np.uint8]:
        """Return the packed bytes, [num_rows, bytes of a row], a view of the file."""
        return np.frombuffer(self._file.tensor_bytes(self._tensor.name), dtype=np.uint8).reshape(num_rows, -1)

    def _refuse_unsupported(self, ggml_type: GGMLType) -> None:
        if ggml_type not in SUPPORTED_TYPES:
            known = ", ".join(sorted(member.name for member in SUPPORTED_TYPES))
            raise ConfigError(
                f"{self.source}: is stored as {ggml_type.name}, which can't be read; readable are {known}"
            )


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
