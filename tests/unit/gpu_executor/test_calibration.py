"""A model that is rounded along a text: every layer, to what reaches it, nearer to the model than rounding alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.models.registry import build_model
from pagewire.gpu_executor.quantize_checkpoint import main
from pagewire.gpu_executor.weights import load_weights
from tests.support.model_outputs import logits_of
from tests.support.tiny_model import tiny_checkpoint


def samples(directory: Path) -> Path:
    """Sequences of random tokens, of two lengths, neither a whole number of blocks."""
    generator = torch.Generator().manual_seed(7)
    ids = [torch.randint(0, 128, (length,), generator=generator).tolist() for length in [100] * 12 + [33]]
    path = directory / "samples.json"
    path.write_text(json.dumps(ids))
    return path


def quantize(source: Path, target: Path, *options: str) -> Path:
    assert main(["--to", "int4", "--out", str(target), "--overwrite", *options, str(source)]) == 0
    return target


def model_logits(checkpoint: Path) -> Tensor:
    """The logits of a prompt, in float32."""
    config = load_model_config(checkpoint)
    model = build_model(config, select_ops("reference"), dtype=torch.float32, device=torch.device("cpu"))
    load_weights(model, config)
    return logits_of(model)


@pytest.mark.parametrize("family", ["llama", "phi3", "gemma3"])
def test_logits_change_less_than_by_rounding_alone(tmp_path: Path, family: str) -> None:
    source = tiny_checkpoint(family, dtype="bfloat16")
    calibrated = quantize(source, tmp_path / "calibrated", "--calibration-ids", str(samples(tmp_path)))
    plain = quantize(source, tmp_path / "plain")
    before = model_logits(source)
    errors = [float((model_logits(path) - before).square().mean()) for path in (calibrated, plain)]
    assert errors[0] < 0.85 * errors[1], errors


def test_experts_are_rounded_to_the_tokens_that_reach_them(tmp_path: Path) -> None:
    source = tiny_checkpoint("mixtral", dtype="bfloat16")
    calibrated = quantize(source, tmp_path / "calibrated", "--calibration-ids", str(samples(tmp_path)))
    plain = quantize(source, tmp_path / "plain")
    ours, others = (load_file(path / "model.safetensors") for path in (calibrated, plain))
    packed = [name for name in ours if name.endswith("weight_packed")]
    assert any("experts" in name for name in packed)
    assert all(not torch.equal(ours[name], others[name]) for name in packed)
    assert model_logits(calibrated).isfinite().all()


def test_files_of_both_formats_are_those_of_rounding_but_for_codes_and_scales(tmp_path: Path) -> None:
    source, ids = tiny_checkpoint("llama", dtype="bfloat16", attention_bias=True), str(samples(tmp_path))
    for options in ([], ["--symmetric"], ["--format=gptq"]):
        calibrated = quantize(source, tmp_path / "calibrated", *options, "--calibration-ids", ids)
        plain = quantize(source, tmp_path / "plain", *options)
        assert (calibrated / "config.json").read_bytes() == (plain / "config.json").read_bytes()
        ours, others = (load_file(path / "model.safetensors") for path in (calibrated, plain))
        assert {name: (tensor.dtype, tensor.shape) for name, tensor in ours.items()} == {
            name: (tensor.dtype, tensor.shape) for name, tensor in others.items()
        }
        again = load_file(
            quantize(source, tmp_path / "again", *options, "--calibration-ids", ids) / "model.safetensors"
        )
        assert all(torch.equal(tensor, again[name]) for name, tensor in ours.items())
        is_code = ("weight_packed", "qweight")
        changed = [name for name, tensor in ours.items() if not torch.equal(tensor, others[name])]
        assert len([name for name in changed if name.endswith(is_code)]) == 14


def test_report_says_how_much_text_there_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quantize(tiny_checkpoint("llama"), tmp_path / "out", "--calibration-ids", str(samples(tmp_path)))
    assert "asymmetric) along 1,233 tokens in " in capsys.readouterr().out


def test_damaged_matrix_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = shutil.copytree(tiny_checkpoint("llama"), tmp_path / "model")
    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = torch.nan
    save_file(tensors, source / "model.safetensors")
    options = ["--to", "int4", "--out", str(tmp_path / "out"), "--calibration-ids", str(samples(tmp_path))]
    assert main([*options, str(source)]) == 2
    message = capsys.readouterr().err
    assert (
        "model.layers.1.mlp.gate_proj, model.layers.1.mlp.up_proj can't be rounded: the matrix holds a NaN" in message
    )
    assert not (tmp_path / "out").exists()


def test_numbers_without_scales_are_not_calibrated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--to", "fp8", "--out", str(tmp_path / "out"), "--calibration-ids", str(samples(tmp_path))]
    assert main([*options, str(tiny_checkpoint("llama"))]) == 2
    assert "--calibration-ids: fp8 is rounded number by number; give --to int4 or int8" in capsys.readouterr().err
