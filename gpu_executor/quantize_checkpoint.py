"""`python -m pagewire.gpu_executor.quantize_checkpoint`: rounds a checkpoint's linear layers to 4 or 8 bits.

`pagewire quantize` starts it, as only the executor imports torch. Every matrix is rounded on its own, which takes
seconds; or, with samples of text, to what the layers are given along them, which takes minutes (calibration.py).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import msgspec
import torch
from tqdm import tqdm

from pagewire.checkpoint.loading import load_model_config
from pagewire.checkpoint.model_config import ModelConfig
from pagewire.checkpoint.safetensors_index import read_tensor_table
from pagewire.ipc.errors import ConfigError, MachineError, StartError

from .calibration import round_along_text
from .compute_dtype import CHECKPOINT_DTYPES
from .formats.quantized.integer_matrix import IntegerMatrix
from .formats.writing.compressed_tensors import FloatQuantized, PackQuantized
from .formats.writing.gptq import GPTQPacking
from .formats.writing.packing import IntegerPacking, Packing
from .formats.writing.quantized_directory import QuantizedSizes, foreign_files, write_quantized
from .kernels.reference.reference_ops import ReferenceOps
from .models.registry import build_model

# 4 bits need small groups. With 8, a scale a row costs SmolLM2 0.3 % of perplexity, groups of 64 no less.
_GROUP_SIZES = {4: 32, 8: -1}


def linear_layers(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return the linear layers of a checkpoint that are quantized, and the shapes of their weights.

    The output layer is not among them: it decides between tokens by small differences.

    Raises:
        ConfigError: if the model is not supported.
    """
    # Nothing is allocated but norms and a short rotary table: weights are when their rows come.
    dtype = CHECKPOINT_DTYPES.get(config.dtype, torch.float32)
    model = build_model(config, ReferenceOps(), dtype=dtype, device=torch.device("cpu"), max_model_len=1)
    shapes = {target.name: target.shape for target in model.weight_targets()}
    layers = {}
    for module in sorted(model.linear_modules() - {"lm_head"}):
        rows, columns = shapes[f"{module}.weight"]
        layers[module] = (rows, columns)
    return layers


def choose_packing(
    to: str, file_format: str, group_size: int | None, is_symmetric: bool | None, layers: dict[str, tuple[int, int]]
) -> Packing:
    """Return how the layers are stored.

    Args:
        to: "int4", "int8" or "fp8".
        file_format: "compressed-tensors" or "gptq".
        group_size: input channels that share a scale, -1: a row; None: what suits the type.
        is_symmetric: without zero points; None: what suits the type.
        layers: the shapes of their weights, by name.

    Raises:
        ConfigError: if a layer can't be stored so.
    """
    packing: Packing
    if to == "fp8":
        packing = FloatQuantized()
    else:
        bits = 4 if to == "int4" else 8
        group_size = _GROUP_SIZES[bits] if group_size is None else group_size
        groups = None if group_size == -1 else group_size
        if file_format == "gptq":
            packing = GPTQPacking(bits, groups)
        else:
            packing = PackQuantized(bits, groups, bits == 8 if is_symmetric is None else is_symmetric)
    for module, shape in layers.items():
        packing.check(module, shape)
    return packing


def calibrate(
    config: ModelConfig, packing: Packing, layers: dict[str, tuple[int, int]], sequences: list[list[int]]
) -> dict[str, IntegerMatrix]:
    """Round the layers along a text, with a progress bar on a terminal; see `round_along_text`.

    Raises:
        ConfigError: if the packing stores no integers, or as of `round_along_text`.
    """
    if not isinstance(packing, IntegerPacking):
        raise ConfigError("--calibration-ids: fp8 is rounded number by number; give --to int4 or int8.")
    with _progress_bar(total=len(layers), unit="layer") as show:
        return round_along_text(
            config, packing, layers, sequences, num_threads=os.cpu_count() or 1, progress=lambda name: show(name, 1)
        )


def quantize(
    source: Path,
    target: Path,
    packing: Packing,
    layers: dict[str, tuple[int, int]],
    max_file_bytes: int,
    rounded: Mapping[str, IntegerMatrix],
) -> QuantizedSizes:
    """Write the quantized copy, with a progress bar on a terminal; errors as of `write_quantized`."""
    num_bytes = sum(location.end - location.begin for location in read_tensor_table(source).values())
    with _progress_bar(total=num_bytes, unit="B") as show:
        return write_quantized(
            source, target, packing, layers, max_file_bytes=max_file_bytes, progress=show, rounded=rounded
        )


@contextmanager
def _progress_bar(*, total: int, unit: str) -> Iterator[Callable[[str, int], None]]:
    """Give what moves a bar on a terminal on: it takes a name, and how much is done more."""
    with tqdm(total=total, unit=unit, unit_scale=True, disable=None, file=sys.stderr) as bar:

        def show(name: str, size: int) -> None:
            bar.set_postfix_str(name, refresh=False)
            bar.update(size)

        yield show


def report_lines(
    to: str, packing: Packing, target: Path, sizes: QuantizedSizes, num_samples: int, seconds: float
) -> list[str]:
    """Return what was done, for people; `num_samples` are the tokens of the samples of text."""
    along = f" along {num_samples:,} tokens" if num_samples else ""
    of_packed = 8 * sizes.packed_bytes / sizes.num_packed
    of_all = [f"{8 * size / sizes.num_weights:.2f}" for size in (sizes.bytes_before, sizes.bytes_after)]
    return [
        f"{sizes.num_layers} linear layers rounded to {to} ({packing.describe()}){along} in {seconds:.1f} s",
        f"weights: {_size(sizes.bytes_before)} -> {_size(sizes.bytes_after)}",
        f"bits a weight: {of_all[0]} -> {of_all[1]}; {of_packed:.2f} in these layers, the others stay as they are",
        f"written: {target}",
    ]


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def check_source(config: ModelConfig) -> None:
    """Refuse what can't be quantized, or has been.

    Raises:
        ConfigError: if weights are packed already.
    """
    if config.file_format == "gguf":
        raise ConfigError(
            f"{config.model_path} is a GGUF file, whose weights are packed in GGUF's own types; name the safetensors "
            "checkpoint that it was made of, or serve the file as it is."
        )
    if config.quantization is not None:
        raise ConfigError(
            f"{config.model_path} is quantized already ({config.quantization.method}); rounding twice adds both "
            "errors: name the checkpoint that it was made of, or serve it as it is."
        )


def check_target(source: Path, target: Path, *, may_replace: bool) -> None:
    """Refuse a place that holds something.

    Raises:
        ConfigError: if the directory can't be used.
    """
    if target.resolve() in (source.resolve(), *source.resolve().parents):
        raise ConfigError(f"--out {target} is or holds the model itself; name another directory.")
    if target.exists() and not target.is_dir():
        raise ConfigError(f"--out {target} is a file; name a directory.")
    if target.exists() and any(target.iterdir()) and not may_replace:
        raise ConfigError(f"--out {target} holds files already; name another directory, or give --overwrite.")
    if target.exists() and (foreign := foreign_files(target)):
        raise ConfigError(
            f"--out {target} holds {foreign[0]}, which is no part of a checkpoint and would be lost; name another "
            "directory, or move it away."
        )
    if target.is_mount():
        raise ConfigError(f"--out {target} is a mount point, which can't be replaced whole; name a directory in it.")


def run(options: argparse.Namespace) -> list[str]:
    """Quantize; return what to say of it.

    Raises:
        StartError: if it can't be done.
    """
    started = time.perf_counter()
    config = load_model_config(options.model)
    check_source(config)
    check_target(options.model, options.out, may_replace=options.overwrite)
    layers = linear_layers(config)
    packing = choose_packing(options.to, options.format, options.group_size, options.symmetric, layers)
    sequences, rounded = [], {}
    if options.calibration_ids is not None:
        sequences = msgspec.json.decode(options.calibration_ids.read_bytes(), type=list[list[int]])
        rounded = calibrate(config, packing, layers, sequences)
    try:
        sizes = quantize(options.model, options.out, packing, layers, int(options.max_shard_gb * 1e9), rounded)
    except OSError as exc:
        raise MachineError(f"--out {options.out} can't be written: {exc.strerror}.") from exc
    num_samples = sum(len(sequence) for sequence in sequences)
    return report_lines(options.to, packing, options.out, sizes, num_samples, time.perf_counter() - started)


def main(arguments: Sequence[str]) -> int:
    """Quantize and print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pagewire.gpu_executor.quantize_checkpoint", description=__doc__)
    parser.add_argument("model", type=Path, help="a Hugging Face directory")
    parser.add_argument("--to", choices=("int4", "int8", "fp8"), required=True)
    parser.add_argument("--out", type=Path, required=True, help="the new directory")
    parser.add_argument("--format", choices=("compressed-tensors", "gptq"), default="compressed-tensors")
    parser.add_argument("--group-size", type=int, help="input channels that share a scale; -1: a row")
    parser.add_argument("--symmetric", action=argparse.BooleanOptionalAction, help="without zero points")
    parser.add_argument("--calibration-ids", type=Path, help="samples of text: JSON, a list of lists of token ids")
    parser.add_argument("--max-shard-gb", type=float, default=5.0, help="of a file, in 10^9 bytes")
    parser.add_argument("--overwrite", action="store_true", help="replace what is in the new directory")
    parser.add_argument("--end-with-stdin", action="store_true", help="stop when standard input ends")
    options = parser.parse_args(arguments)
    if options.end_with_stdin:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        lines = run(options)
    except StartError as exc:
        sys.stderr.write(f"pagewire: error: {' '.join(exc.message.split())}\n")
        return exc.exit_code
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def end_on_signals() -> None:
    """Let SIGINT and SIGTERM end the process by an exception, so that no half-written directory is left behind."""

    def end(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)  # a second one must not break off the cleaning
        raise SystemExit(128 + number)  # as shells report it

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, end)


def _end_with_stdin() -> None:
    """Wait until the other end of standard input is closed, as it is at the latest when its holder ends; then end."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    end_on_signals()
    sys.exit(main(sys.argv[1:]))
