"""The first exchange of a client and a core: `Hello`, answered by `Ready` or `Goodbye`."""

from __future__ import annotations

import asyncio

from pagewire.ipc.channels import CoreConnection
from pagewire.ipc.codec import PROTOCOL_VERSION
from pagewire.ipc.errors import EngineDead, PagewireError, ProtocolError
from pagewire.ipc.outputs import Goodbye, Ready
from pagewire.ipc.requests import Hello


async def shake_hands(connection: CoreConnection, *, name: str, address: str, timeout_s: float | None) -> Ready:
    """Introduce a client and wait for the core, which answers once its model is loaded.

    Args:
        connection: to the core.
        name: says in the core's log who this is.
        address: of the core, for the error text.
        timeout_s: how long to wait; None waits for good.

    Raises:
        EngineDead: nothing answered.
        ProtocolError: the core speaks another version.
        PagewireError: what else the core refuses this client for, a failed start for example.
    """
    try:
        async with asyncio.timeout(timeout_s):
            connection.send(Hello(protocol_version=PROTOCOL_VERSION, client_name=name))
            return await _first_answer(connection)
    except TimeoutError:
        raise EngineDead(
            f"No engine answered at {address} within {timeout_s:g} s. Check the address and that an engine runs there "
            f"(`pagewire engine --listen {address}`); if it is still loading its model, wait longer (timeout_s)."
        ) from None


async def _first_answer(connection: CoreConnection) -> Ready:
    while True:
        match await connection.recv():
            case Ready() as ready:
                if ready.protocol_version != PROTOCOL_VERSION:
                    raise ProtocolError(
                        f"The engine speaks protocol version {ready.protocol_version}, this client version "
                        f"{PROTOCOL_VERSION}; update the older of the two."
                    )
                return ready
            case Goodbye(error=error):
                raise PagewireError.from_info(error)
            case _:  # nothing else concerns a client that is not attached yet
                continue
