from __future__ import annotations

import pytest

from pagewire.frontend.terminal.plain_console import plain_console


def test_text_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]):
    text = "[bold]7[/] [/x] :smile: http://[::1]:8000"
    plain_console().print(text)
    assert capsys.readouterr().out == text + "\n"
