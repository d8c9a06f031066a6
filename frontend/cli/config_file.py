"""The values of `--config FILE.yaml`: the same flags without dashes in front; the command line wins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from .flags import FlagOption
from .needless import explain_idle
from .refused import SERVING, RefusedFlags, explain_unknown_flag


def read_config_file(
    path: str, options: Iterable[FlagOption], elsewhere: Mapping[str, str], refused: RefusedFlags = SERVING
) -> dict[str, object]:
    """Return the file's values by field name, for click to check and convert like the command line's.

    Args:
        path: a YAML file with one mapping of flag names to values.
        options: the flags that may stand in it.
        elsewhere: flags of other commands, see `explain_unknown_flag`.
        refused: what the command does not take.

    Raises:
        click.UsageError: the file can't be read, or it holds what is no flag.
    """
    import yaml  # only who brings a file pays for the import

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as exc:
        raise click.UsageError(f"--config {path} can't be read: {exc.strerror}.") from exc
    except UnicodeDecodeError as exc:
        raise click.UsageError(f"--config {path} is not UTF-8 text.") from exc
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark is not None else ""
        raise click.UsageError(f"--config {path} is not valid YAML{where}.") from exc
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise click.UsageError(f"--config {path} must hold one mapping of flags to values, like `port: 8001`.")
    return _by_field(content, path, {name: option for option in options for name in option.opts}, elsewhere, refused)


def _by_field(
    content: dict[object, object],
    path: str,
    options: Mapping[str, FlagOption],
    elsewhere: Mapping[str, str],
    refused: RefusedFlags,
) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in content.items():
        name = "--" + str(key).lstrip("-").replace("_", "-")
        option = options.get(name)
        if option is None and (line := explain_idle(name, value, refused.needless, refused.redundant)) is not None:
            click.echo(f"pagewire: --config {path}, {line}", err=True)
            continue
        if option is None:
            raise click.UsageError(f"--config {path}, {key}: {explain_unknown_flag(name, options, elsewhere, refused)}")
        flag = option.flag
        if flag.field in values:
            raise click.UsageError(f"--config {path}: {flag.name} stands in it twice.")
        if flag.is_many and not isinstance(value, list):
            value = [value]
        has_parts = (flag.is_many and isinstance(value, list)) or (flag.is_object and isinstance(value, dict))
        if isinstance(value, list | dict) and not has_parts:
            raise click.UsageError(f"--config {path}: {key} takes one value.")
        if value is not None:  # `key:` without a value is like leaving it out
            values[flag.field] = value
    return values
