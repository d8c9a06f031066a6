"""Launch choices of the kernels that stream: norms, rotation, gating, lookups of packed rows, bounds of logits.

All of them move bytes and little else, so that a program wants enough of them in flight (16 bytes a thread and load)
and a step of few tokens wants enough programs. No choice depends on the number of rows: a row's reductions have the
same order in any batch.
"""

from __future__ import annotations

from .row import LaunchRow

RMS_NORM = (
    LaunchRow(
        kernel="rms_norm",
        at_most={"size": 256},
        constants={"BLOCK_ROWS": 16},
        num_warps=4,
        num_stages=1,
        reason="query and key heads: a head is too short for a program, half a warp reads one in a load",
    ),
    LaunchRow(
        kernel="rms_norm",
        at_most={"size": 2048},
        constants={"BLOCK_ROWS": 1},
        num_warps=4,
        num_stages=1,
        reason="16 channels a thread at most",
    ),
    LaunchRow(
        kernel="rms_norm",
        at_most={"size": 8192},
        constants={"BLOCK_ROWS": 1},
        num_warps=8,
        num_stages=1,
        reason="32 channels a thread at most: the row stays in registers between the sum and the scaling",
    ),
    LaunchRow(
        kernel="rms_norm",
        at_most={},
        constants={"BLOCK_ROWS": 1},
        num_warps=16,
        num_stages=1,
        reason="16,384 channels are 32 a thread; a program has a multiprocessor's registers to itself",
    ),
)

ROTARY = (
    LaunchRow(
        kernel="rotary",
        at_most={},
        constants={"BLOCK_HEADS": 8},
        num_warps=4,
        num_stages=1,
        reason="8 heads of 128 channels are 8 a thread; one token of an 8B model is 5 programs",
    ),
)

GATE = (
    LaunchRow(
        kernel="gate",
        at_most={},
        constants={"BLOCK_SIZE": 1024},
        num_warps=4,
        num_stages=1,
        reason="8 channels a thread are one 16-byte load each of gate and up; one token is 14 programs at 14,336",
    ),
)

EMBEDDING = (
    LaunchRow(
        kernel="embedding",
        at_most={},
        constants={"BLOCK_UNITS": 32},
        num_warps=4,
        num_stages=1,
        reason="32 units of 64 channels: a row of 4,096 is two programs, and a thread unpacks 16 of it",
    ),
)

BOUND_LOGITS = (
    LaunchRow(
        kernel="bound_logits",
        at_most={},
        constants={"BLOCK_SIZE": 1024},
        num_warps=4,
        num_stages=1,
        reason="8 logits a thread are one 16-byte load of 16-bit ones; a row of 256,000 is 250 programs",
    ),
)

ROWS: tuple[LaunchRow, ...] = RMS_NORM + ROTARY + GATE + EMBEDDING + BOUND_LOGITS
