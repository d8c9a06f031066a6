"""`pagewire keys make`, and the flags that take what it made."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagewire.frontend.cli.main import run


def test_make_writes_a_pair_for_each_name_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    directory = tmp_path / "keys"
    assert run(["keys", "make", str(directory), "engine", "web"]) == 0
    printed = capsys.readouterr().out.split()
    assert printed == [f"{directory}/{name}{end}" for name in ("engine", "web") for end in (".key", ".key_secret")]
    assert sorted(map(str, directory.iterdir())) == sorted(printed)


def test_without_names_there_is_an_engine_and_a_client(tmp_path: Path):
    assert run(["keys", "make", str(tmp_path)]) == 0
    assert {path.stem for path in tmp_path.iterdir()} == {"engine", "client"}


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["keys", "mak"], "did you mean make?"),
        (["keys", "make"], "DIR"),
        (["key"], "did you mean keys?"),
    ],
)
def test_what_is_not_there_is_one_line(args: list[str], part: str, capsys: pytest.CaptureFixture[str]):
    assert run(args) == 2
    err = capsys.readouterr().err
    assert part in err
    assert err.count("\n") == 1


def test_a_second_make_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["keys", "make", str(tmp_path)]) == 0
    capsys.readouterr()
    assert run(["keys", "make", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
