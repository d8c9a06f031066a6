"""From the library's language to a matcher, within limits, and with the proof that it allows something."""

from __future__ import annotations

import llguidance

from .limits import MAX_LEXER_STATES, MAX_STEP_FUEL, MAX_STEP_ITEMS, is_excess, shortened, too_much_work
from .translate import refused


def compile_matcher(vocabulary: llguidance.LLTokenizer, grammar: str) -> llguidance.LLMatcher:
    """Return a matcher at the start of a text. The interpreter is free meanwhile.

    Args:
        vocabulary: the model's.
        grammar: in the library's language.

    Raises:
        InvalidRequest: it doesn't compile, takes more than it may, or allows no text.
    """
    limits = llguidance.LLParserLimits(
        max_lexer_states=MAX_LEXER_STATES,
        step_lexer_fuel=MAX_STEP_FUEL,
        step_max_items=MAX_STEP_ITEMS,
        verbose_errors=False,
    )
    matcher = llguidance.LLMatcher(vocabulary, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise refused(shortened(matcher.get_error()))
    mask = bytearray(matcher.compute_bitmask())
    if matcher.is_error():
        error = matcher.get_error()
        raise too_much_work(error) if is_excess(error) else refused(shortened(error))
    for token_id in vocabulary.eos_tokens:
        mask[token_id // 8] &= ~(1 << token_id % 8) & 0xFF
    if not any(mask):
        raise refused("it allows no text but the empty one." if matcher.is_accepting() else "it allows no text.")
    return matcher
