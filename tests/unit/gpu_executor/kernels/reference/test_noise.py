"""The noise is Philox4x32-10, a pure function of (seed, child, position, token id), and Gumbel distributed."""

from __future__ import annotations

import math

import pytest
import torch

from pagewire.gpu_executor.kernels.draws import NoiseKey
from pagewire.gpu_executor.kernels.reference.noise import gumbel_noise, gumbel_noise_of_vocabulary, philox4x32


def noise(seed=7, child=0, position=0, vocab_size=1000):
    return gumbel_noise_of_vocabulary(NoiseKey(seed, child, position), vocab_size, torch.device("cpu"))


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    # Known answers of the authors' Random123 distribution (kat_vectors, philox4x32, 10 rounds).
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_known_answers(counter, key, expected):
    words = philox4x32(
        tuple(torch.tensor([int(word, 16)]) for word in counter.split()), tuple(int(w, 16) for w in key.split())
    )
    assert " ".join(f"{int(word):08x}" for word in words) == expected


def test_token_takes_lane_of_its_group_of_four():
    seed, child, position, token_id = -3, 5, 11, 4 * 17 + 2
    key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    words = philox4x32(tuple(torch.tensor([word]) for word in (17, position, child, 0)), key)
    uniform = (int(words[2]) + 0.5) / 2**32
    value = noise(seed, child, position)[token_id]
    assert float(value) == pytest.approx(-math.log(-math.log(uniform)), rel=1e-14)


def test_candidates_get_the_noise_of_the_whole_row():
    keys = [NoiseKey(7, 0, 0), NoiseKey(-9, 3, 2**20), NoiseKey(7, 0, 1)]
    candidates = [torch.tensor([998, 3, 0, 501, 502]), torch.tensor([5]), torch.arange(1000).flip(0)]
    for key, token_ids, values in zip(keys, candidates, gumbel_noise(keys, candidates), strict=True):
        assert torch.equal(values, noise(*key)[token_ids])


def test_larger_vocabulary_leaves_noise_of_its_tokens_alone():
    assert torch.equal(noise(vocab_size=1003)[:1000], noise())


@pytest.mark.parametrize("other", [{"seed": 8}, {"seed": 7 + 2**32}, {"seed": -7}, {"child": 1}, {"position": 1}])
def test_every_part_of_the_key_gives_other_noise(other):
    assert (noise(**other) != noise()).all()


def test_noise_is_finite_at_the_ends_of_the_seed_range():
    for seed in (-(2**63), 2**63 - 1):
        assert noise(seed, vocab_size=50_000).isfinite().all()


def test_noise_has_mean_and_variance_of_the_gumbel_distribution():
    values = noise(seed=123, vocab_size=100_000)
    assert float(values.mean()) == pytest.approx(0.5772156649, abs=0.02)
    assert float(values.var()) == pytest.approx(math.pi**2 / 6, rel=0.03)
