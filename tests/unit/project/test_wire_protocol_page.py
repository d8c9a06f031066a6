"""docs/wire-protocol.md says what the code does: its example runs, its tables name every field in order."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from pagewire.engine_core.clients import utilities
from pagewire.engine_core.rest import calls as rest_calls
from pagewire.ipc import errors, outputs, requests, sampling_params
from pagewire.ipc.codec import PROTOCOL_VERSION
from tests.support.fake_core import FakeCore

PAGE = (Path(__file__).parents[3] / "docs" / "wire-protocol.md").read_text()
STRUCTS = {
    name: struct
    for module in (errors, requests, sampling_params, outputs)
    for name, struct in vars(module).items()
    if isinstance(struct, type) and issubclass(struct, msgspec.Struct)
}


def example() -> str:
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    return code


def test_example_client_is_under_40_lines():
    assert len(example().splitlines()) < 40


async def run_example(core: FakeCore, *token_ids: int) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", example(), core.address, *map(str, token_ids),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_example_client_prints_the_tokens_of_an_answer():
    async with FakeCore() as core:
        assert await run_example(core, 5, 6, 7) == (0, "".join(f"{i}\n" for i in range(10, 42)), "")
        request = await core.next(requests.AddRequest)
        assert request.inputs.prompt_token_ids == [5, 6, 7]
        assert request.task.eos_token_ids == list(core.info.eos_token_ids)


async def test_example_client_shows_a_refusal():
    async with FakeCore(hello_error=errors.ErrorInfo(kind="ProtocolError", message="too old")) as core:
        code, _, err = await run_example(core, 5)
        assert code == 1
        assert "too old" in err


def documented_fields() -> dict[str, str]:
    rows = re.findall(r"^\| `(\w+)` \| (?:`([\w, ]*)`)? *\|", PAGE, re.MULTILINE)
    return dict(rows)


@pytest.mark.parametrize(("name", "fields"), documented_fields().items())
def test_tables_name_every_field_in_order(name, fields):
    assert fields == ", ".join(STRUCTS[name].__struct_encode_fields__)


def test_tables_name_every_message():
    messages = {
        message.__name__ for union in (requests.ClientMessage, outputs.CoreMessage) for message in get_args(union)
    }
    assert messages <= documented_fields().keys()


def test_page_names_the_version():
    assert f"protocol version {PROTOCOL_VERSION}." in PAGE
    assert f'"Hello", {PROTOCOL_VERSION},' in PAGE


def test_page_names_every_finish_reason():
    assert ", ".join(f"{reason.value} {reason}" for reason in outputs.FinishReason) in PAGE


def test_page_names_every_utility():
    documented = [module.__doc__.partition("\n\n")[2] for module in (utilities, rest_calls)]
    listed = [name for text in documented for name in re.findall(r"^(\w+) +\S", text, re.MULTILINE)]
    assert {*rest_calls.METHODS, "pool"} <= set(listed)
    assert [name for name in listed if f"| `{name}` |" not in PAGE] == []
