"""The last word to clients of an engine whose core can't say it any more."""

from __future__ import annotations

import logging
import time

import zmq

from pagewire.ipc.channels import ClientRouter, GoneClient, SlowClient
from pagewire.ipc.curve import ServerKeys
from pagewire.ipc.errors import MachineError, PagewireError
from pagewire.ipc.outputs import Goodbye

logger = logging.getLogger(__name__)

FAREWELL_S = 2.0  # a client tries to attach several times a second


def say_farewell(address: str, keys: ServerKeys | None, error: PagewireError) -> None:
    """Listen where the core did, and tell each client that tries to attach that no core will come.

    Args:
        address: where the core listened.
        keys: whom it let in.
        error: why it is gone.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        router = ClientRouter(context, address, keys)
    except MachineError as exc:
        logger.warning("clients will find out by themselves that the engine is gone: %s", exc)
    else:
        try:
            _answer_all(router, Goodbye(error=error.to_info()))
        finally:
            router.close()
    finally:
        context.destroy(linger=0)


def _answer_all(router: ClientRouter, goodbye: Goodbye) -> None:
    poller = zmq.Poller()
    router.register(poller)
    end = time.monotonic() + FAREWELL_S
    while (left_s := end - time.monotonic()) > 0:
        poller.poll(int(left_s * 1000) + 1)
        router.answer_door(time.monotonic())
        while (received := router.try_recv()) is not None:
            client, _ = received
            try:
                router.send(client, goodbye)
            except (GoneClient, SlowClient) as exc:
                logger.debug("client %s left before its goodbye: %s", client.hex(), exc)
