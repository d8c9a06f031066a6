"""Nothing that comes from outside can become code: no pickle, no eval, typed messages and raw tensors only.

Serving engines have been taken over through a socket that unpickles, and through a "safe" unpickler with a list of
forbidden names. There is none here, at any door: this test looks at every line of the product.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from pagewire.ipc.codec import client_messages, core_messages, from_executor, to_executor
from pagewire.ipc.errors import ProtocolError
from pagewire.ipc.requests import ClientMessage

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("ipc", "checkpoint", "frontend", "engine_core", "gpu_executor", "pagewire")

# What turns bytes into objects of any kind, or text into code.
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "multiprocessing"}
NAMES = {"eval", "exec", "compile", "__import__"}
METHODS = {"recv_pyobj", "send_pyobj", "unsafe_load", "full_load", "load_all", "UnsafeLoader", "FullLoader"}
# Loaders that unpickle unless they are told otherwise -> the argument that tells them, and its value.
LOADERS = {("torch", "load"): ("weights_only", True), ("np", "load"): ("allow_pickle", False)}
# Calls that are none of the above in spite of their name.
HARMLESS = {("re", "compile"), ("torch", "compile")}


def faults_of(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, what) of each thing that could run what came in."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, n.name) for n in names if n.name.partition(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in MODULES:
                yield node.lineno, module
            case ast.Call(func=ast.Name(id=name)) if name in NAMES:
                yield node.lineno, f"{name}()"
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)) if (owner, name) in LOADERS:
                argument, value = LOADERS[owner, name]
                given = {keyword.arg: keyword.value for keyword in node.keywords}
                safe = given.get(argument)
                if not (isinstance(safe, ast.Constant) and safe.value is value):
                    yield node.lineno, f"{owner}.{name} without {argument}={value}"
            case ast.Attribute(attr=name) if name in METHODS:
                yield node.lineno, f".{name}"
            case ast.Call(func=ast.Attribute(value=ast.Name(id="yaml"), attr="load")):
                yield node.lineno, "yaml.load"
            case ast.keyword(arg="allow_pickle" | "trust_remote_code", value=ast.Constant(value=True)):
                yield node.value.lineno, f"{node.arg}=True"
            case _:
                pass


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_unpickles_or_evaluates(package: str):
    faults = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, what in faults_of(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert faults == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle", "from pickle import loads", "import multiprocessing.managers", "socket.recv_pyobj()",
        "eval(x)", "torch.load(path)", "torch.load(path, weights_only=False)", "np.load(path)", "yaml.load(text)",
        "load(path, allow_pickle=True)", "yaml.load_all(text, Loader=yaml.UnsafeLoader)",
    ],
)  # fmt: skip
def test_the_look_finds_what_it_looks_for(code: str):
    assert list(faults_of(ast.parse(code)))


def test_the_look_passes_over_what_is_harmless():
    code = "import re\nre.compile('x')\ntorch.load(path, weights_only=True)\nyaml.safe_load(text)\nmodel.eval()"
    assert list(faults_of(ast.parse(code))) == []


@pytest.mark.parametrize("codec", [client_messages, core_messages, to_executor, from_executor])
@pytest.mark.parametrize("frame", [b"\x80\x04\x95", b"cos\nsystem\n(S'true'\ntR.", b"\xc7\x01\x01x", b"\xd4\x00\x00"])
def test_pickles_and_extensions_of_msgpack_are_no_messages(codec, frame: bytes):
    with pytest.raises(ProtocolError):
        codec.decode(frame)


def test_no_message_of_a_client_has_room_for_raw_bytes():
    """A tensor that a client could send would be raw numbers with a type and a shape; today there is none at all."""
    assert "base64" not in str(msgspec.json.schema_components(get_args(ClientMessage)))
