"""What the executor's tool is told, and how its end becomes the command's."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from pagewire.checkpoint.resolve import ResolvedModel
from pagewire.frontend.quantize.config import QuantizeConfig
from pagewire.frontend.quantize.run import run_tool, tool_command
from pagewire.ipc.errors import MachineError

MODEL = ResolvedModel(path=Path("/models/m"), name="org/m", file_format="safetensors")


def test_the_tool_is_told_only_what_was_given():
    config = QuantizeConfig(to="int4", out="small")
    assert tool_command(MODEL, config, None)[4:] == [
        "--end-with-stdin", "--to", "int4", "--out", "small", "--format", "compressed-tensors", "--max-shard-gb",
        "5.0", "--", "/models/m",
    ]  # fmt: skip


def test_the_tool_is_told_all_that_was_given():
    config = QuantizeConfig(
        to="int8", out="small", format="gptq", group_size=-1, symmetric=True, max_shard_gb=2.0, overwrite=True
    )
    assert tool_command(MODEL, config, Path("/tmp/ids"))[4:] == [
        "--end-with-stdin", "--to", "int8", "--out", "small", "--format", "gptq", "--max-shard-gb", "2.0",
        "--group-size=-1", "--symmetric", "--calibration-ids", "/tmp/ids", "--overwrite", "--", "/models/m",
    ]  # fmt: skip


@pytest.mark.parametrize("code", [0, 1, 2])
def test_exit_code_is_the_tools(code: int):
    assert run_tool([sys.executable, "-c", f"raise SystemExit({code})"]) == code


def test_tool_that_is_killed_is_said():
    with pytest.raises(MachineError, match="ended by signal 9; if that was 9, memory ran out"):
        run_tool([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])


# Opens a fifo when it runs.
_TOLD_TO_STOP = """
import pathlib, signal, sys
def end(number, frame):
    raise SystemExit(128 + number)
signal.signal(signal.SIGTERM, end)
pathlib.Path(sys.argv[1]).open("w").close()
sys.stdin.read()
"""


def test_order_to_stop_is_handed_on(tmp_path: Path):
    started = tmp_path / "started"
    os.mkfifo(started)

    def stop_us() -> None:
        started.open().close()  # waits for the tool to open the other end
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    waiting = threading.Thread(target=stop_us)
    waiting.start()
    assert run_tool([sys.executable, "-c", _TOLD_TO_STOP, str(started)]) == 128 + signal.SIGTERM
    waiting.join()
    assert signal.getsignal(signal.SIGTERM) is before
