"""What the engine itself shows, where a server does: its blocks and how far its requests are, about once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from pagewire.ipc.errors import PagewireError, RequestError

from ..connection import ServerConnection
from ..safe_text import safe_text

_PATH = "/v1/engine/events"
_RETRY_S = 2.0
_DATA = b"data:"


@dataclass(frozen=True, slots=True)
class RunningRequest:
    """How far a request's answer is, in tokens.

    Attributes:
        name: the engine's own number of it.
        status: waiting, running or preempted.
        num_prompt: of the prompt; `num_cached` of those were found in the prefix cache.
        num_computed: whose keys and values are there.
        num_output: of the answer, of which there will be `max_output` at most.
    """

    name: str
    status: str
    num_prompt: int
    num_cached: int
    num_computed: int
    num_output: int
    max_output: int


@dataclass(frozen=True, slots=True)
class CorePicture:
    """One core of the engine.

    Attributes:
        cells: the state of blocks, evenly spread over the pool: "0" free, "1" cached, "2" used, "3" shared.
        num_blocks: of the pool.
        num_used: in a request's block table.
        requests: the first of them.
        num_requests: all of them.
    """

    cells: str
    num_blocks: int
    num_used: int
    requests: Sequence[RunningRequest]
    num_requests: int


class EngineWatch:
    """Follows the engine's events on the connection's loop, until that is closed.

    Attributes:
        cores: the last picture; empty while there is none, or if the server shows none.
    """

    def __init__(self, connection: ServerConnection) -> None:
        self.cores: Sequence[CorePicture] = ()
        self._connection = connection
        connection.start(self._follow())

    async def _follow(self) -> None:
        while True:
            try:
                async with self._connection.request("GET", _PATH) as response:
                    async for line in response.content:
                        if line.startswith(_DATA):
                            self.cores = read_picture(line.removeprefix(_DATA))
            except RequestError:
                return  # another engine's server, or an older one
            except (PagewireError, ValueError):
                pass  # it is gone for a while; the metrics tell why
            self.cores = ()
            await asyncio.sleep(_RETRY_S)


def read_picture(data: bytes) -> Sequence[CorePicture]:
    """Return the cores of an event; those that did not answer in time are left out.

    Raises:
        ValueError: it is no picture of an engine.
    """
    picture: Any = msgspec.json.decode(data)  # Any: the server's own shape, which is read field by field
    try:
        return [_core(view) for view in picture["cores"] if view is not None]
    except (KeyError, TypeError) as exc:
        raise ValueError(f"no picture of an engine: {exc!r}") from exc


def _core(view: Any) -> CorePicture:  # Any: as above
    return CorePicture(
        cells=view["cells"],
        num_blocks=view["num_blocks"],
        num_used=view["num_used_blocks"],
        num_requests=view["num_children"],
        requests=[
            RunningRequest(
                name=f"{each['arrival']}" + (f".{each['child']}" if each["child"] else ""),
                status=safe_text(str(each["status"])),
                num_prompt=each["num_prompt_tokens"],
                num_cached=each["num_cached_tokens"],
                num_computed=each["num_computed_tokens"],
                num_output=each["num_output_tokens"],
                max_output=each["max_output_tokens"],
            )
            for each in view["requests"]
        ],
    )
