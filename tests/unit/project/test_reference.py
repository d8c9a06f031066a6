"""Every flag, metric and endpoint that the documents name exists, and every one that exists is documented."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pagewire.frontend.openai.bodies.operations import OPERATIONS
from tools.metrics_table import all_families, exported_name
from tools.reference_pages import DOCS, PAGES, every_command, every_flag, with_tables

ROOT = Path(__file__).resolve().parents[3]
# That one lists vLLM's flags, each of which a test of its own tries.
_PAGES = [page for page in sorted(DOCS.rglob("*.md")) if page.name != "migrating-from-vllm.md"]
_TEXTS = [*_PAGES, ROOT / "README.md", *sorted((ROOT / "examples").glob("*"))]
# Other programs' flags, as far as the documents say how to call them.
_FOREIGN = {
    "docker": """cap-drop entrypoint gpus health-cmd init memory network no-healthcheck read-only rm security-opt
        shm-size tmpfs user profile""",
    "helm, kubectl": "from-literal set",
    "systemctl": "now",
    "pip": "index-url",
    "llama-server": "metrics no-webui threads-http",
    "vllm": "enable-sleep-mode",
    "python -m tools.chaos, tools.soak": "after-recovery during-restarts every kills minutes requests stops",
    "python -m tools.*": "gguf instruction-set kernel methods only time-limit type",
}
_KNOWN_FLAGS = every_flag() | {f"--{name}" for names in _FOREIGN.values() for name in names.split()}


@pytest.mark.parametrize("name", PAGES)
def test_the_lists_are_current(name: str):
    text = (DOCS / name).read_text(encoding="utf-8")
    assert with_tables(name, text) == text, "run python -m tools.reference_pages"


def named(pattern: str, paths: list[Path]) -> Iterator[tuple[str, str]]:
    """Yield what matches in documents, and where."""
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            for found in re.findall(pattern, line):
                yield found, f"{path.relative_to(ROOT)}:{number}: {found}"


def test_every_flag_in_the_documents_exists():
    flags = {flag.replace("_", "-") for flag in _KNOWN_FLAGS}
    strange = [
        where for flag, where in named(r"(?<![\w-])--[a-z][a-z0-9_-]*[a-z0-9](?![\w*-])", _TEXTS)
        if not _is_known(flag.replace("_", "-"), flags)
    ]  # fmt: skip
    assert strange == []


def _is_known(flag: str, flags: set[str]) -> bool:
    """Whether there is a flag, or a switch that it turns: --disable-x is --no-enable-x, and --no stands for any."""
    return flag in flags or flag == "--no" or flag.replace("--disable-", "--enable-") in flags


def test_every_flag_that_exists_is_documented():
    documented = {flag for flag, _ in named(r"`(--[a-z0-9-]+)`", _PAGES)}
    missing = {
        f"{' '.join(words)} {param.opts[-1]}"
        for words, command in every_command()
        for param in command.params
        if isinstance(param, click.Option) and documented.isdisjoint(param.opts)
    }
    assert {each for each in missing if not each.endswith((" --config", " -v", " --version"))} == set()


def test_every_metric_in_the_documents_exists():
    names = {exported_name(family) for family in all_families()}
    series = names | {f"{name}{part}" for name in names for part in ("_bucket", "_sum", "_count")}
    deployed = [path for path in (ROOT / "deploy").rglob("*") if path.suffix in (".json", ".md", ".yaml", ".yml")]
    pattern = r"\b(?:vllm|pagewire):[a-z]\w+|\bpagewire_[a-z]\w+|\bhttp_request\w+"
    assert [where for name, where in named(pattern, [*_TEXTS, *deployed]) if name not in series] == []


def test_every_metric_that_exists_is_documented():
    page = (DOCS / "observability.md").read_text(encoding="utf-8")
    assert [name for family in all_families() if f"`{(name := exported_name(family))}`" not in page] == []


def routes() -> set[str]:
    return {f"{each.method.upper()} {each.path}" for each in OPERATIONS}


def test_every_endpoint_in_the_documents_exists():
    known = {re.sub(r"\{\w+\}", "{}", route) for route in routes()}
    strange = [
        where for route, where in named(r"`((?:GET|POST|PUT|DELETE) /[\w/{}.]*)", _TEXTS)
        if re.sub(r"\{\w+\}", "{}", route) not in known
    ]  # fmt: skip
    assert strange == []
    paths = {"/v1", *(route.partition(" ")[2] for route in known)}  # /v1: the base of OpenAI's clients
    urls = named(r"(?:127\.0\.0\.1|localhost|pagewire):8000(/[\w/]+)", _TEXTS)
    assert [where for path, where in urls if path not in paths] == []


def test_every_endpoint_that_exists_is_documented():
    page = (DOCS / "endpoints.md").read_text(encoding="utf-8")
    assert {route for route in routes() if f"`{route}`" not in page} == set()


def test_every_example_is_listed_and_no_other():
    page = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\]\(([\w.]+)\)", page))
    assert listed == {path.name for path in (ROOT / "examples").iterdir() if path.is_file()} - {"README.md"}
    for name, where in named(r"`examples/([\w.]+)`", _TEXTS):
        assert name in listed, where
