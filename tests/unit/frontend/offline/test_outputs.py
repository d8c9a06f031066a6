from __future__ import annotations

from pagewire.frontend.offline.outputs import Logprob, to_logprob_dicts, to_prompt_logprob_dicts
from pagewire.ipc.outputs import TokenLogprobs


class Texts:
    def token_text(self, token_id: int) -> str:
        return f"t{token_id}"


def test_drawn_token_comes_first_with_its_own_rank():
    [candidates] = to_logprob_dicts([TokenLogprobs(7, -3.5, 12, [4, 5], [-0.5, -1.5])], Texts())
    assert list(candidates.items()) == [
        (7, Logprob(-3.5, 12, "t7")),
        (4, Logprob(-0.5, 1, "t4")),
        (5, Logprob(-1.5, 2, "t5")),
    ]


def test_drawn_token_among_the_best_appears_once():
    [candidates] = to_logprob_dicts([TokenLogprobs(5, -1.5, 2, [4, 5], [-0.5, -1.5])], Texts())
    assert {token_id: entry.rank for token_id, entry in candidates.items()} == {5: 2, 4: 1}


def test_first_prompt_token_has_no_logprob():
    assert to_prompt_logprob_dicts([TokenLogprobs(7, -3.5, 1)], Texts()) == [None, {7: Logprob(-3.5, 1, "t7")}]
    assert to_prompt_logprob_dicts(None, Texts()) is None
