"""What `pagewire bench report` can be told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from pagewire.ipc.errors import ConfigError

_SUFFIXES = (".html", ".htm")


class BenchReportConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A page of saved runs."""

    output: Annotated[str, Meta(description="The page to write.")] = "report.html"
    title: Annotated[str, Meta(description="What stands above it.")] = "pagewire bench"

    def __post_init__(self) -> None:
        check_report(Path(self.output), "--output")


def check_report(path: Path, flag: str) -> None:
    """Find out before a long run whether its page can be written.

    Raises:
        ConfigError: the name is none of a page, or the folder isn't there.
    """
    if path.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"{flag} {path} must end in {' or '.join(_SUFFIXES)}.")
    if not path.parent.is_dir():
        raise ConfigError(f"{flag} {path}: the folder {path.parent} does not exist; make it first.")
