"""Finds the model, and has the executor's tool write the copy.

That is a process of its own, `python -m pagewire.gpu_executor.quantize_checkpoint`, since only the executor imports
torch. Its lines and its exit code are the command's. It ends with the command, whatever ends that: by our order if we
are told to stop, else by the end of its standard input, a pipe that we hold. Then it removes what it had written.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from pagewire.checkpoint.resolve import ResolvedModel, resolve_model
from pagewire.ipc.errors import ConfigError, MachineError

from .calibration_text import calibration_ids
from .config import DEFAULT_CALIBRATION_TOKENS, QuantizeConfig

_MODULE = "pagewire.gpu_executor.quantize_checkpoint"


def run(model: str, config: QuantizeConfig) -> int:
    """Write the copy; return the exit code.

    Raises:
        ConfigError: the model can't be found, or not be quantized.
        MachineError: the tool was ended from outside.
    """
    download_dir = None if config.download_dir is None else Path(config.download_dir)
    resolved = resolve_model(model, revision=config.revision, download_dir=download_dir)
    if resolved.file_format == "gguf":
        raise ConfigError(
            f"{resolved.name} is a GGUF model, whose weights are packed in GGUF's own types; name the safetensors "
            "checkpoint that it was made of, or serve it as it is."
        )
    if config.calibrate is None:
        return run_tool(tool_command(resolved, config, None))
    num_tokens = config.calibration_tokens or DEFAULT_CALIBRATION_TOKENS
    with calibration_ids(resolved.path, Path(config.calibrate), num_tokens) as samples:
        return run_tool(tool_command(resolved, config, samples))


def tool_command(model: ResolvedModel, config: QuantizeConfig, samples: Path | None) -> list[str]:
    """Return the command line of the executor's tool; `samples` is the file of `calibration_ids`."""
    options = ["--to", config.to, "--out", config.out, "--format", config.format]
    options += ["--max-shard-gb", str(config.max_shard_gb)]
    if config.group_size is not None:
        options.append(f"--group-size={config.group_size}")
    if config.symmetric is not None:
        options.append("--symmetric" if config.symmetric else "--no-symmetric")
    if samples is not None:
        options += ["--calibration-ids", str(samples)]
    if config.overwrite:
        options.append("--overwrite")
    return [sys.executable, "-P", "-m", _MODULE, "--end-with-stdin", *options, "--", str(model.path)]


def run_tool(command: Sequence[str]) -> int:
    """Run the tool with our own output; return its exit code.

    SIGTERM is handed on: the tool then removes what it had written, and ends with 143. So it does before a
    KeyboardInterrupt leaves here.

    Raises:
        MachineError: a signal ended it.
    """
    with subprocess.Popen(command, stdin=subprocess.PIPE) as tool:

        def hand_on(number: int, frame: FrameType | None) -> None:
            tool.terminate()

        before = signal.signal(signal.SIGTERM, hand_on)
        try:
            code = tool.wait()
        except KeyboardInterrupt:
            tool.terminate()
            tool.wait()
            raise
        finally:
            signal.signal(signal.SIGTERM, before)
    if code < 0:
        raise MachineError(f"{_MODULE} was ended by signal {-code}; if that was 9, memory ran out: free some.")
    return code
