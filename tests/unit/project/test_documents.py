"""The documents say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pagewire.frontend.cli.flags import engine_flags, server_flags
from pagewire.version import __version__
from tools import scaling_table
from tools.flags_table import BEGIN, DOCUMENTS, with_table

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_table_of_flags_is_current(name: str):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert with_table(text) == text, "run python -m tools.flags_table"


def test_the_tables_of_placements_are_current():
    text = scaling_table.DOCUMENT.read_text(encoding="utf-8")
    assert "| H100 | bfloat16 | 8 x 2 |" in text
    assert scaling_table.with_tables(text) == text, "run python -m tools.scaling_table"


def test_the_command_line_page_shows_the_table():
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert BEGIN in text
    assert "| `--block-size` | `16` |" in text


def test_the_readme_names_only_flags_that_there_are():
    known = {flag.name for flag in [*engine_flags(), *server_flags()]} | {"--config", "--version", "--listen", "--help"}
    rows = [line for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    named = set(re.findall(r"--[a-z][a-z-]+[a-z]", " ".join(rows)))
    assert named
    assert named <= known


def test_a_document_without_the_marks_is_left_alone():
    assert with_table("no table here") == "no table here"


def test_the_changelog_knows_the_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(__version__)}\]", text, re.MULTILINE)


def test_links_between_documents_lead_somewhere():
    broken = []
    for path in [*ROOT.glob("*.md"), *(ROOT / "examples").glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{path.relative_to(ROOT)}: {target}")
    assert broken == []


def test_every_decision_follows_the_form():
    for path in (ROOT / "docs" / "adr").glob("[!i]*.md"):  # index.md lists them
        text = path.read_text(encoding="utf-8")
        assert re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", path.name)
        assert text.startswith(f"# {int(path.name[:4])}. "), path.name
        for heading in ("## Context", "## Decision", "## Consequences"):
            assert heading in text, f"{path.name}: {heading}"
