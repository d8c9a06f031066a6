"""How a flag's text becomes a value: numbers with units, choices, texts. The same types read a YAML file's values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import click
import msgspec
from click.shell_completion import CompletionItem

# Lower case counts in thousands, upper case in 1024s, as vLLM has it: 1k tokens are 1000, 1K are 1024.
_UNITS = {
    "": 1,
    "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4,
    "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4,
}  # fmt: skip
_INT64 = 2**63  # what a message between processes can carry
_NUMBER = re.compile(r"([+-]?[0-9]{1,30}(?:\.[0-9]{1,30})?)([kKmMgGtT]?)")


class WholeNumber(click.ParamType[int | None]):
    """An int, with a unit if one likes: 4096, 4k (4000), 4K (4096), 25.6k (25600), 2g (2 * 10^9).

    Args:
        is_automatic: "auto" and -1 are accepted too and give None, so that the engine chooses.
    """

    name = "INT"

    def __init__(self, *, is_automatic: bool = False) -> None:
        self._is_automatic = is_automatic

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Return the number, or None for an automatic one."""
        # Any: click hands over texts, a YAML file whatever it holds.
        text = str(value).strip()
        if self._is_automatic and text.lower() in ("auto", "-1"):
            return None
        match = _NUMBER.fullmatch(text)
        number = Fraction(match[1]) * _UNITS[match[2]] if match is not None and not isinstance(value, bool) else None
        if number is None or number.denominator != 1:
            forms = "4096, 4k (4000), 4K (4096) or auto" if self._is_automatic else "4096, 4k (4000) or 4K (4096)"
            raise click.BadParameter(f"{text!r} is no whole number; give one like {forms}.", ctx, param)
        if not -_INT64 <= number < _INT64:
            raise click.BadParameter(f"{text} is beyond 64 bits.", ctx, param)
        return int(number)


class Number(click.ParamType[float]):
    """A float. Whether it lies in its range is the config's business."""

    name = "FLOAT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        if not isinstance(value, bool):
            try:
                return float(value)
            except (TypeError, ValueError):
                pass  # answered below, like everything else that is no number
        raise click.BadParameter(f"{value!r} is no number; give one like 0.9.", ctx, param)


class Text(click.ParamType[str]):
    """A text that is not empty: an empty one mostly comes from a shell variable that is not set."""

    name = "TEXT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text."""
        if not isinstance(value, str):
            raise click.BadParameter(f"{value!r} is no text; put it in quotes.", ctx, param)
        if not value:
            raise click.BadParameter("the value is empty.", ctx, param)
        if value.startswith("--"):
            raise click.BadParameter(f"the value is missing: {value} follows.", ctx, param)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Have a shell complete paths, which many a text is; without, it would offer nothing."""
        return [CompletionItem(incomplete, type="file")]

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        """Return an environment variable's value whole: click would split it at spaces, and a key may hold some."""
        return [rv]


class JsonObject(click.ParamType[str]):
    """A JSON object, on the command line as its text, in a file as a mapping. Its keys are the config's business."""

    name = "JSON"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return its text."""
        if isinstance(value, Mapping):
            return msgspec.json.encode(value).decode()
        try:
            is_object = isinstance(msgspec.json.decode(str(value)), dict)
        except msgspec.DecodeError:
            is_object = False
        if not is_object:
            raise click.BadParameter(
                f'{value!r} is no JSON object; give one like \'{{"method": "ngram"}}\', in single quotes.', ctx, param
            )
        return str(value)


class Choice(click.ParamType[str]):
    """One of a few words, in any case; click's own Choice can neither know other spellings nor say why not.

    Args:
        choices: the words.
        aliases: other spellings that users know, to the word they mean.
        refused: words that other engines take, to the reason why this one does not (yet).
        notes: aliases that say more than their word does, to the reason why that is left out.
    """

    name = "WORD"

    def __init__(
        self,
        choices: Sequence[str],
        aliases: Mapping[str, str],
        refused: Mapping[str, str],
        notes: Mapping[str, str] | None = None,
    ) -> None:
        self.choices = tuple(choices)
        self._aliases = aliases
        self._refused = refused
        self._notes = notes or {}

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the choices for the help text."""
        return "|".join(self.choices)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the words that begin so."""
        return [CompletionItem(word) for word in self.choices if word.startswith(incomplete.lower())]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the word as the config spells it."""
        typed = str(value).lower()
        word = self._aliases.get(typed, typed)
        if word in self.choices:
            if typed in self._notes and param is not None:
                click.echo(f"pagewire: {param.opts[0]} {typed} is taken as {word}: {self._notes[typed]}.", err=True)
            return word
        raise self._refusal(word, ctx, param)

    def _refusal(self, word: str, ctx: click.Context | None, param: click.Parameter | None) -> click.BadParameter:
        choices = ", ".join(self.choices)
        if word in self._refused:
            return click.BadParameter(
                f"{word} is not supported yet: {self._refused[word]}; choose from {choices}.", ctx, param
            )
        return click.BadParameter(f"{word!r} is not one of {choices}.", ctx, param)
