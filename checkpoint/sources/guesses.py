"""What a name that means no model was meant to be: a model that is on this machine, or an address of one."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

from .packaged import SMOLLM2

_ALIKE = 0.6
_MIN_PART = 3  # characters: fewer stand in any name
_ADDRESS = re.compile(r"(?:https?://[^/\s]+|(?:www\.)?huggingface\.co|hf\.co)/(?P<model>[\w.-]+/[\w.-]+(?::[\w.-]+)?)")


def guess(name: str, cache_directory: Path | None = None) -> str:
    """Return how a line on an unknown model goes on: a question behind a semicolon, or nothing.

    Args:
        name: as the user typed it.
        cache_directory: the hub's cache; None: where HF_HOME says.
    """
    address = _ADDRESS.match(name)
    if address is not None:
        return f"; did you mean {address['model']}?"
    from .inventory import list_models  # what it imports takes longer than to find a model

    wanted = name.lower()
    short = wanted.rpartition("/")[2]
    packaged = SMOLLM2.name.lower()
    if (short and packaged.startswith(short)) or get_close_matches(short, [packaged], cutoff=_ALIKE):
        return f"; did you mean {SMOLLM2.name} (the packaged model)?"
    found = _likest(wanted, short, [model.name for model in list_models(cache_directory)])
    return f"; did you mean {found}, which was fetched?" if found is not None else ""


def _likest(wanted: str, short: str, names: list[str]) -> str | None:
    """Return the name that is likest, whole or without its organization; None if none is."""
    whole = {name.lower(): name for name in names}
    parts = {name.lower().rpartition("/")[2]: name for name in names}
    for word, known in ((wanted, whole), (short, parts)):
        close = get_close_matches(word, known, n=1, cutoff=_ALIKE)
        if close:
            return known[close[0]]
    return next((name for part, name in parts.items() if len(short) >= _MIN_PART and short in part), None)
