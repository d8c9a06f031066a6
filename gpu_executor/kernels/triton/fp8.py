"""8-bit floats on any GPU: exact conversion between their bits and wider floats.

Two formats of OCP's 8-bit floats: e4m3 (bias 7, largest 448, no infinities) and e5m2 (bias 15, largest 57,344, the
upper half of a float16). Kernels keep them as uint8: what an 8-bit float type can do differs between GPUs, what
integers do doesn't. GPUs that have an instruction to widen e4m3 may use it (`HARDWARE`), with the same result.

Source: OCP 8-bit Floating Point Specification 1.0 (Micikevicius et al. 2022, arXiv 2209.05433).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

NO_FP8 = 0
E4M3 = 1
E5M2 = 2

# What a kernel may read of this module has to be a constant of Triton's.
_E4M3 = tl.constexpr(E4M3)


def fp8_format(dtype: torch.dtype) -> int:
    """Return the constant that tells kernels how values of a dtype are stored: `NO_FP8`, `E4M3` or `E5M2`."""
    return {torch.float8_e4m3fn: E4M3, torch.float8_e5m2: E5M2}.get(dtype, NO_FP8)


def as_bits(values: Tensor) -> Tensor:
    """View 8-bit floats as the uint8 that kernels take; other dtypes are left as they are."""
    return values.view(torch.uint8) if fp8_format(values.dtype) != NO_FP8 else values


def widens_e4m3(device: torch.device) -> bool:
    """Say whether a GPU has an instruction that widens e4m3: NVIDIA's from compute capability 8.9 on."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 9)


@triton.jit
def from_fp8(bits: tl.tensor, FORMAT: tl.constexpr, HARDWARE: tl.constexpr) -> tl.tensor:
    """Widen 8-bit floats to float16, which holds every one of them exactly; NaN and infinities stay what they are.

    Args:
        bits: uint8.
        FORMAT: `E4M3` or `E5M2`.
        HARDWARE: use the GPU's own conversion of e4m3 (`widens_e4m3`).
    """
    if FORMAT == _E4M3:
        if HARDWARE:
            values = bits.to(tl.float8e4nv, bitcast=True).to(tl.float16)
        else:
            wide = bits.to(tl.uint16)
            # The exponent lands one bit short of float16's field, which makes every number, subnormal ones too, too
            # small by 2^8: their biases differ by 8.
            magnitude = ((wide & 0x7F) << 7).to(tl.float16, bitcast=True) * 256.0
            unsigned = tl.where((wide & 0x7F) == 0x7F, 0x7E00, magnitude.to(tl.uint16, bitcast=True))
            values = (unsigned.to(tl.uint16) | ((wide & 0x80) << 8)).to(tl.float16, bitcast=True)
    else:
        values = (bits.to(tl.uint16) << 8).to(tl.float16, bitcast=True)
    return values


@triton.jit
def to_fp8(values: tl.tensor, FORMAT: tl.constexpr) -> tl.tensor:
    """Round to the nearest 8-bit float, ties to even; what is beyond the largest one becomes it; NaN stays NaN.

    Args:
        values: any float type.
        FORMAT: `E4M3` or `E5M2`.

    Returns:
        uint8 bits.
    """
    # Bits of float32 that the format has no room for, the step of its subnormal numbers times 2^23 (adding it to a
    # subnormal number rounds away what is below that step), its least normal and its largest number as float32 bits.
    surplus: tl.constexpr = 20 if FORMAT == _E4M3 else 21
    bias_gap: tl.constexpr = 120 if FORMAT == _E4M3 else 112
    step: tl.constexpr = 16384.0 if FORMAT == _E4M3 else 128.0
    least_normal: tl.constexpr = 0x3C800000 if FORMAT == _E4M3 else 0x38800000
    largest: tl.constexpr = 0x43E00000 if FORMAT == _E4M3 else 0x47600000
    signed = values.to(tl.float32).to(tl.int32, bitcast=True)
    magnitude = signed & 0x7FFFFFFF
    clamped = tl.minimum(magnitude, largest)
    to_even = ((clamped >> surplus) & 1) + ((1 << (surplus - 1)) - 1)
    normal = ((clamped + to_even) >> surplus) - (bias_gap << (23 - surplus))
    shifted = clamped.to(tl.float32, bitcast=True) + step
    subnormal = shifted.to(tl.int32, bitcast=True) & 0xFF
    code = tl.where(clamped < least_normal, subnormal, normal)
    code = tl.where(magnitude > 0x7F800000, 0x7F, code)  # NaN in both formats
    return (code | ((signed >> 24) & 0x80)).to(tl.uint8)
