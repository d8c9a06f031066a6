"""Errors are planted where the sources are today, and one that no test sees is told from one that is seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.plant_errors.__main__ import Verdict, main, run_with
from tools.plant_errors.errors import ERRORS, ROOT, PlantedError


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: f"{Path(error.file).stem}: {error.what}")
def test_each_error_has_its_place_in_the_source(error: PlantedError):
    assert error.planted() != (ROOT / error.file).read_text(encoding="utf-8")
    compile(error.planted(), error.file, "exec")
    assert (ROOT / error.tests).exists()


def test_a_piece_that_is_not_there_once_is_refused():
    with pytest.raises(ValueError, match=r"ipc/errors\.py has 'class ' \d+ times, not once: 'x' needs another piece"):
        PlantedError("x", "ipc/errors.py", "class ", "", "tests").planted()


@pytest.mark.slow
def test_tests_that_see_an_error_and_tests_that_do_not(tmp_path: Path):
    error = ERRORS[0]
    assert run_with(error)[0] is Verdict.NOTICED
    blind = tmp_path / "test_blind.py"
    blind.write_text(f"import {error.module}\n\ndef test_nothing():\n    pass\n", encoding="utf-8")
    assert run_with(error._replace(tests=str(blind)))[0] is Verdict.UNNOTICED


@pytest.mark.slow
def test_tests_that_do_not_end_have_seen_the_error(tmp_path: Path):
    endless = tmp_path / "test_endless.py"
    endless.write_text("while True:\n    pass\n", encoding="utf-8")
    assert run_with(ERRORS[0]._replace(tests=str(endless)), time_limit=0.5)[0] is Verdict.HANGS


def test_a_kernel_without_errors_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "no errors for nothing: there are some for" in capsys.readouterr().err
