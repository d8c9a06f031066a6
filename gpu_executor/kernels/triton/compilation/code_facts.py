"""What a compiled kernel needs of a device, read from the compiler's own words."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .targets import Target

_REGISTERS = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
# ptxas says so when it has to wait after each wgmma, which costs more than a spill.
_LOSS = re.compile(r"Potential Performance Loss: (.*)")
# In the metadata at the end of AMD's assembly: .vgpr_count: 66
_AMD_FIELD = r"^\s*\.{}:\s*(\d+)\s*$"


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """What a compiled kernel needs.

    Attributes:
        registers: of a thread; AMD: vector registers, the accumulation ones included.
        spilled_bytes: of a thread, that did not fit into registers and go to memory and back.
        shared_bytes: of a program.
        matrix_instructions: which kinds of the target's are in it.
        remarks: losses that the compiler points out.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    matrix_instructions: tuple[str, ...]
    remarks: tuple[str, ...]


def read_code_facts(target: Target, assembly: str, log: str, shared_bytes: int) -> CodeFacts:
    """Return the facts about one compilation.

    Args:
        target: what it was compiled for.
        assembly: PTX, or AMD's assembly.
        log: what ptxas printed, being verbose; AMD's compiler says all in the assembly.
        shared_bytes: from Triton's metadata.

    Raises:
        ValueError: a number is not where it was expected; another version of the compiler may say it otherwise.
    """
    if target.backend == "hip":
        fields = {name: _amd_field(name, assembly) for name in ("vgpr_count", "private_segment_fixed_size")}
        registers, spilled = fields["vgpr_count"], fields["private_segment_fixed_size"]
    else:
        if not log:
            raise ValueError("this Triton does not hand out what ptxas says of registers; Triton 3.7 and newer do")
        registers = int(_only(_REGISTERS, log)[1])
        frame = _only(_SPILLS, log)
        # The frame also counts arrays that are indexed at run time: memory traffic all the same.
        spilled = max(int(frame[1]), int(frame[2]))
    return CodeFacts(
        registers=registers,
        spilled_bytes=spilled,
        shared_bytes=shared_bytes,
        matrix_instructions=tuple(name for name in target.matrix_instructions if _has_instruction(name, assembly)),
        remarks=tuple(dict.fromkeys(_LOSS.findall(log))),
    )


def _has_instruction(name: str, assembly: str) -> bool:
    return re.search(rf"(?<![\w.%]){re.escape(name)}(?![^\W_])[\w.:]*\s", assembly) is not None


def _amd_field(name: str, assembly: str) -> int:
    return int(_only(re.compile(_AMD_FIELD.format(name), re.MULTILINE), assembly)[1])


def _only(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = list(pattern.finditer(text))
    if len(found) != 1:
        raise ValueError(
            f"{pattern.pattern!r} matches {len(found)} times in the compiler's output, not once:\n{text[-2000:]}"
        )
    return found[0]
