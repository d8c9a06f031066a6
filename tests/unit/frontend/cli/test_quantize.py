"""`pagewire quantize` as it is typed: what it refuses before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagewire.frontend.cli.main import run
from tests.support.tiny_model import tiny_gguf


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """Run a command line that must end with exit code 2, and return its one line."""
    assert run(["quantize", *args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (("m", "--out", "o"), "Missing option '--to'"),
        (("m", "--to", "int4"), "Missing option '--out'"),
        (("--to", "int4", "--out", "o"), "Missing argument 'MODEL'"),
        (("m", "--to", "int5", "--out", "o"), "int5 is not supported yet: there is no layout for it"),
        (("m", "--to", "awq", "--out", "o"), "(int4 --calibrate takes samples of text); choose from"),
        (("m", "--to", "four", "--out", "o"), "'four' is not one of fp8, int4, int8"),
        (("m", "--to", "int4", "--out", "o", "--group-size", "48"), "--group-size 48 must be 32, 64, 128, or -1"),
        (
            ("m", "--to", "int4", "--out", "o", "--max-shard-gb", "0"),
            "--max-shard-gb 0 must be a finite number above 0",
        ),
        (("m", "--to", "int4", "--out", "o", "--max-shard-gb", "inf"), "--max-shard-gb inf must be a finite number"),
        (("m", "--to", "fp8", "--out", "o", "--group-size", "32"), "--group-size: fp8 has one scale a row"),
        (("m", "--to", "fp8", "--out", "o", "--asymmetric"), "--asymmetric: fp8 has no zero points"),
        (("m", "--to", "fp8", "--out", "o", "--calibrate", "t"), "--calibrate: fp8 is rounded number by number"),
        (
            ("m", "--to", "int4", "--out", "o", "--calibration-tokens", "4096"),
            "--calibration-tokens: there is no text; give --calibrate FILE",
        ),
        (
            ("m", "--to", "int4", "--out", "o", "--calibrate", "t", "--calibration-tokens", "2047"),
            "--calibration-tokens 2047 must be at least 2048",
        ),
        (("m", "--to", "int4", "--out", "o", "--num-samples", "8"), "use --calibration-tokens"),
        (("m", "--to", "fp8", "--out", "o", "--format", "gptq"), "--format gptq holds integers"),
        (("m", "--to", "int4", "--out", "o", "--format", "gptq", "--asymmetric"), "gptq is written symmetric"),
        (("m", "--to", "int4", "--out", "o", "--bits", "4"), "--bits is not taken: use --to int4 or --to int8"),
        (("m", "--to", "int4", "--out", "o"), "model 'm': there is no such file or directory"),
    ],
)
def test_what_can_not_be_met_is_one_line(capsys: pytest.CaptureFixture[str], args: tuple[str, ...], part: str):
    assert part in refused(capsys, *args)


def test_gguf_model_is_refused_with_the_remedy(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    line = refused(capsys, str(tiny_gguf().path), "--to", "int4", "--out", str(tmp_path / "out"))
    assert "tiny.gguf is a GGUF model" in line
    assert "name the safetensors checkpoint that it was made of" in line
    assert not (tmp_path / "out").exists()


def test_other_names_of_the_types_are_known(capsys: pytest.CaptureFixture[str]):
    assert "model 'm'" in refused(capsys, "m", "--to", "W4A16", "--out", "o")


def test_help_shows_the_flags(capsys: pytest.CaptureFixture[str]):
    assert run(["quantize", "--help"]) == 0
    text = capsys.readouterr().out
    for part in (
        "fp8|int4|int8",
        "--symmetric / --asymmetric",
        "--group-size",
        "--overwrite",
        "Largest file of weights",
    ):
        assert part in text
