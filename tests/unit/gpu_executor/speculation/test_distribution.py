"""What is drawn with drafts has the distribution of the target model, whatever was guessed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from pagewire.gpu_executor.kernels.draws import OutputRows
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.sampling.draw import Draw, Drawn, RowSampling
from pagewire.gpu_executor.sampling.row_edits import TokenHistory
from pagewire.gpu_executor.sampling.sampler import Sampler
from pagewire.gpu_executor.speculation.acceptance import accept
from pagewire.ipc.sampling_params import Sampling

VOCAB_SIZE = 5
NUM_SAMPLES = 20_000
LENGTH = 2  # tokens of each sample: all pairs are counted
PROMPT = [0]
# The target: what follows a token depends on that token alone.
LOGITS = torch.randn(VOCAB_SIZE, VOCAB_SIZE, generator=torch.Generator().manual_seed(5)) * 1.5


def probabilities(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Return the exact distribution, [vocab_size] float64, written down independently of the engine's."""
    weights = np.exp((logits.astype(np.float64) - logits.max()) / sampling.temperature)
    shares = weights / weights.sum()
    order = np.argsort(-shares, kind="stable")
    # The fewest tokens whose sum reaches top_p.
    num_kept = 1 + int(np.searchsorted(shares[order].cumsum()[:-1], sampling.top_p))
    kept = np.zeros_like(shares)
    kept[order[:num_kept]] = shares[order[:num_kept]]
    return kept / kept.sum()


def draws_behind(sampling: Sampling, position: int) -> list[list[int]]:
    """Return what each sample draws at a position behind each token, [vocab_size][NUM_SAMPLES].

    Samples are children of one request: each has noise of its own, which no draft has a part in.
    """
    history = TokenHistory(np.zeros(len(PROMPT) + position, dtype=np.int32), len(PROMPT))
    row_sampling = RowSampling.prepare(sampling, 0, VOCAB_SIZE)
    best_values, best_ids = LOGITS.max(dim=-1)
    output = OutputRows(best_values.tolist(), best_ids.tolist(), LOGITS)
    draws = [Draw(row_sampling, history, NUM_SAMPLES)] * VOCAB_SIZE
    return [drawn.token_ids for drawn in Sampler(VOCAB_SIZE, select_ops("cpu")).sample(output, draws)]


def speculate(num_drafts: int, draws: Sequence[list[list[int]]], sample: int, guesses: Iterator[int]) -> list[int]:
    """Return a sample's tokens, drawn in steps that check so many drafts each."""
    tokens = list(PROMPT)
    while len(tokens) < len(PROMPT) + LENGTH:
        drafts = [next(guesses) for _ in range(num_drafts)]
        position = len(tokens) - len(PROMPT)
        before = [tokens[-1], *drafts]
        drawn = [Drawn([draws[position + place][token][sample]]) for place, token in enumerate(before)]
        tokens += accept(drafts, drawn).token_ids
    return tokens[len(PROMPT) :][:LENGTH]


@pytest.mark.parametrize(
    "sampling",
    [Sampling(temperature=0.7, seed=9), Sampling(temperature=1.0, seed=9, top_p=0.8)],
    ids=["temperature", "top_p"],
)
def test_samples_have_the_exact_distribution_for_any_number_of_drafts(sampling: Sampling) -> None:
    draws = [draws_behind(sampling, position) for position in range(LENGTH + 4)]
    of_first = probabilities(LOGITS[PROMPT[-1]].numpy(), sampling)
    of_second = np.stack([probabilities(row.numpy(), sampling) for row in LOGITS])
    expected = (of_first[:, None] * of_second).reshape(-1) * NUM_SAMPLES
    possible = expected > 0
    plain = None
    for num_drafts in range(5):
        # Guesses are far from the target: each token as often as the others.
        guesses = iter(np.random.default_rng(num_drafts).integers(VOCAB_SIZE, size=10**6).tolist())
        samples = [speculate(num_drafts, draws, sample, guesses) for sample in range(NUM_SAMPLES)]
        pairs = np.array(samples) @ [VOCAB_SIZE, 1]
        counts = np.bincount(pairs, minlength=VOCAB_SIZE**2)
        assert not counts[~possible].any()
        chi_square = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
        degrees = int(possible.sum()) - 1
        assert chi_square < upper_point(degrees), f"{num_drafts} drafts"
        plain = plain or samples
        assert samples == plain, "not the tokens of plain decoding"


def upper_point(degrees: int) -> float:
    """Return the 99.9 % point of the chi-square distribution, by Wilson and Hilferty's approximation."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + 3.0902 * math.sqrt(spread)) ** 3
