"""A quantized copy is whole or not there, and holds what the original does but for its linear layers."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagewire.gpu_executor.quantize_checkpoint import main
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf
from tests.support.unpacking import unpack_layer

# Options -> the greatest relative error of a matrix, root mean square.
FORMATS = {
    ("int4",): 0.08,
    ("int4", "--symmetric"): 0.1,
    ("int4", "--group-size=64"): 0.09,
    ("int4", "--format=gptq"): 0.1,
    ("int8",): 0.008,
    ("int8", "--group-size=64", "--no-symmetric"): 0.008,
    ("int8", "--format=gptq", "--group-size=32"): 0.008,
    ("fp8",): 0.03,
}


def quantize(source: Path, target: Path, to: str, *options: str) -> None:
    assert main(["--to", to, "--out", str(target), *options, str(source)]) == 0


def refused(capsys: pytest.CaptureFixture[str], source: Path, target: Path, *options: str, code: int = 2) -> str:
    """Run the tool, which must fail, and return its one line."""
    assert main(["--to", "int4", "--out", str(target), *options, str(source)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("pagewire: error: ")]
    assert len(lines) == 1
    return lines[0]


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("options", FORMATS, ids=" ".join)
def test_linear_layers_are_rounded_and_all_else_is_copied(tmp_path: Path, options: tuple[str, ...]) -> None:
    source = tiny_checkpoint("llama", attention_bias=True, dtype="bfloat16")
    quantize(source, tmp_path / "out", *options)
    before, after = load_file(source / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    linear = [name.removesuffix(".weight") for name in before if name.endswith("_proj.weight")]
    assert len(linear) == 14
    for module in linear:
        matrix = before.pop(f"{module}.weight").double()
        unpacked = unpack_layer(after, module, config["quantization_config"])
        assert (unpacked - matrix).square().mean().sqrt() <= FORMATS[options] * matrix.square().mean().sqrt(), module
        after = {name: tensor for name, tensor in after.items() if name == f"{module}.bias" or module not in name}
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype
        assert torch.equal(after[name], tensor), name


def test_everything_beside_the_weights_comes_along(tmp_path: Path) -> None:
    source = shutil.copytree(tiny_checkpoint(), tmp_path / "model")
    for name in ("LICENSE", "chat_template.jinja", "merges.txt", "training_args.bin", ".gitattributes"):
        (source / name).write_text(name)
    quantize(source, tmp_path / "out", "int4")
    assert names_in(tmp_path / "out") == [
        "LICENSE", "chat_template.jinja", "config.json", "generation_config.json", "merges.txt", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config.pop("quantization_config")["ignore"] == ["lm_head"]
    assert config == json.loads((source / "config.json").read_text())


def test_copy_may_have_other_files_of_weights_than_the_original(tmp_path: Path) -> None:
    source = tiny_checkpoint("qwen2", num_shards=2, tie_word_embeddings=True)
    quantize(source, tmp_path / "one", "int8")
    quantize(source, tmp_path / "many", "int8", "--max-shard-gb", "0.00005")
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())["weight_map"]
    many = {name: load_file(tmp_path / "many" / file)[name] for name, file in index.items()}
    one = load_file(tmp_path / "one" / "model.safetensors")
    assert len(set(index.values())) > 2
    assert "lm_head.weight" not in one
    assert one.keys() == many.keys()
    assert all(torch.equal(one[name], many[name]) for name in one)
    assert "model.safetensors.index.json" not in names_in(tmp_path / "one")


def test_report_says_sizes_bits_and_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quantize(tiny_checkpoint(dtype="bfloat16"), tmp_path / "out", "int4", "--symmetric")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        "14 linear layers rounded to int4 (compressed-tensors pack-quantized, groups of 32, symmetric) in "
    )
    assert lines[1] == "weights: 0.3 MB -> 0.2 MB"
    # 4 bits and a scale of 16 for each 32; weight_shape is 16 bytes, which only tiny matrices notice.
    assert lines[2] == "bits a weight: 16.00 -> 9.94; 4.52 in these layers, the others stay as they are"
    assert lines[3] == f"written: {tmp_path / 'out'}"


def test_int8_has_a_scale_a_row_whatever_its_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quantize(tiny_checkpoint(hidden_size=80, intermediate_size=80), tmp_path / "odd", "int8")
    assert "rows, symmetric" in capsys.readouterr().out


def test_directory_with_files_is_left_alone_unless_it_may_be_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out"
    target.mkdir()
    quantize(tiny_checkpoint(), target, "int4")  # an empty one is as good as none
    capsys.readouterr()
    (target / "mine").write_text("x")
    assert "holds files already; name another directory, or give --overwrite" in refused(
        capsys, tiny_checkpoint(), target
    )
    assert "holds mine, which is no part of a checkpoint" in refused(capsys, tiny_checkpoint(), target, "--overwrite")
    assert "mine" in names_in(target)
    (target / "mine").rename(target / "mine.txt")
    quantize(tiny_checkpoint(), target, "int4", "--overwrite")
    assert "mine.txt" not in names_in(target)
    assert names_in(tmp_path) == ["out"]


def test_place_of_the_model_itself_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = shutil.copytree(tiny_checkpoint(), tmp_path / "models" / "m")
    for target in (source, source.parent):
        assert "is or holds the model itself" in refused(capsys, source, target, "--overwrite")
    (tmp_path / "file").write_text("")
    assert "is a file; name a directory" in refused(capsys, source, tmp_path / "file")


def test_gguf_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, tiny_gguf().path, tmp_path / "out")
    assert "is a GGUF file" in line
    assert "name the safetensors checkpoint" in line


def test_quantized_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quantize(tiny_checkpoint(), tmp_path / "once", "int8")
    capsys.readouterr()
    line = refused(capsys, tmp_path / "once", tmp_path / "twice")
    assert "is quantized already (compressed-tensors)" in line


def test_rows_that_groups_do_not_divide_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, tiny_checkpoint(hidden_size=80), tmp_path / "out")
    assert "model.layers.0.mlp.gate_proj: its 80 input channels are no multiple of --group-size 32" in line


def test_damaged_checkpoint_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = shutil.copytree(tiny_checkpoint(), tmp_path / "model")
    tensors = load_file(source / "model.safetensors")
    broken = tensors["model.layers.1.mlp.up_proj.weight"]
    broken[3, 5] = torch.nan
    save_file(tensors, source / "model.safetensors")
    line = refused(capsys, source, tmp_path / "out")
    assert "tensor 'model.layers.1.mlp.up_proj.weight': holds NaN or infinity" in line
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, source / "model.safetensors")
    assert "the checkpoint lacks model.layers.1.mlp.up_proj.weight" in refused(capsys, source, tmp_path / "out")
    assert names_in(tmp_path) == ["model"]


def test_what_an_ended_run_left_is_replaced(tmp_path: Path) -> None:
    partial = tmp_path / "out.partial"
    partial.mkdir()
    (partial / "model.safetensors").write_text("half")
    quantize(tiny_checkpoint(), tmp_path / "out", "fp8")
    assert names_in(tmp_path) == ["out"]


def test_disk_that_can_not_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    line = refused(capsys, tiny_checkpoint(), tmp_path / "file" / "out", code=1)
    assert "can't be written: Not a directory" in line


# The tool as it is started, but that the first tensor takes for ever to write: it says so.
_ENDLESS = """
import sys
from pagewire.gpu_executor import quantize_checkpoint
from pagewire.gpu_executor.formats.writing.safetensors_writer import SafetensorsWriter

def write(self, name, tensor):
    print("writing", flush=True)
    while True:
        pass

SafetensorsWriter.write = write
quantize_checkpoint.end_on_signals()
sys.exit(quantize_checkpoint.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("is_told", [True, False])
def test_tool_that_ends_early_leaves_nothing(tmp_path: Path, is_told: bool) -> None:
    target = tmp_path / "out"
    options = ["--end-with-stdin", "--to", "int4", "--out", str(target), str(tiny_checkpoint("llama"))]
    command = [sys.executable, "-P", "-c", _ENDLESS, *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as tool:
        assert tool.stdin is not None
        assert tool.stdout is not None
        assert tool.stdout.readline() == b"writing\n"
        assert names_in(tmp_path) == ["out.partial"]
        if is_told:
            tool.terminate()
        else:
            tool.stdin.close()  # as it is when our process ends
        assert tool.wait() == 128 + signal.SIGTERM
    assert names_in(tmp_path) == []
