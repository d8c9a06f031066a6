"""The names of fetched models for a shell that completes them: in milliseconds, by the names of folders alone."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import CompletionItem


def complete_model(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the models whose names begin so."""
    from pagewire.checkpoint.sources.packaged import SMOLLM2

    home = os.environ.get("HF_HOME") or str(Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    repos = [path.name.removeprefix("models--").replace("--", "/", 1) for path in cache.glob("models--*")]
    names = sorted([SMOLLM2.name, *repos])
    return [name for name in names if name.lower().startswith(incomplete.lower())]


def complete_model_or_path(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the same; where none begins so, the shell completes paths."""
    names = complete_model(ctx, param, incomplete)
    return [CompletionItem(name) for name in names] or [CompletionItem(incomplete, type="file")]
