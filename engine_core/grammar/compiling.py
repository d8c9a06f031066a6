"""From the library's language to a matcher, within limits, and with the proof that it allows something."""

from __future__ import annotations

import llguidance

from .translate import refused

_MAX_ERROR_CHARS = 500
# A grammar's automaton grows with the texts that its matchers read, all of them together: 2 kB a state. Whoever comes
# to the bound has it made anew, see `CompiledGrammar`. The other limits are the library's own: of a grammar's size, and
# of the work for its start and for each mask, 20 ms of it at most.
_MAX_LEXER_STATES = 20_000


def compile_matcher(vocabulary: llguidance.LLTokenizer, grammar: str) -> llguidance.LLMatcher:
    """Return a matcher at the start of a text. The interpreter is free meanwhile.

    Args:
        vocabulary: the model's.
        grammar: in the library's language.

    Raises:
        InvalidRequest: it doesn't compile, takes more than it may, or allows no text.
    """
    limits = llguidance.LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
    matcher = llguidance.LLMatcher(vocabulary, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise refused(_shortened(matcher.get_error()))
    mask = bytearray(matcher.compute_bitmask())
    if matcher.is_error():
        raise refused(_shortened(matcher.get_error()))
    for token_id in vocabulary.eos_tokens:
        mask[token_id // 8] &= ~(1 << token_id % 8) & 0xFF
    if not any(mask):
        raise refused("it allows no text but the empty one." if matcher.is_accepting() else "it allows no text.")
    return matcher


def _shortened(error: str) -> str:
    text = " ".join(error.split("<state>")[0].split()).removesuffix("<non-verbose/>").rstrip()
    if text == "NoExtensionBias":  # the library's word for a language without texts
        text = ""
    return f"{text[:_MAX_ERROR_CHARS]}…" if len(text) > _MAX_ERROR_CHARS else text or "it allows no text."
