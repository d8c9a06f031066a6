"""How much work a grammar may cause, and what its author is told who asked for more."""

from __future__ import annotations

from pagewire.ipc.errors import InvalidRequest

# A grammar's automaton grows with the texts that its matchers read, all of them together: 2 kB a state. Whoever comes
# to the bound goes on with another one, see `CompiledGrammar`.
MAX_LEXER_STATES = 20_000
# What a mask may cost the loop. Lists of thousands of airports, titles or addresses, the costliest things that people
# write, take up to 40,000 of the first and 5 ms; a schema of 200 properties takes 1,000 of the second. Grammars that
# were made to cost took 0.7 s with the library's own limits (200,000 and 50,000), and 0.1 s with these.
MAX_STEP_FUEL = 50_000
MAX_STEP_ITEMS = 5_000

_MAX_TEXT_CHARS = 500
# How the library begins what it says of its limits.
_SIGNS_OF_EXCESS = ("Too many items", "too many expressions", "too many states", "Current row has")
_SIGN_OF_FULL_AUTOMATON = "too many states"


def is_full(error: str) -> bool:
    """Say whether a matcher's error is that its automaton has come to its bound, which another one has not."""
    return _SIGN_OF_FULL_AUTOMATON in error


def is_excess(error: str) -> bool:
    """Say whether a matcher's error is that it takes more work than it may."""
    return any(sign in error for sign in _SIGNS_OF_EXCESS)


def too_much_work(error: str) -> InvalidRequest:
    """Return the error of a grammar whose next token takes more work than it may, with what the library says."""
    return InvalidRequest(
        "The grammar of structured_outputs can't be followed any further: the next token takes more work than one may "
        f"({MAX_STEP_FUEL:,} steps of the lexer, {MAX_STEP_ITEMS:,} items of the parser, {MAX_LEXER_STATES:,} states): "
        f"{shortened(error)}. Ask for less at once: fewer alternatives or properties, shorter repetitions.",
        param="structured_outputs",
    )


def shortened(error: str) -> str:
    """Return what the library says, without its own state, and of a sane length."""
    text = " ".join(error.split("<state>")[0].split()).removesuffix("<non-verbose/>").rstrip()
    if text == "NoExtensionBias":  # its word for a language without texts
        text = ""
    return f"{text[:_MAX_TEXT_CHARS]}…" if len(text) > _MAX_TEXT_CHARS else text or "it allows no text."
