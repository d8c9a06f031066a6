"""Parts of a JSON flag as flags of their own, as vLLM takes them: `--speculative-config.method ngram`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import click
import msgspec

JsonObject = dict[str, Any]  # Any: values of a JSON object, which the config checks


def join_dotted(args: Sequence[str], json_flags: Collection[str]) -> list[str]:
    """Return the arguments with `--x.key v` and `--x.a.b v` put together as one `--x JSON` at the end.

    A value is read as JSON where it is some, and else as a text. What `--x JSON` says besides is kept; where both say
    something of a key, the part wins.

    Args:
        args: a command line.
        json_flags: with their dashes, those that take a JSON object.

    Raises:
        click.UsageError: a part has no value, or stands in what is no object.
    """
    kept: list[str] = []
    parts: dict[str, list[tuple[list[str], str]]] = {}
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        if arg == "--":
            kept.append(arg)
            break
        typed, is_joined, joined = arg.partition("=")
        head, _, path = typed.partition(".")
        flag = head.replace("_", "-")
        if not path or flag not in json_flags:
            kept.append(arg)
            continue
        if not is_joined and not rest:
            raise click.UsageError(f"{typed} requires an argument.")
        keys = [key.replace("-", "_") for key in path.split(".")]
        parts.setdefault(flag, []).append((keys, joined if is_joined else rest.pop(0)))
    for flag, values in parts.items():
        whole, kept = _take_whole(flag, kept)
        for keys, text in values:
            _put(whole, keys, text, flag)
        kept = [flag, msgspec.json.encode(whole).decode(), *kept]
    return [*kept, *rest]


def _take_whole(flag: str, args: Sequence[str]) -> tuple[JsonObject, list[str]]:
    """Return what the flag's own JSON says, and the arguments without it."""
    whole: JsonObject = {}
    kept: list[str] = []
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        typed, is_joined, joined = arg.partition("=")
        if typed.replace("_", "-") != flag:
            kept.append(arg)
            continue
        text = joined if is_joined else rest.pop(0) if rest else ""
        try:
            whole.update(msgspec.json.decode(text, type=JsonObject))
        except (msgspec.DecodeError, msgspec.ValidationError) as exc:
            raise click.UsageError(f"{flag} {text!r} is no JSON object.") from exc
    return whole, kept


def _put(whole: JsonObject, keys: Sequence[str], text: str, flag: str) -> None:
    inner = whole
    for key in keys[:-1]:
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            raise click.UsageError(f"{flag}.{'.'.join(keys)}: {key} is no object.")
    inner[keys[-1]] = _value(text)


def _value(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
