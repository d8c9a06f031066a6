"""Text made on the spot, so that a benchmark needs no download and no tokenizer.

It is built of short, common English words, each one token with a space before it in the vocabularies of today's models.
So n words make a prompt of n tokens, give or take the begin-of-text token and a chat template, whatever the server.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

_VOCABULARY = """
    the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one
    you were all her she there would their we him been has when who will no more if out so up said what its about than
    into them can only other time new some could these two may first then do any like my now over such our man me even
    most made after also did many off before must well back through years much where your way down should because long
    each just state people those too good life very day under house place small still found great public large given
    water point city work world hand part same fact old number head young order power second later night home side
    group name high best every left once until light little far room word school early free white black field road
    human table music paper river street family market letter story summer winter train bank window doctor
"""
WORDS = tuple(dict.fromkeys(_VOCABULARY.split()))
# Lengths like those of people's chats: short questions with a long tail, longer replies.
_PROMPT_LOG_MEAN, _PROMPT_LOG_STD = math.log(60), 1.2
_REPLY_LOG_MEAN, _REPLY_LOG_STD = math.log(150), 0.9
_MAX_WORDS = 3000
_WORDS_PER_SENTENCE = (4, 16)


def random_words(rng: random.Random, count: int) -> str:
    """Return `count` words by chance, with spaces between them."""
    return " ".join(rng.choices(WORDS, k=count))


def conversations(count: int) -> Iterator[dict[str, object]]:
    """Yield conversations in the form of ShareGPT's file, always the same: the i-th does not depend on `count`."""
    for index in range(count):
        rng = random.Random(f"conversation {index}")  # noqa: S311 - made text, no secret
        turns = [
            {"from": "human", "value": _sentences(rng, _length(rng, _PROMPT_LOG_MEAN, _PROMPT_LOG_STD))},
            {"from": "gpt", "value": _sentences(rng, _length(rng, _REPLY_LOG_MEAN, _REPLY_LOG_STD))},
        ]
        yield {"id": f"synthetic-{index}", "conversations": turns}


def _length(rng: random.Random, log_mean: float, log_std: float) -> int:
    return min(max(1, round(rng.lognormvariate(log_mean, log_std))), _MAX_WORDS)


def _sentences(rng: random.Random, num_words: int) -> str:
    """Return words in sentences: the full stop counts as one of them."""
    sentences = []
    while num_words > 0:
        count = min(rng.randint(*_WORDS_PER_SENTENCE), num_words)
        sentences.append(random_words(rng, max(1, count - 1)) + ".")
        num_words -= count
    return " ".join(sentences)
