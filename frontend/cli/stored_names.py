"""The names of fetched models for a shell that completes them: in milliseconds, by the names of folders alone."""

from __future__ import annotations

import os
from pathlib import Path

import click


def complete_model(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the models whose names begin so; a shell completes paths by itself."""
    from pagewire.checkpoint.sources.packaged import SMOLLM2

    home = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    repos = [path.name.removeprefix("models--").replace("--", "/", 1) for path in cache.glob("models--*")]
    names = sorted([SMOLLM2.name, *repos])
    return [name for name in names if name.lower().startswith(incomplete.lower())]
