"""Every process logs in one form to standard error."""

from __future__ import annotations

import json
import logging
import sys
import threading

import pytest

from pagewire.ipc.logs import current_log_format, setup_logging


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


def test_json_is_an_object_a_line_whatever_the_message(capsys: pytest.CaptureFixture[str]):
    setup_logging("core", "info", "json")
    logging.getLogger("pagewire.x").warning("request_id=%s said\n%r", "cmpl-1.a:b", "\u2028")
    try:
        raise ValueError("wrong")
    except ValueError:
        logging.getLogger("pagewire.x").exception("failed")
    logging.getLogger("another_library").warning("beware")
    first, second, third = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["level"], first["process"], first["request_id"]) == ("warning", "core", "cmpl-1.a:b")
    assert first["message"].startswith("request_id=cmpl-1.a:b said\n")
    assert first["time"].endswith("+00:00")
    assert "ValueError: wrong" in second["exception"]
    assert "request_id" not in second
    assert third["logger"] == "another_library"


def test_what_nobody_catches_is_json_too(capsys: pytest.CaptureFixture[str]):
    class Broken:
        def __del__(self) -> None:
            raise LookupError("third")

    def fail() -> None:
        raise ValueError("second")

    setup_logging("core", "info", "json")
    sys.excepthook(KeyError, KeyError("first"), None)
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    thread = threading.Thread(target=fail, name="helper")
    thread.start()
    thread.join()
    del thread
    Broken()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["level"] for line in lines] == ["error"] * 3
    for line, place, error in zip(
        lines, ("the main thread", "helper", "__del__"), ("first", "second", "third"), strict=True
    ):
        assert place in line["message"]
        assert error in line["exception"]


def test_children_log_as_their_parent_does():
    setup_logging("core", "info")
    assert current_log_format() == "text"
    setup_logging("core", "info", "json")
    assert current_log_format() == "json"
