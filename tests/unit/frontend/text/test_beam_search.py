from __future__ import annotations

import itertools
import math
import random

import pytest

from pagewire.frontend.text.beam_search import Beam, BeamSearch, BeamSearchParams
from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.outputs import TokenLogprobs

EOS = 0
VOCABULARY = range(4)


class RandomModel:
    """Next-token logprobs that depend on all tokens before."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def logprobs(self, token_ids: tuple[int, ...]) -> list[float]:
        weights = [random.Random(hash((self._seed, token_ids, token))).random() + 0.01 for token in VOCABULARY]
        return [math.log(weight / sum(weights)) for weight in weights]

    def candidates(self, beam: Beam) -> TokenLogprobs:
        logprobs = self.logprobs(tuple(beam.token_ids))
        order = sorted(VOCABULARY, key=lambda token: -logprobs[token])
        return TokenLogprobs(
            token_id=order[0], logprob=logprobs[order[0]], rank=1,
            top_token_ids=order, top_logprobs=[logprobs[token] for token in order],
        )  # fmt: skip


def search(model: RandomModel, params: BeamSearchParams, *, num_prompt_tokens: int = 3) -> list[Beam]:
    end_token_ids = () if params.ignore_eos else (EOS,)
    beams = BeamSearch(
        params, num_prompt_tokens=num_prompt_tokens, max_tokens=params.max_tokens, end_token_ids=end_token_ids
    )
    while not beams.is_done:
        beams.advance([model.candidates(beam) for beam in beams.beams])
    return beams.best()


def all_answers(model: RandomModel, max_tokens: int) -> list[tuple[float, tuple[int, ...]]]:
    """Every answer with its sum of logprobs: those that end before the limit, and those that reach it."""
    answers = []
    for length in range(1, max_tokens + 1):
        for token_ids in itertools.product(VOCABULARY, repeat=length):
            if EOS in token_ids[:-1] or (length < max_tokens and token_ids[-1] != EOS):
                continue
            total = sum(model.logprobs(token_ids[:at])[token_ids[at]] for at in range(length))
            answers.append((total, token_ids))
    return answers


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0, -1.0])
@pytest.mark.parametrize("seed", range(5))
def test_wide_enough_search_finds_the_best_of_all_answers(seed: int, length_penalty: float):
    model = RandomModel(seed)
    params = BeamSearchParams(beam_width=100, max_tokens=4, length_penalty=length_penalty)

    def score(answer: tuple[float, tuple[int, ...]]) -> float:
        total, token_ids = answer
        return total / (3 + len(token_ids) - (token_ids[-1] == EOS)) ** length_penalty

    best = sorted(all_answers(model, 4), key=score, reverse=True)[:100]
    found = search(model, params)
    assert [tuple(beam.token_ids) for beam in found] == [token_ids for _, token_ids in best]
    assert [beam.cumulative_logprob for beam in found] == pytest.approx([total for total, _ in best])


@pytest.mark.parametrize("seed", range(10))
def test_search_ends_no_sooner_than_its_answers_are_settled(seed: int):
    model = RandomModel(seed)
    params = BeamSearchParams(beam_width=2, max_tokens=12)
    stopped = search(model, params)
    whole = BeamSearch(params, num_prompt_tokens=3, max_tokens=12, end_token_ids=(EOS,))
    for _ in range(12):
        whole.advance([model.candidates(beam) for beam in whole.beams])
    assert stopped == whole.best()


def test_early_stopping_takes_the_first_answers_that_are_finished():
    model = RandomModel(3)
    early = search(model, BeamSearchParams(beam_width=2, max_tokens=12, early_stopping=True))
    assert len(early) == 2
    assert max(len(beam.token_ids) for beam in early) <= max(
        len(beam.token_ids) for beam in search(model, BeamSearchParams(beam_width=2, max_tokens=12))
    )


def test_width_of_one_is_greedy():
    model = RandomModel(1)
    (beam,) = search(model, BeamSearchParams(beam_width=1, max_tokens=5, ignore_eos=True))
    token_ids: list[int] = []
    for _ in range(5):
        logprobs = model.logprobs(tuple(token_ids))
        token_ids.append(max(VOCABULARY, key=lambda token: logprobs[token]))
    assert beam.token_ids == token_ids
    assert beam.end_token_id is None
    assert [entry.token_id for entry in beam.logprobs] == token_ids
    assert {entry.rank for entry in beam.logprobs} == {1}


def test_an_end_token_finishes_its_answer_and_is_part_of_it():
    found = search(RandomModel(2), BeamSearchParams(beam_width=4, max_tokens=6))
    ended = [beam for beam in found if beam.end_token_id is not None]
    assert ended
    assert all(beam.token_ids[-1] == EOS and EOS not in beam.token_ids[:-1] for beam in ended)


def test_impossible_token_is_no_candidate():
    entry = TokenLogprobs(token_id=1, logprob=0.0, rank=1, top_token_ids=[1, 2], top_logprobs=[0.0, -math.inf])
    beams = BeamSearch(BeamSearchParams(beam_width=2), num_prompt_tokens=1, max_tokens=1, end_token_ids=())
    beams.advance([entry])
    assert [beam.token_ids for beam in beams.best()] == [[1]]


@pytest.mark.parametrize(
    "values", [{"beam_width": 0}, {"beam_width": 129}, {"max_tokens": 0}, {"length_penalty": math.nan},
               {"length_penalty": 11}],
)  # fmt: skip
def test_values_out_of_range_are_refused(values: dict[str, float]):
    with pytest.raises(InvalidRequest):
        BeamSearchParams(**{"beam_width": 2, **values})
