"""The first attachment to a core, from which a session goes on to all the cores that follow it."""

from __future__ import annotations

import asyncio

from pagewire.ipc.curve import ClientKeys
from pagewire.ipc.endpoints import check_address, core_address
from pagewire.ipc.errors import EngineDead

from .core_link import LinkOptions, SilenceReports
from .handshake import Attacher, Introduction
from .session import Session


async def attach(
    address: str, *, name: str, keys: ClientKeys | None, timeout_s: float | None, options: LinkOptions
) -> Session:
    """Attach to the core that listens on `address`; arguments and errors as `AsyncEngineClient.connect`."""
    check_address(address, has_keys=keys is not None)
    introduction = Introduction(address=address, name=name, keys=keys)
    attacher = Attacher(
        introduction,
        turn_s=options.ping_interval_s,
        silence_limit_s=options.silence_limit_s,
        on_turn=SilenceReports(options).turn_passed,
    )
    try:
        async with asyncio.timeout(timeout_s):
            connection, ready = await attacher.attach()
    except TimeoutError:
        its_key = " with the public key that was given for it" if keys is not None else ""
        raise EngineDead(
            f"No engine answered at {address} within {timeout_s:g} s. Check the address and that an engine runs "
            f"there (`pagewire engine --listen {address}`){its_key}; if it is still "
            "loading its model, wait longer (timeout_s)."
        ) from None
    return Session(introduction, options, connection, ready)


async def attach_to_all(
    address: str, *, name: str, keys: ClientKeys | None, timeout_s: float | None, options: LinkOptions
) -> list[Session]:
    """Attach to every core of the engine whose first one listens on `address`, in their order.

    The address of another of its cores is that of this core alone.
    """
    first = await attach(address, name=name, keys=keys, timeout_s=timeout_s, options=options)
    if first.info.data_parallel_rank > 0 or first.info.data_parallel_size == 1:
        return [first]
    addresses = [core_address(address, rank) for rank in range(1, first.info.data_parallel_size)]
    others = [attach(other, name=name, keys=keys, timeout_s=timeout_s, options=options) for other in addresses]
    try:
        results = await asyncio.gather(*others, return_exceptions=True)
    except asyncio.CancelledError:
        await first.aclose()
        raise
    sessions = [first, *(result for result in results if isinstance(result, Session))]
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        await asyncio.gather(*(session.aclose() for session in sessions))
        raise failures[0]
    return sessions
