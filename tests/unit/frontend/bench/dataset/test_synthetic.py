from __future__ import annotations

import random
from itertools import islice
from statistics import median

from pagewire.frontend.bench.dataset.synthetic import WORDS, conversations, random_words
from pagewire.frontend.bench.dataset.token_counter import estimated_tokens


def test_words_are_as_many_as_asked_for():
    assert len(random_words(random.Random(0), 100).split()) == 100


def test_a_word_is_short_enough_to_be_one_token():
    assert {estimated_tokens(word) for word in WORDS} == {1}


def test_conversations_do_not_depend_on_their_number():
    assert list(conversations(3)) == list(islice(conversations(100), 3))


def test_conversations_have_the_form_of_sharegpt():
    (entry,) = conversations(1)
    turns = entry["conversations"]
    assert isinstance(turns, list)
    assert [turn["from"] for turn in turns] == ["human", "gpt"]


def test_lengths_are_like_those_of_chats():
    pairs = [[estimated_tokens(turn["value"]) for turn in entry["conversations"]] for entry in conversations(2000)]  # type: ignore[union-attr, attr-defined]
    prompts, replies = zip(*pairs, strict=True)
    assert 50 < median(prompts) < 70
    assert 130 < median(replies) < 170
    assert max(prompts) > 1000
