"""The first exchange of a client and a core: `Hello`, answered by `Ready` or `Goodbye`, tried until there is a core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from pagewire.ipc.codec import PROTOCOL_VERSION
from pagewire.ipc.core_connection import CoreConnection, LostConnection
from pagewire.ipc.curve import ClientKeys
from pagewire.ipc.errors import ConfigError, PagewireError, ProtocolError
from pagewire.ipc.outputs import CoreMessage, Goodbye, Ready
from pagewire.ipc.requests import Hello, Ping

RETRY_S = 0.05  # between attempts, while nobody listens
# A listener answers at once, as its own thread does, whatever the process computes. One that has not by now is stopped;
# or there is none, and ZeroMQ does not say so (a host that is not found).
ESTABLISH_LIMIT_S = 5.0


class Introduction(msgspec.Struct, frozen=True, kw_only=True):
    """Where a client looks for cores, and what it shows them.

    Attributes:
        address: ipc:///path/to.sock or tcp://host:port.
        name: says in the core's log who this is.
        keys: for an address with keys.
    """

    address: str
    name: str = ""
    keys: ClientKeys | None = None


class Attacher:
    """Attaches a client to whatever core listens on an address, however long it takes until one does.

    Args:
        introduction: where, and as whom.
        turn_s: time between signs of life.
        silence_limit_s: a core that says nothing for so long, though it listens, is tried anew.
        on_turn: called after each turn without an answer; what it raises ends the attempts.

    Attributes:
        silent_s: seconds since a core last said anything, counted in turns of the event loop and not by the clock: if
            this process was held up, so was its reading.
        has_answered: whether the core that is being attached to has said anything.
    """

    def __init__(
        self,
        introduction: Introduction,
        *,
        turn_s: float,
        silence_limit_s: float,
        on_turn: Callable[[Attacher], None],
    ) -> None:
        self.silent_s = 0.0
        self.has_answered = False
        self._introduction = introduction
        self._turn_s = turn_s
        self._silence_limit_s = silence_limit_s
        self._on_turn = on_turn

    async def attach(self) -> tuple[CoreConnection, Ready]:
        """Return a connection and the core's answer on it.

        Raises:
            ProtocolError: the core speaks another version.
            ConfigError: the keys are none that the core lets in.
            PagewireError: what else a core refuses this client for, a failed start for example.
        """
        while True:
            connection = CoreConnection(self._introduction.address, self._introduction.keys)
            try:
                return connection, await self._greet(connection)
            except LostConnection:
                connection.close()
                if connection.refusal:
                    address = self._introduction.address
                    raise ConfigError(
                        f"The engine at {address} does not let this client in: {connection.refusal}."
                    ) from None
            except BaseException:  # a refusal, or a cancelled wait
                connection.close()
                raise
            self.has_answered = False
            await asyncio.sleep(RETRY_S)
            self._count_turn(RETRY_S)

    async def _greet(self, connection: CoreConnection) -> Ready:
        connection.send(Hello(protocol_version=PROTOCOL_VERSION, client_name=self._introduction.name))
        silent_s = 0.0
        while True:
            try:
                async with asyncio.timeout(self._turn_s):
                    message = await connection.recv()
            except TimeoutError:
                silent_s += self._turn_s
                self._count_turn(self._turn_s)
                if silent_s >= (self._silence_limit_s if connection.is_established else ESTABLISH_LIMIT_S):
                    raise LostConnection(f"The engine at {self._introduction.address} does not answer.") from None
                if connection.is_established and not connection.has_unsent:
                    connection.send(Ping())  # one that still loads its model answers
                continue
            silent_s = self.silent_s = 0.0
            self.has_answered = True
            ready = _answer(message)
            if ready is not None:
                return ready

    def _count_turn(self, turn_s: float) -> None:
        self.silent_s += turn_s
        self._on_turn(self)


def _answer(message: CoreMessage) -> Ready | None:
    match message:
        case Ready():
            if message.protocol_version != PROTOCOL_VERSION:
                raise ProtocolError(
                    f"The engine speaks protocol version {message.protocol_version}, this client version "
                    f"{PROTOCOL_VERSION}; update the older of the two."
                )
            return message
        case Goodbye(error=error):
            raise PagewireError.from_info(error)
        case _:  # nothing else concerns a client that is not attached yet
            return None
