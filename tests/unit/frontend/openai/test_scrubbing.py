"""What a client may read of the server's own troubles."""

from __future__ import annotations

import pytest

from pagewire.frontend.openai.scrubbing import scrub


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("The engine at ipc:///tmp/pagewire-ab/core.sock has not answered for 10 s.",
         "The engine at [address] has not answered for 10 s."),
        ("lost tcp://10.0.0.7:5555, will retry", "lost [address], will retry"),
        ("OSError(2, 'No such file: /var/lib/models/x.gguf')", "OSError(2, 'No such file: [path]')"),
        ("ConnectionRefusedError: 192.168.1.4:8000 and [::1]:80 refused",
         "ConnectionRefusedError: [address] and [address] refused"),
        ("<Socket object at 0x7f33a1b2c3d4>", "<Socket object at [memory]>"),
        ("~/models/a and /etc/passwd", "[path] and [path]"),
        ("read/write at 3.5 tokens/s, 1/2 done, version 1.2.3, and/or /health", None),
        ("The engine core ended with exit code -9.", None),
    ],
)  # fmt: skip
def test_addresses_and_paths_are_taken_out_and_all_else_stays(text: str, scrubbed: str | None):
    assert scrub(text) == (text if scrubbed is None else scrubbed)
