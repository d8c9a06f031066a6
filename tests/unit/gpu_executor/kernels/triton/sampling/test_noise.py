"""Noise in kernels has the reference's bits, and its estimate is never off by what the draw allows for."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from pagewire.gpu_executor.kernels.draws import NoiseKey
from pagewire.gpu_executor.kernels.reference.noise import gumbel_noise_of_vocabulary
from pagewire.gpu_executor.kernels.triton.sampling.noise import (
    LARGEST_GAP,
    SLACK,
    estimate_noise,
    exact_noise,
    noise_words,
)

SIZE = 64


@triton.jit
def noise_of_tokens(seed, position, child, first_id, out, SIZE: tl.constexpr):
    words = noise_words(tl.load(seed), tl.load(position), tl.load(child), first_id, SIZE)
    tl.store(out + tl.arange(0, SIZE), exact_noise(words))


@triton.jit
def noise_of_words(words, estimates, exact, SIZE: tl.constexpr):
    places = tl.arange(0, SIZE)
    w = tl.load(words + places).to(tl.uint32, bitcast=True)
    tl.store(estimates + places, estimate_noise(w))
    tl.store(exact + places, exact_noise(w))


@pytest.mark.parametrize(
    "key", [NoiseKey(0, 0, 0), NoiseKey(-(2**63), 127, 2**31 + 5), NoiseKey(2**63 - 1, 1, 7), NoiseKey(-1, 3, 2**20)]
)
@pytest.mark.parametrize("first_id", [0, 4096])
def test_noise_is_that_of_the_reference(key, first_id):
    def word(number):
        return torch.tensor([number], dtype=torch.int64).to(torch.int32)

    out = torch.empty(SIZE, dtype=torch.float64)
    noise_of_tokens[(1,)](torch.tensor([key.seed]), word(key.position), word(key.child), first_id, out, SIZE=SIZE)
    expected = gumbel_noise_of_vocabulary(key, first_id + SIZE, torch.device("cpu"))[first_id:]
    assert out.tolist() == pytest.approx(expected.tolist(), rel=1e-14)


def test_estimate_is_within_a_quarter_of_the_slack_for_any_word():
    bits = torch.arange(32)
    edges = torch.cat([(1 << bits) + offset for offset in (-2, -1, 0, 1, 2)])
    generator = torch.Generator().manual_seed(1)
    words = torch.cat([edges, 2**32 - 1 - edges, torch.randint(0, 2**32, (2**14 - 320,), generator=generator)])
    words = words.clamp(0, 2**32 - 1)
    estimates, exact = torch.empty(2**14), torch.empty(2**14, dtype=torch.float64)
    noise_of_words[(1,)](words.to(torch.int32), estimates, exact, SIZE=2**14)
    assert float((estimates.double() - exact).abs().max()) < 2.0**-12 < SLACK.value / 4
    assert exact.tolist() == pytest.approx(
        (-(-((words.double() + 0.5) / 2**32).log()).log()).tolist(), rel=1e-12, abs=1e-12
    )


def test_gap_covers_all_the_noise_there_is():
    estimates, exact = torch.empty(2), torch.empty(2, dtype=torch.float64)
    noise_of_words[(1,)](torch.tensor([0, -1], dtype=torch.int32), estimates, exact, SIZE=2)
    assert float(exact[1] - exact[0]) + 0.1 < LARGEST_GAP.value
