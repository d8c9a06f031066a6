"""The public names of the project, and what it costs to import them."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import pagewire
from pagewire.ipc import errors

HEAVY = ("torch", "transformers", "aiohttp", "tokenizers", "numpy", "zmq", "msgspec", "jinja2", "click")


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("name", pagewire.__all__)
def test_every_public_name_can_be_imported(name):
    assert getattr(pagewire, name) is not None


def test_all_is_what_dir_shows_and_what_the_type_checker_sees():
    assert dir(pagewire) == sorted(pagewire.__all__)
    assert len(set(pagewire.__all__)) == len(pagewire.__all__)
    tree = ast.parse(Path(pagewire.__file__).read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {alias.name: node.module for node in block.body for alias in node.names}
    assert typed == pagewire._MODULE_OF
    assert typed.keys() | {"__version__"} == set(pagewire.__all__)


def test_every_error_is_public():
    names = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert names <= set(pagewire.__all__)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'LLMM'"):
        _ = pagewire.LLMM


def test_import_is_quick_and_loads_nothing_heavy():
    program = f"""
import json, sys, time
start = time.perf_counter()
import pagewire
elapsed_s = time.perf_counter() - start
print(json.dumps([elapsed_s, [name for name in {HEAVY!r} if name in sys.modules]]))
"""
    results = [json.loads(run(program)) for _ in range(3)]
    assert min(elapsed_s for elapsed_s, _ in results) < 0.1
    assert results[0][1] == []


def test_offline_interface_loads_neither_torch_nor_a_web_server():
    loaded = run("import sys\nfrom pagewire import LLM\nprint([n for n in ('torch', 'aiohttp') if n in sys.modules])")
    assert loaded == "[]\n"
