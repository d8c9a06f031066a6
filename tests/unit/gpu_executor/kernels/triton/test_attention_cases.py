"""What models and devices cause is compiled ahead of time: each way to attend with the caches and masks it meets."""

from __future__ import annotations

import pytest

from pagewire.gpu_executor.kernels.triton.compilation.targets import CHECKED_TARGETS, TARGETS
from pagewire.gpu_executor.kernels.triton.launches.row import CompileCase, LaunchRow, pick
from tools.compile_jobs import is_chosen_on, is_for

pytest.importorskip("triton")

from pagewire.gpu_executor.kernels.triton.attention_cases import chunk_cases, decode_cases, short_chunk_cases
from pagewire.gpu_executor.kernels.triton.fp8 import E4M3, NO_FP8
from pagewire.gpu_executor.kernels.triton.launches.attention import (
    CHUNK_ATTENTION,
    DECODE_ATTENTION,
    SHORT_CHUNK_ATTENTION,
)

WAYS = {
    "decode": (DECODE_ATTENTION, decode_cases),
    "short chunk": (SHORT_CHUNK_ATTENTION, short_chunk_cases),
    "chunk": (CHUNK_ATTENTION, chunk_cases),
}
each_way = pytest.mark.parametrize("way", WAYS)
each_target = pytest.mark.parametrize("target", CHECKED_TARGETS)


def cases_on(target: str, way: str) -> list[CompileCase]:
    rows, cases_of = WAYS[way]
    chosen = [row for number, row in enumerate(rows) if is_chosen_on(TARGETS[target], rows, number)]
    return [case for row in chosen for case in cases_of(row) if is_for(TARGETS[target], case)]


@each_way
@each_target
def test_e4m3_is_compiled_with_the_conversion_that_a_device_has(way: str, target: str) -> None:
    constants = [case.constants for case in cases_on(target, way)]
    hardware = {values["HARDWARE_FP8"] for values in constants if values["KV_FORMAT"] == E4M3}
    assert any(values["KV_FORMAT"] != NO_FP8 for values in constants)
    assert (True in hardware) == (target in ("sm_89", "sm_90"))


@each_way
@each_target
def test_windows_soft_caps_and_their_absence_are_compiled(way: str, target: str) -> None:
    masks = {(case.constants["HAS_WINDOW"], case.constants["HAS_SOFT_CAP"]) for case in cases_on(target, way)}
    assert masks == {(False, False), (True, True)}


@pytest.mark.parametrize("rows", [DECODE_ATTENTION, SHORT_CHUNK_ATTENTION, CHUNK_ATTENTION])
@each_target
def test_the_kind_of_cache_does_not_change_where_keys_are_split(rows: tuple[LaunchRow, ...], target: str) -> None:
    shared_kib = TARGETS[target].max_shared_kib
    for head_dim in (64, 128, 256):
        lengths = {
            pick(rows, head_dim=head_dim, element_bytes=2, kv_bytes=kv_bytes, shared_kib=shared_kib).constants[
                "SPLIT_LEN"
            ]
            for kv_bytes in (1, 2)
        }
        assert len(lengths) == 1
