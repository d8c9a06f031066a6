"""`pagewire quantize --calibrate` as it is typed, and its copy served."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagewire.frontend.cli.main import run
from pagewire.frontend.offline.llm import LLM
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.tiny_model import tiny_checkpoint


@pytest.mark.slow
def test_model_that_was_rounded_along_a_text_is_served(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the tool's products are too small to share
    text, target = tmp_path / "text", tmp_path / "out"
    text.write_text("The keeper trims the lamp and writes the weather in a book. " * 100)
    model = str(tiny_checkpoint("llama", dtype="bfloat16"))
    options = ["--to", "int4", "--out", str(target), "--calibration-tokens", "2048"]
    assert run(["quantize", model, *options, "--calibrate", str(tmp_path / "none")]) == 2
    assert "none can't be read: No such file or directory; name a file of text" in capfd.readouterr().err
    assert run(["quantize", model, *options, "--calibrate", str(text)]) == 0
    assert "along 2,048 tokens in " in capfd.readouterr().out
    with LLM(model=str(target), max_model_len=128) as llm:
        (output,) = llm.generate("The lamp", SamplingParams(max_tokens=5, seed=1, ignore_eos=True), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 5
