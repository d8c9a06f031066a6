from __future__ import annotations

import signal

import pytest

from pagewire.frontend.terminal.open_connection import leaving_in_order


def test_an_order_to_end_closes_what_is_open_but_what_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with leaving_in_order():
            signal.raise_signal(signal.SIGHUP)
            with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
                signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
