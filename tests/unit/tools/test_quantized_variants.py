"""The variants of a comparison are checkpoints, and only those that were asked for are made."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.tiny_model import tiny_checkpoint, tiny_gguf
from tools.quantized_variants import make_variants


def test_a_word_chooses_variants_by_name(tmp_path: Path) -> None:
    base, gguf = tiny_checkpoint("llama", dtype="bfloat16"), tiny_gguf("llama", "Q8_0").path
    variants = {variant.name: variant for variant in make_variants(base, gguf, tmp_path, ["awq", "at load", "q4_0"])}
    assert list(variants) == ["int4 awq", "fp8 at load", "int8 at load", "gguf q4_0"]
    assert variants["fp8 at load"].path == base
    assert variants["fp8 at load"].options == {"quantization": "fp8"}
    config = json.loads((variants["int4 awq"].path / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "awq"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["int4-awq", "q4_0.gguf"]


def test_formats_are_calibrated_where_there_is_a_text(tmp_path: Path) -> None:
    text, target = tmp_path / "text", tmp_path / "out"
    text.write_text("The keeper trims the lamp and writes the weather in a book. " * 100)
    base = tiny_checkpoint("llama", dtype="bfloat16")
    variants = {variant.name: variant.path for variant in make_variants(base, None, target, ["int8"], text)}
    assert list(variants) == ["int8", "int8 by group", "int8 gptq", "int8 calibrated", "int8 at load"]
    plain, calibrated = (variants[name] / "model.safetensors" for name in ("int8", "int8 calibrated"))
    assert plain.read_bytes() != calibrated.read_bytes()
