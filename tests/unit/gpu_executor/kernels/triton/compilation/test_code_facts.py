"""What compilers print is read exactly, or refused."""

from __future__ import annotations

import pytest

from pagewire.gpu_executor.kernels.triton.compilation.code_facts import CodeFacts, read_code_facts
from pagewire.gpu_executor.kernels.triton.compilation.targets import TARGETS

PTXAS_12 = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'mm' for 'sm_80'
ptxas info    : Function properties for mm
    {frame} bytes stack frame, {stores} bytes spill stores, 448 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 464 bytes cumulative stack size, 408 bytes cmem[0]
"""
PTXAS_13 = """\
ptxas-blackwell info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to x
ptxas-blackwell info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to x
ptxas-blackwell info    : Function properties for mm
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas-blackwell info    : Used 58 registers, used 1 barriers
"""
AMD = """\
\tv_mfma_f32_32x32x8_f16 a[0:15], v[2:3], v[4:5], a[0:15]
; NumVgprs: 66
\t.set .num_vgpr, 66
    .agpr_count:     16
    .private_segment_fixed_size: 24
    .vgpr_count:     82
    .vgpr_spill_count: 6
"""


def test_ptxas_names_registers_and_spills():
    ptx = "\tmma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 { %r1 };\n"
    facts = read_code_facts(TARGETS["sm_80"], ptx, PTXAS_12.format(frame=464, stores=580), 8192)
    assert facts == CodeFacts(168, 580, 8192, ("mma.sync",), ())


def test_an_array_in_memory_counts_as_spilled():
    assert read_code_facts(TARGETS["sm_80"], "", PTXAS_12.format(frame=64, stores=0), 0).spilled_bytes == 64


def test_newer_ptxas_points_out_losses():
    ptx = "\t@%p1 wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%f1}, %rd1;\n"
    facts = read_code_facts(TARGETS["sm_90"], ptx, PTXAS_13, 24576)
    assert facts.matrix_instructions == ("wgmma.mma_async",)
    assert facts.remarks == ("wgmma.mma_async instructions are serialized due to x",)


def test_amd_registers_include_those_that_accumulate():
    assert read_code_facts(TARGETS["gfx942"], AMD, "", 4096) == CodeFacts(82, 24, 4096, ("v_mfma",), ())


@pytest.mark.parametrize("assembly", ["", ".reg .b32 %mma.synchronous;", "xmma.sync.aligned y", "mma.syncs y"])
def test_a_name_that_only_looks_like_an_instruction_is_none(assembly: str):
    log = PTXAS_12.format(frame=0, stores=0)
    assert read_code_facts(TARGETS["sm_80"], assembly, log, 0).matrix_instructions == ()


def test_a_triton_without_the_compilers_words_is_named():
    with pytest.raises(ValueError, match=r"Triton 3\.7 and newer do"):
        read_code_facts(TARGETS["sm_80"], "", "", 0)


def test_output_of_another_form_is_refused():
    with pytest.raises(ValueError, match="not once"):
        read_code_facts(TARGETS["sm_80"], "", "ptxas info: 12 regs", 0)
    with pytest.raises(ValueError, match="matches 2 times"):
        read_code_facts(TARGETS["sm_80"], "", PTXAS_12.format(frame=0, stores=0) * 2, 0)
