"""The JSON schemas that stand in a Lark grammar, each behind `%json`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

# What may hold a `%json` that is none: texts, expressions, comments.
_WORDS = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\\n])+/|(?P<json>%json\b\s*)', re.DOTALL)
_decoder = json.JSONDecoder()


def schemas_in(grammar: str) -> Iterator[Any]:  # Any: JSON
    """Yield a grammar's schemas in their order, as far as they can be read: what is wrong is the compiler's to say.

    Raises:
        RecursionError: a schema is nested too deeply.
    """
    position = 0
    while (word := _WORDS.search(grammar, position)) is not None:
        position = word.end()
        if word["json"] is None:
            continue
        try:
            schema, position = _decoder.raw_decode(grammar, position)
        except ValueError:
            return
        yield schema
