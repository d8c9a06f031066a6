"""One model in every format that can be made of it here: what `tools.compare_quantizations` compares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from pagewire.checkpoint.loading import load_model_config
from pagewire.frontend.quantize.calibration_text import calibration_ids
from pagewire.frontend.quantize.config import DEFAULT_CALIBRATION_TOKENS
from pagewire.gpu_executor import quantize_checkpoint
from pagewire.gpu_executor.formats.writing.quantized_directory import write_quantized
from tools.awq_packing import AWQPacking
from tools.dev_extra import dev_extra
from tools.requantize import requantize

with dev_extra():
    from transformers import AutoModelForCausalLM, AutoTokenizer

Kind = Literal["plain", "8-bit", "fp8", "4-bit"]


@dataclass(frozen=True, slots=True)
class Variant:
    """A checkpoint, and how it is served.

    Attributes:
        name: for people.
        kind: which limit of perplexity holds for it.
        path: a directory or a GGUF file.
        options: of the engine.
    """

    name: str
    kind: Kind
    path: Path
    options: dict[str, Any] = field(default_factory=dict)  # Any: as `LLM` takes them


# name -> kind, and the flags of `pagewire quantize`.
_BY_COMMAND: dict[str, tuple[Kind, tuple[str, ...]]] = {
    "int4 asymmetric": ("4-bit", ("int4", "--no-symmetric")),
    "int4 symmetric": ("4-bit", ("int4", "--symmetric")),
    "int4 gptq": ("4-bit", ("int4", "--format=gptq")),
    "int8": ("8-bit", ("int8",)),
    "int8 by group": ("8-bit", ("int8", "--group-size=32")),
    "int8 gptq": ("8-bit", ("int8", "--format=gptq")),
    "fp8": ("fp8", ("fp8",)),
}
# Likewise, along a text.
_CALIBRATED: dict[str, tuple[Kind, tuple[str, ...]]] = {
    f"{name} calibrated": _BY_COMMAND[name] for name in ("int4 asymmetric", "int4 gptq", "int8")
}
_AT_LOAD: dict[str, Kind] = {"fp8": "fp8", "int8": "8-bit"}
_GGUF_TYPES: dict[str, Kind] = {"q4_0": "4-bit", "q4_1": "4-bit", "q5_1": "4-bit", "q8_0": "8-bit"}


def export_gguf(source: Path, target: Path) -> None:
    """Write a GGUF model as a Hugging Face directory in bf16."""
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.bfloat16)
    # Unpacked it is a plain model, but still says of itself that it can't be saved.
    del model.hf_quantizer
    del model.config.quantization_config
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)


def make_variants(
    base: Path, gguf: Path | None, directory: Path, names: list[str], text: Path | None = None
) -> Iterator[Variant]:
    """Write the formats one by one, and give each when it is there.

    Args:
        base: the model as a plain Hugging Face directory.
        gguf: the same as a GGUF file, for types of its own; None: none.
        directory: where to write.
        names: words; a variant counts if one is part of its name. Empty: all.
        text: a file of text to calibrate some formats along; None: none is.
    """

    def is_wanted(name: str) -> bool:
        return not names or any(word in name for word in names)

    for name, (kind, flags) in _BY_COMMAND.items():
        if is_wanted(name):
            yield Variant(name, kind, _quantize(base, directory / name.replace(" ", "-"), flags))
    for name, (kind, flags) in _CALIBRATED.items() if text else ():
        if text and is_wanted(name):
            with calibration_ids(base, text, DEFAULT_CALIBRATION_TOKENS) as samples:
                target = directory / name.replace(" ", "-")
                yield Variant(name, kind, _quantize(base, target, (*flags, "--calibration-ids", str(samples))))
    if is_wanted("int4 awq"):
        yield Variant("int4 awq", "4-bit", _write_awq(base, directory / "int4-awq"))
    for to, kind in _AT_LOAD.items():
        if is_wanted(f"{to} at load"):
            yield Variant(f"{to} at load", kind, base, {"quantization": to})
    for ggml_type, gguf_kind in _GGUF_TYPES.items() if gguf else ():
        if gguf and is_wanted(f"gguf {ggml_type}"):
            target = directory / f"{ggml_type}.gguf"
            requantize(gguf, target, ggml_type, "q8_0")
            yield Variant(f"gguf {ggml_type}", gguf_kind, target)


def _quantize(base: Path, target: Path, flags: Sequence[str]) -> Path:
    code = quantize_checkpoint.main(["--to", *flags, "--out", str(target), "--overwrite", str(base)])
    if code:
        raise RuntimeError(f"quantize --to {' '.join(flags)} ended with {code}")
    return target


def _write_awq(base: Path, target: Path) -> Path:
    layers = quantize_checkpoint.linear_layers(load_model_config(base))
    write_quantized(
        base, target, AWQPacking(32), layers, max_file_bytes=5 * 10**9, progress=lambda name, num_bytes: None
    )
    return target
