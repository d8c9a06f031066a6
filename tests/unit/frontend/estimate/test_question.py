"""From flags to the question."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagewire.frontend.estimate.config import EstimateConfig
from pagewire.frontend.estimate.question import make_question
from pagewire.ipc.config import GPU_STEP_LIMITS
from pagewire.ipc.errors import ConfigError
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf


def test_without_flags_an_engine_on_a_gpu_is_meant():
    question = make_question("llama-3-8b", EstimateConfig())
    assert question.name == "llama-3-8b (built-in shape)"
    assert question.served.limits == GPU_STEP_LIMITS
    assert (question.served.bits.name, question.served.kv.name) == ("bfloat16", "bfloat16")
    assert (question.device, question.context, question.output_tokens) == (None, 4096, 256)


def test_a_directory_without_weights_is_enough(tmp_path: Path):
    (tmp_path / "config.json").write_bytes((tiny_checkpoint() / "config.json").read_bytes())
    for name in (tmp_path, tmp_path / "config.json"):
        assert make_question(str(name), EstimateConfig()).served.model.hidden_size == 64


def test_files_go_before_built_in_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "llama-3-8b").mkdir()
    (tmp_path / "llama-3-8b" / "config.json").write_bytes((tiny_checkpoint() / "config.json").read_bytes())
    monkeypatch.chdir(tmp_path)
    assert make_question("llama-3-8b", EstimateConfig()).served.model.hidden_size == 64


def test_a_gguf_file_has_its_own_bits_unless_others_are_named():
    path = str(tiny_gguf("llama", "Q8_0").path)
    assert make_question(path, EstimateConfig()).served.bits.layers == 8.5
    assert make_question(path, EstimateConfig(weights="int4")).served.bits.layers == 5


def test_lengths_are_cut_to_what_the_model_can():
    question = make_question(str(tiny_checkpoint()), EstimateConfig())
    assert (question.context, question.output_tokens) == (512, 256)
    question = make_question(str(tiny_checkpoint()), EstimateConfig(context_len=3))
    assert (question.context, question.output_tokens) == (3, 1)


def test_devices_without_bfloat16_get_float16():
    served = make_question("llama-3-8b", EstimateConfig(gpu="v100")).served
    assert (served.bits.name, served.kv.name) == ("float16", "float16")
    with pytest.raises(ConfigError, match="give float16"):
        make_question("llama-3-8b", EstimateConfig(gpu="v100", weights="bfloat16"))


@pytest.mark.parametrize(("name", "size"), [("fp8", 1), ("float16", 2), ("auto", 2)])
def test_the_cache_has_the_named_type(name: str, size: int):
    config = EstimateConfig(kv_cache_dtype=name)  # type: ignore[arg-type]  # of the names that there are
    assert make_question("llama-3-8b", config).served.kv.bytes_a_value == size
