"""One engine, two HTTP servers on it and a program beside them: `python examples/engine_and_frontends.py [MODEL]`.

What a deployment of several processes on one machine looks like. Each may be stopped and started by itself; while the
engine lives, its prefix cache does. Everything is stopped in order at the end.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from pagewire import EngineClient, SamplingParams


@contextlib.contextmanager
def running(*arguments: str) -> Iterator[str]:
    """Run `pagewire ARGUMENTS` and yield the address that it says it is ready at."""
    command = [sys.executable, "-m", "pagewire", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            for line in process.stderr:
                if "ready: " in line:
                    yield line.split()[-1]
                    break
            else:
                raise SystemExit(f"pagewire {' '.join(arguments)} did not start")
        finally:
            process.terminate()  # SIGTERM: accepted requests finish
            process.communicate()


def complete(url: str) -> list[int]:
    """Ask an HTTP server."""
    body = {"prompt": [504, 3575, 282], "max_tokens": 6, "temperature": 0, "return_token_ids": True}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["token_ids"]


def main() -> None:
    socket = f"ipc://{Path(tempfile.mkdtemp(prefix='pw-')) / 'engine.sock'}"
    frontend = ("serve", "--engine", socket, "--host", "127.0.0.1", "--port", "0")
    with (
        running("engine", *sys.argv[1:], "--listen", socket),
        running(*frontend) as first,
        running(*frontend) as second,
    ):
        with EngineClient(socket) as client:
            params = SamplingParams(temperature=0, max_tokens=6)
            tokens = [token for delta in client.generate([504, 3575, 282], params) for token in delta.token_ids]
        print("program:", tokens)
        print("first server:", complete(first))
        print("second server:", complete(second))


if __name__ == "__main__":
    main()
