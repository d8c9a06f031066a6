"""Every process logs in one form to standard error."""

from __future__ import annotations

import logging

import pytest

from pagewire.ipc.logs import setup_logging


@pytest.fixture(autouse=True)
def _restored():
    logger = logging.getLogger("pagewire")
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


def test_lines_name_level_and_process(capsys: pytest.CaptureFixture[str]):
    setup_logging("core", "info")
    logging.getLogger("pagewire.engine_core.loop").info("taken: %s", 3)
    logging.getLogger("pagewire.engine_core.loop").debug("hidden")
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("INFO ")
    assert line.endswith("[core] taken: 3")


def test_setting_up_twice_does_not_double_lines(capsys: pytest.CaptureFixture[str]):
    setup_logging("core", "info")
    setup_logging("core", "warning")
    logging.getLogger("pagewire.x").warning("once")
    logging.getLogger("pagewire.x").info("hidden")
    assert capsys.readouterr().err.count("\n") == 1
