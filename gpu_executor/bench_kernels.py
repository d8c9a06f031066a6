"""`python -m pagewire.gpu_executor.bench_kernels`: times the compiled kernels one by one, beside the machine's limits.

Products run on the shapes of a small model (576 channels, as SmolLM2-135M has them). Weights lie in memory, as in a
decode step: each call takes other ones, until caches hold none of the first. A time is the best of many short calls.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Iterator

import msgspec
import torch

from pagewire.ipc.errors import PagewireError

from .batch.forward_metadata import ForwardMetadata
from .host_limits import HostLimits
from .kernels.cpu.engine import NativeEngine
from .kernels.cpu.machine_limits import MachineLimits, fastest_s, measure_limits
from .kernels.cpu.native_library import LibraryMissing, LinearView, PackedMatrix
from .kernels.cpu.step_views import view_cache, view_step
from .kv_cache_spec import LayerKVCache

# name -> the number of csrc/weights/packed_matrix.h's WeightLayout, and whether minima are stored.
_LAYOUTS = {"int4": (3, 1), "int8": (4, 0), "bfloat16": (2, 0), "float16": (1, 0), "float32": (0, 0)}
# name -> output and input channels.
_MATRICES = {"gate_up": (3072, 576), "down": (576, 1536)}
_OUTPUT_LAYER = (49152, 576)
_ROWS = (1, 4, 16, 64, 256)
# What the copies of a weight take together: more than caches hold.
_COLD_BYTES = 96 << 20
_HEADS, _KV_HEADS, _HEAD_DIM, _BLOCK = 9, 3, 64, 16


class Limit(msgspec.Struct, frozen=True):
    """One limit of the machine; `unit` is GB/s or GOP/s."""

    name: str
    value: float
    unit: str


class Timing(msgspec.Struct, frozen=True):
    """One kernel on one shape; `of_limit` is the share of what the limit that binds it allows."""

    kernel: str
    shape: str
    us: float
    gb_per_s: float | None = None
    gop_per_s: float | None = None
    of_limit: float | None = None


class Report(msgspec.Struct, frozen=True):
    """What is printed with --json."""

    title: str
    machine: tuple[Limit, ...]
    kernels: tuple[Timing, ...]


class Measurement(msgspec.Struct, frozen=True):
    """A time, and the work that was done in it.

    Attributes:
        num_bytes: that the kernel must read and write in memory; 0: caches hold them.
        num_operations: multiplications and additions.
        is_integer: they are 8-bit integers.
    """

    kernel: str
    shape: str
    seconds: float
    num_bytes: int = 0
    num_operations: int = 0
    is_integer: bool = False

    def beside(self, limits: MachineLimits) -> Timing:
        """Return it with its rates and its share of the limit that binds it."""
        products = limits.integer_products if self.is_integer else limits.float_products
        least_s = max(self.num_bytes / limits.memory, self.num_operations / products)
        return Timing(
            self.kernel,
            self.shape,
            self.seconds * 1e6,
            self.num_bytes / self.seconds / 1e9 if self.num_bytes else None,
            self.num_operations / self.seconds / 1e9 if self.num_operations else None,
            least_s / self.seconds if least_s else None,
        )


def measure_linear(engine: NativeEngine, layout: str, out_features: int, in_features: int, rows: int) -> Measurement:
    """Time one product; the values of weights and rows don't matter to it."""
    number, has_minimum = _LAYOUTS[layout]
    shape = (number, has_minimum, out_features, in_features)
    num_bytes = int(engine.library.pagewire_packed_bytes(*shape))
    copies = -(-_COLD_BYTES // num_bytes)
    # This byte makes small normal numbers in every format: nothing overflows, nothing is subnormal.
    panels = torch.full((copies * num_bytes,), 0x11, dtype=torch.uint8)
    parts = [(PackedMatrix * 1)(PackedMatrix(*shape, panels.data_ptr() + i * num_bytes, None)) for i in range(copies)]
    views = [LinearView(part, 1) for part in parts]
    x, out = torch.ones(rows, in_features), torch.empty(rows, out_features)

    def multiply(index: int) -> None:
        engine.call("pagewire_linear", views[index % copies], x.data_ptr(), rows, out.data_ptr())

    seconds = fastest_s(multiply, least_calls=copies + 2)
    return Measurement(
        f"linear {layout}",
        f"{rows} x {in_features} -> {out_features}",
        seconds,
        num_bytes + 4 * rows * (in_features + out_features),
        2 * rows * in_features * out_features,
        is_integer=layout.startswith("int"),
    )


def measure_attention(
    engine: NativeEngine, chunks: list[tuple[int, int]], shape: str, dtype: torch.dtype = torch.float16
) -> Measurement:
    """Time one layer's attention.

    Args:
        engine: whose kernels.
        chunks: each request's tokens in the cache and, of those, in this step.
        shape: in words.
        dtype: of keys and values.
    """
    tables = [-(-length // _BLOCK) for length, _ in chunks]
    cache = LayerKVCache(
        torch.ones(sum(tables), _KV_HEADS, _HEAD_DIM, _BLOCK).to(dtype),
        torch.ones(sum(tables), _KV_HEADS, _BLOCK, _HEAD_DIM).to(dtype),
    )
    num_tokens = sum(tokens for _, tokens in chunks)
    metadata = _metadata(chunks, tables)
    query = torch.ones(num_tokens, _HEADS, _HEAD_DIM)
    out = torch.empty_like(query)
    step, view = view_step(metadata), view_cache(cache)

    def attend(_: int) -> None:
        engine.call(
            "pagewire_paged_attention", ctypes.byref(step), ctypes.byref(view), _HEADS, _KV_HEADS, _HEAD_DIM, 0,
            _HEAD_DIM**-0.5, 0.0, query.data_ptr(), out.data_ptr(),
        )  # fmt: skip

    keys_seen = sum(tokens * (2 * length - tokens + 1) // 2 for length, tokens in chunks)
    num_bytes = sum(length for length, _ in chunks) * 2 * _KV_HEADS * _HEAD_DIM * dtype.itemsize
    name = f"attention {str(dtype).removeprefix('torch.').removesuffix('fn')}"
    return Measurement(name, shape, fastest_s(attend), num_bytes, 4 * keys_seen * _HEADS * _HEAD_DIM)


def _metadata(chunks: list[tuple[int, int]], tables: list[int]) -> ForwardMetadata:
    """Return a step of these chunks; each request's blocks follow those of the one before."""
    block_tables = torch.zeros(len(chunks), max(tables), dtype=torch.int32)
    first = 0
    for row, count in enumerate(tables):
        block_tables[row, :count] = torch.arange(first, first + count)
        first += count
    positions = torch.cat([torch.arange(length - tokens, length) for length, tokens in chunks])
    counts = torch.tensor([0, *(tokens for _, tokens in chunks)])
    return ForwardMetadata(
        positions=positions,
        slot_mapping=torch.zeros_like(positions),
        block_tables=block_tables,
        query_start_loc=counts.cumsum(0).to(torch.int32),
        seq_lens=torch.tensor([length for length, _ in chunks], dtype=torch.int32),
        logits_indices=torch.arange(len(positions)),
        block_size=_BLOCK,
        max_query_len=max(tokens for _, tokens in chunks),
        max_seq_len=max(length for length, _ in chunks),
    )


def measure_rows(engine: NativeEngine, rows: int) -> Iterator[Measurement]:
    """Time the kernels of rows that stay in caches."""
    x, weight, out = torch.ones(rows, 576), torch.ones(576), torch.empty(rows, 1536)
    gate_up = torch.ones(rows, 3072)

    def norm(_: int) -> None:
        engine.call("pagewire_rms_norm", x.data_ptr(), None, weight.data_ptr(), rows, 576, 1e-5, None, out.data_ptr())

    def gate(_: int) -> None:
        engine.call("pagewire_silu_and_mul", gate_up.data_ptr(), rows, 1536, out.data_ptr())

    yield Measurement("rms_norm", f"{rows} x 576", fastest_s(norm, 0.05))
    yield Measurement("silu_and_mul", f"{rows} x 1536", fastest_s(gate, 0.05))


def measure_all(engine: NativeEngine, layouts: list[str], rows: list[int]) -> Iterator[Measurement]:
    """Time every kernel on every shape."""
    for layout in layouts:
        for out_features, in_features in _MATRICES.values():
            for num_rows in rows:
                yield measure_linear(engine, layout, out_features, in_features, num_rows)
    for layout in layouts:
        for num_rows in (1, 16):
            if num_rows in rows:
                yield measure_linear(engine, layout, *_OUTPUT_LAYER, num_rows)
    for dtype in (torch.float16, torch.float8_e4m3fn):
        yield measure_attention(engine, [(1024, 1)] * 64, "64 decodes at 1024 tokens", dtype)
        yield measure_attention(engine, [(8192, 1)], "1 decode at 8192 tokens", dtype)
        yield measure_attention(engine, [(1024, 512)], "prefill of 512 at 1024 tokens", dtype)
    for num_rows in (1, 64):
        yield from measure_rows(engine, num_rows)


def run(engine: NativeEngine, layouts: list[str], rows: list[int]) -> Report:
    """Measure the machine, the kernels, and the machine once more."""
    before = measure_limits(engine)
    measurements = list(measure_all(engine, layouts, rows))
    limits = before.best_with(measure_limits(engine))
    return Report(
        f"CPU kernels: {engine.instruction_set}, {engine.num_threads} threads",
        (
            Limit("memory, read", limits.memory / 1e9, "GB/s"),
            Limit("shared cache, read", limits.cache / 1e9, "GB/s"),
            Limit("float32 products, in registers", limits.float_products / 1e9, "GOP/s"),
            Limit("8-bit products, out of the level-1 cache", limits.integer_products / 1e9, "GOP/s"),
        ),
        tuple(measurement.beside(limits) for measurement in measurements),
    )


def table(report: Report) -> str:
    """Return the report for people."""

    def cell(value: float | None, digits: int = 1) -> str:
        return "-" if value is None else f"{value:.{digits}f}"

    lines = [report.title, *(f"  {limit.name}: {limit.value:.1f} {limit.unit}" for limit in report.machine)]
    lines.append(f"{'kernel':<20}{'shape':<32}{'us':>10}{'GB/s':>8}{'GOP/s':>8}{'of limit':>10}")
    for one in report.kernels:
        rates = f"{cell(one.gb_per_s):>8}{cell(one.gop_per_s):>8}"
        share = "-" if one.of_limit is None else f"{100 * one.of_limit:.1f}%"
        lines.append(f"{one.kernel:<20}{one.shape:<32}{cell(one.us):>10}{rates}{share:>10}")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m pagewire.gpu_executor.bench_kernels", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--threads", type=int, default=HostLimits().num_cpus(), help="default: the CPUs granted")
    parser.add_argument("--instruction-set", default="auto", help="auto, or one that was built, like avx2 or portable")
    parser.add_argument("--layouts", nargs="+", choices=_LAYOUTS, default=list(_LAYOUTS), help="of weights")
    parser.add_argument("--rows", nargs="+", type=int, default=list(_ROWS), help="of products")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # its pool would take the cores
    try:
        report = run(NativeEngine(options.threads, options.instruction_set), options.layouts, options.rows)
    except (LibraryMissing, PagewireError) as exc:
        sys.stderr.write(f"bench_kernels: {exc}\n")
        return 1
    sys.stdout.write((msgspec.json.encode(report).decode() if options.json else table(report)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
