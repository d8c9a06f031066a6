from __future__ import annotations

from pathlib import Path

import pytest

from pagewire.frontend.terminal.chat.typed_lines import default_history_file, keeping_history, read_message


def typed(*lines: str) -> str:
    left = iter(lines)
    return read_message(lambda _prompt: next(left))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["hello "], "hello"),
        (["a\\", "b\\", "c"], "a\nb\nc"),
        (['"""first', "second", 'third""" ignored'], "first\nsecond\nthird"),
        (['"""one line"""'], "one line"),
    ],
)
def test_a_message_may_have_several_lines(lines: list[str], message: str):
    assert typed(*lines) == message


def test_the_history_is_a_file_that_is_nobody_elses_business(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = default_history_file()
    with keeping_history(path, ["/help"]):
        pass
    assert path.stat().st_mode & 0o777 == 0o600
