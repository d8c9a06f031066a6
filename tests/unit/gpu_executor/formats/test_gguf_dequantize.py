from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from pagewire.checkpoint.ggml_types import GGMLType
from pagewire.gpu_executor.formats.gguf_dequantize import SUPPORTED_TYPES, dequantize


@pytest.mark.parametrize("ggml_type", sorted(SUPPORTED_TYPES), ids=lambda ggml_type: ggml_type.name)
def test_every_block_pattern_unpacks_to_the_bits_of_the_gguf_package(ggml_type: GGMLType) -> None:
    raw = np.random.default_rng(0).integers(0, 256, (3000, ggml_type.block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):  # random bytes make infinite and NaN scales as well
        expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(int(ggml_type)))
    result = dequantize(torch.from_numpy(raw), ggml_type).numpy()
    finite = np.isfinite(expected)
    assert finite.mean() > 0.5
    assert np.array_equal(np.isfinite(result), finite)
    assert np.array_equal(result[finite].view(np.uint32), expected[finite].view(np.uint32))
