"""Draws on the device beside those on the host: the same logits, noise and filters have to give the same tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, cast

import numpy as np
import torch

from pagewire.gpu_executor.devices.cpu import CpuDevice
from pagewire.gpu_executor.devices.cuda import CudaDevice
from pagewire.gpu_executor.host_limits import HostLimits
from pagewire.gpu_executor.kernels.draws import OutputRows
from pagewire.gpu_executor.kernels.ops import Ops
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.models.base import Model
from pagewire.gpu_executor.sampling.draw import Draw, Drawn, RowSampling
from pagewire.gpu_executor.sampling.row_edits import TokenHistory
from pagewire.gpu_executor.sampling.sampler import Sampler
from pagewire.ipc.sampling_params import Sampling
from tools.gpu_check.records import Check
from tools.gpu_check.setting import Setting

# Two tokens whose noisy logits differ by less than the last bit of a logarithm may change places: in one row of 32.
_NEAR_TIES = 0.04
_LOGPROB_ERROR = 1e-4  # of sums of 128,000 exponentials in float32


class Mix(NamedTuple):
    """What all rows of a comparison ask for, each with a seed of its own.

    Attributes:
        options: fields of `Sampling`.
        first_seed: of the first row.
        child: half of the noise key.
        num_draws: from each row.
    """

    options: dict[str, object]
    first_seed: int = 1000
    child: int = 0
    num_draws: int = 1


_MIXES: dict[str, Mix] = {
    "greedy": Mix({"temperature": 0.0}),
    "temperature": Mix({"temperature": 1.0}),
    "top_k, top_p, min_p": Mix({"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.02}),
    "top_k of 200": Mix({"temperature": 1.0, "top_k": 200}),
    "penalties": Mix(
        {"temperature": 1.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2}
    ),
    "logprobs": Mix({"temperature": 1.0, "num_logprobs": 3}),
    "seeds beyond 32 bits": Mix({"temperature": 1.0}, first_seed=(5 << 40) + 7),
    "negative seeds": Mix({"temperature": 1.0}, first_seed=-(5 << 40) - 7),
    "the fourth child": Mix({"temperature": 1.0}, child=3),
    "3 draws with logprobs": Mix({"temperature": 1.0, "top_p": 0.95, "num_logprobs": 1}, num_draws=3),
    "masks and biases": Mix(
        {
            "temperature": 1.0,
            "allowed_token_ids": list(range(3, 600, 3)),
            "bad_words_token_ids": [[9], [12]],
            "min_tokens": 100,
            "end_token_ids": [15],
            "logit_bias": {18: 4.0, 21: -100.0},
        }
    ),
}


def draw_checks(ops: Ops, setting: Setting) -> Iterator[Check]:
    """Yield a check for each kind of parameters; the error is the share of rows with other tokens or logprobs."""
    num_rows = 3 if setting.is_tiny else 32
    vocab_size = setting.model.vocab_size
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(num_rows, vocab_size, generator=generator) * 3
    for name, mix in setting.own(_MIXES.items()):
        limit = 0.0 if name == "greedy" else _NEAR_TIES
        draws = [_draw(row, vocab_size, mix) for row in range(num_rows)]
        try:
            error = _different(ops, setting, logits, draws)
        except Exception as exc:  # as for the other ops
            yield Check(op="draws", case=name, error=None, limit=limit, failure=f"{type(exc).__name__}: {exc}"[:300])
            continue
        yield Check(op="draws", case=f"{num_rows} rows, {name}", error=error, limit=limit)


def _draw(row: int, vocab_size: int, mix: Mix) -> Draw:
    sampling = Sampling(seed=mix.first_seed + row, **mix.options)  # type: ignore[arg-type]  # fields of their own types
    history = TokenHistory(np.arange(row, row + 20, dtype=np.int32) % vocab_size, 12)
    return Draw(RowSampling.prepare(sampling, mix.child, vocab_size), history, mix.num_draws)


def _different(ops: Ops, setting: Setting, logits: torch.Tensor, draws: list[Draw]) -> float:
    # Imports Triton: only once it is prepared for the device.
    from pagewire.gpu_executor.sampling.device_sampler import DeviceSampler

    vocab_size = logits.shape[1]
    best_values, best_ids = logits.max(dim=-1)
    kept = [row for row, draw in enumerate(draws) if draw.row_sampling.needs_logits]
    output = OutputRows(best_values.tolist(), best_ids.tolist(), logits[kept] if kept else None)
    expected = Sampler(vocab_size, ReferenceOps()).sample(output, draws)
    device = CudaDevice() if setting.device == "cuda" else CpuDevice(HostLimits())
    on_device = logits.to(device.torch_device)
    # With logits given, the model's output layer is not asked.
    sampler = DeviceSampler(vocab_size, ops, device)
    drawn = sampler.begin(cast("Model", None), on_device, draws, logits=on_device).collect()
    pairs = list(zip(drawn, expected, strict=True))
    return sum(not is_same(one, other) for one, other in pairs) / len(pairs)


def is_same(drawn: Drawn, expected: Drawn) -> bool:
    """Tell whether a row got the expected tokens, and logprobs that differ in their last bits at most."""
    if drawn.error is not None or drawn.token_ids != expected.token_ids:
        return False
    return len(drawn.logprobs) == len(expected.logprobs) and all(
        (one.token_id, one.rank, one.top_token_ids) == (other.token_id, other.rank, other.top_token_ids)
        and _are_close(one.logprob, other.logprob)
        and all(map(_are_close, one.top_logprobs, other.top_logprobs))
        for one, other in zip(drawn.logprobs, expected.logprobs, strict=True)
    )


def _are_close(one: float, other: float) -> bool:
    return math.isclose(one, other, abs_tol=_LOGPROB_ERROR)
