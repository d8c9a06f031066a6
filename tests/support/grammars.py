"""Grammars over a vocabulary of letters, and what follows them, said without an engine."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import llguidance

from pagewire.engine_core.grammar.compiled import CompiledGrammar
from pagewire.engine_core.grammar.compiling import compile_matcher
from pagewire.engine_core.grammar.gate import CompileResult
from pagewire.engine_core.grammar.translate import to_llguidance
from pagewire.engine_core.grammar.vocabulary import make_vocabulary
from pagewire.ipc.errors import PagewireError
from pagewire.ipc.structured_outputs import Grammar

EOS, STOP = 0, 1
LETTERS = "abcdefghijklmnopqrstuvwxyz()"
GRAMMARS = (
    Grammar("regex", "[a-z]*"),
    Grammar("regex", "(ab|cd)*e?"),
    Grammar("regex", "[a-h]{2,5}"),
    Grammar("regex", "[^b]+b"),
    Grammar("choice", '["ab", "abc", "zx", "b"]'),
    Grammar("grammar", 'root ::= "(" root ")" | "x" | "y"'),
)
BAD_GRAMMARS = (Grammar("regex", "["), Grammar("choice", "[]"), Grammar("json_schema", "false"))


@functools.cache
def letters_vocabulary() -> llguidance.LLTokenizer:
    """Return a vocabulary of 30 ids: an end token, one more special token, then a token a letter."""
    table = [b"\xff<eos>", b"\xff<stop>", *(letter.encode() for letter in LETTERS)]
    return make_vocabulary(table, [EOS, STOP], [EOS])


def spell(token_ids: list[int]) -> str:
    """Return the text of some tokens; special ones have none."""
    return "".join(LETTERS[token_id - 2] for token_id in token_ids if token_id > STOP)


@functools.cache
def compile_letters(grammar: Grammar) -> CompileResult:
    """Do what the core's thread does."""
    try:
        build = functools.partial(compile_matcher, letters_vocabulary(), to_llguidance(grammar))
        return CompileResult(grammar, CompiledGrammar(build, frozenset([EOS])))
    except PagewireError as exc:
        return CompileResult(grammar, None, exc)


def allowed_by(masks: bytes, position: int, vocab_size: int) -> set[int]:
    """Return the tokens that one of a row's masks allows."""
    size = -(-vocab_size // 32) * 4
    mask = int.from_bytes(masks[position * size : (position + 1) * size], "little")
    return {token_id for token_id in range(vocab_size) if mask >> token_id & 1}


class Follower:
    """The rules of a grammar, asked of the library alone; `stops` are end tokens that it does not know."""

    def __init__(self, grammar: Grammar, stops: Iterable[int] = ()) -> None:
        self._stops = set(stops)
        compiled = compile_letters(grammar).compiled
        assert compiled is not None
        self._matcher = compiled.matcher.deep_copy()

    def allowed(self) -> set[int]:
        """Return the tokens that may follow; a stop token may where the text may end."""
        allowed = allowed_by(self._matcher.compute_bitmask(), 0, 2 + len(LETTERS)) - self._stops
        return allowed | self._stops if EOS in allowed else allowed

    def take(self, token_id: int) -> bool:
        """Go on by a letter; return whether nothing can follow."""
        assert self._matcher.consume_token(token_id)
        return self._matcher.is_stopped()
