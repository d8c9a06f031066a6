from __future__ import annotations

from pathlib import Path

import click
import pytest

from pagewire.frontend.cli.config_file import read_config_file
from pagewire.frontend.cli.flags import FlagOption, engine_flags, server_flags

OPTIONS = [FlagOption(flag) for flag in [*engine_flags(), *server_flags()]]


def read(tmp_path: Path, text: str) -> dict[str, object]:
    file = tmp_path / "config.yaml"
    file.write_text(text, encoding="utf-8")
    return read_config_file(str(file), OPTIONS, {"--listen": "pagewire engine"})


def test_keys_are_flags_with_dashes_or_underscores(tmp_path: Path):
    text = "max-num-seqs: 4\nblock_size: 32\n--port: 1\nenable-prefix-caching: false\n"
    values = {"max_num_seqs": 4, "block_size": 32, "port": 1, "enable_prefix_caching": False}
    assert read(tmp_path, text) == values


def test_one_name_or_a_list_of_names(tmp_path: Path):
    assert read(tmp_path, "served-model-name: a") == {"served_model_name": ["a"]}
    assert read(tmp_path, "served-model-name: [a, b]") == {"served_model_name": ["a", "b"]}


def test_an_empty_file_and_an_empty_value_give_nothing(tmp_path: Path):
    assert read(tmp_path, "# nothing yet\n") == {}
    assert read(tmp_path, "port:\n") == {}


def test_flag_that_asks_for_what_is_done_anyway_gives_nothing_but_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert read(tmp_path, "task: generate\nport: 1\n") == {"port": 1}
    assert "config.yaml, --task generate is what it does anyway" in capsys.readouterr().err
    with pytest.raises(click.UsageError, match="task: --task is not supported yet"):
        read(tmp_path, "task: score")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("max-num-seq: 4", "max-num-seq: unknown flag --max-num-seq; did you mean --max-num-seqs?"),
        ("hf-token: auto", "--hf-token is not supported yet"),
        ("listen: ipc:///x", "--listen is a flag of `pagewire engine`"),
        ("port: 1\n--port: 2", "--port stands in it twice"),
        ("port: [1, 2]", "port takes one value"),
        ("model: {name: x}", "model takes one value"),
        ("- port", "must hold one mapping"),
        ("port: 'x", "not valid YAML (line"),
        ("port: !!python/object:os.system 1", "not valid YAML"),
    ],
)
def test_what_can_not_be_meant_is_refused_by_name(text: str, part: str, tmp_path: Path):
    with pytest.raises(click.UsageError) as caught:
        read(tmp_path, text)
    assert part in caught.value.message
    assert "config.yaml" in caught.value.message


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path: Path):
    with pytest.raises(click.UsageError, match="No such file"):
        read_config_file(str(tmp_path / "none.yaml"), OPTIONS, {})
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(click.UsageError, match="not UTF-8"):
        read_config_file(str(tmp_path / "b"), OPTIONS, {})
