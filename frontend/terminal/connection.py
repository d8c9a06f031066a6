"""A server with OpenAI's API, for commands that block: requests run on an event loop in a thread, Ctrl-C ends them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from difflib import get_close_matches
from typing import Any, TypeVar

import aiohttp
import msgspec

from pagewire.ipc.errors import ConfigError, EngineError, InvalidRequest, MachineError, RequestError

from ..bench.serving.client import describe_failure
from ..client.loop_thread import LoopThread
from .address import JsonObject, checked_url

T = TypeVar("T")

_CONNECT_TIMEOUT_S = 10.0
_PROBE_TIMEOUT_S = 0.5
_LOOK_TIMEOUT_S = 10.0  # what is not an answer of a model is there at once, or the server stands still
_LONGEST_LINE = 1 << 22  # bytes of one event: logprobs of many alternatives
_DATA, _DONE = b"data:", b"[DONE]"


class ServerConnection:
    """Talks to one server until it is closed.

    Attributes:
        url: the server without a path of the API.

    Args:
        url: like http://host:8000; a /v1 at its end counts for nothing.
        api_key: is sent along if there is one.
        uds: the Unix socket at which that server listens, if it does at one.
    """

    def __init__(self, url: str, *, api_key: str | None = None, uds: str | None = None) -> None:
        self.url = checked_url(url)
        self._thread = LoopThread("terminal")
        self._session = self._thread.run(_open_session(api_key, uds))

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:  # Any: what asyncio sends
        """Run a coroutine that uses this connection; Ctrl-C cancels it."""
        return self._thread.run(coroutine)

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:  # Any: as above
        """Have a coroutine run beside what else is done, until it ends or this connection is closed."""
        self._thread.start(coroutine)

    def get_text(self, path: str) -> str:
        """Return the body of a GET; errors as `request`."""
        return self.run(self._get(path)).decode(errors="replace")

    def get_json(self, path: str) -> JsonObject:
        """Return the object that a GET answers; errors as `request`."""
        return _decode(self.run(self._get(path)))

    def model_names(self) -> list[str]:
        """Return the names that requests may ask for; errors as `request`."""
        return [str(card["id"]) for card in self.get_json("/v1/models").get("data", []) if "id" in card]

    def check(self) -> None:
        """Find a wrong address or key before much is asked.

        Raises:
            ConfigError: the key is missing or wrong.
            MachineError: the server can't be reached.
        """
        with contextlib.suppress(RequestError, EngineError):  # another server, or a busy one: it is there
            self.model_names()

    def choose_model(self, wanted: str | None) -> str:
        """Return the model to ask for: the wanted one, else the first.

        Raises:
            ConfigError: there is none, or none of that name.
        """
        names = self.model_names()
        if wanted is None:
            if not names:
                raise ConfigError(f"{self.url} serves no model.")
            return names[0]
        if wanted not in names:
            raise ConfigError(explain_unknown_model(wanted, names))
        return wanted

    def stream(self, path: str, body: Mapping[str, object], take: Callable[[JsonObject], None]) -> None:
        """Send a request and hand each event of its stream to `take`; errors as `request`, or `EngineError` in it."""
        self.run(self._stream(path, body, take))

    @asynccontextmanager
    async def request(self, method: str, path: str, body: object = None) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, on this connection's loop; the answer's head is there and says that all is well.

        Raises:
            InvalidRequest: the server refuses it.
            EngineError: the server fails.
            ConfigError: the key is missing or wrong.
            MachineError: the server can't be reached, or the connection broke.
        """
        data = None if body is None else msgspec.json.encode(body)
        has_begun = False
        try:
            async with self._session.request(method, self.url + path, data=data) as response:
                if response.status >= 400:
                    raise _refusal(response.status, await response.read(), self.url)
                has_begun = True
                yield response
        except (aiohttp.ClientError, OSError) as exc:
            if has_begun and not isinstance(exc, aiohttp.ClientError):
                raise  # of who takes the answer: its own output is closed, say
            if has_begun:
                raise MachineError(f"{self.url} broke the connection off in the middle of its answer.") from exc
            fault = describe_failure(exc) or type(exc).__name__
            raise MachineError(f"{self.url} can't be reached: {fault}; is `pagewire serve` running there?") from exc

    async def post(self, path: str, body: object) -> tuple[int, Mapping[str, str], bytes]:
        """Return status, heads and body of whatever a server answers to a POST, on this connection's loop.

        Raises:
            aiohttp.ClientError: it gives no answer.
            OSError: the same.
        """
        async with self._session.post(self.url + path, data=msgspec.json.encode(body)) as response:
            return response.status, response.headers, await response.read()

    def close(self) -> None:
        """End what runs, and the thread. Closing twice is fine."""
        if self._thread.is_running:
            self._thread.run(self._session.close())
            self._thread.close()

    async def _get(self, path: str) -> bytes:
        try:
            async with asyncio.timeout(_LOOK_TIMEOUT_S), self.request("GET", path) as response:
                return await response.read()
        except TimeoutError as exc:
            raise MachineError(f"{self.url} says nothing for {_LOOK_TIMEOUT_S:g} s: it stands still.") from exc

    async def _stream(self, path: str, body: Mapping[str, object], take: Callable[[JsonObject], None]) -> None:
        is_over = False
        async with self.request("POST", path, body) as response:
            async for line in response.content:
                if not line.startswith(_DATA):
                    continue
                data = line.removeprefix(_DATA).strip()
                if data == _DONE:
                    is_over = True
                    continue
                event = _decode(data)
                if event.get("error"):
                    raise EngineError(_message(event) or "the stream broke off with an error.")
                is_over = is_over or any(choice.get("finish_reason") for choice in event.get("choices") or ())
                take(event)
        if not is_over:  # a proxy that is stopped ends what it passes on as if that were all
            raise MachineError(f"{self.url} ended its answer before it was whole.")


def is_serving(url: str) -> bool:
    """Tell at once whether something answers requests for models there, with or without a key."""
    thread = LoopThread("probe")
    try:
        return thread.run(_probe(url))
    finally:
        thread.close()


def explain_unknown_model(name: str, known: list[str]) -> str:
    """Return one line on a model that a server does not have."""
    matches = get_close_matches(name.lower(), [each.lower() for each in known], n=1, cutoff=0.5)
    part = next((each for each in known if name.lower() in each.lower() or each.lower() in matches), None)
    guess = f"; did you mean {part}?" if part is not None else "."
    return f"there is no model {name}{guess} The server has {', '.join(known) or 'none'}."


async def _open_session(api_key: str | None, uds: str | None) -> aiohttp.ClientSession:
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    return aiohttp.ClientSession(
        connector=aiohttp.UnixConnector(uds, limit=0) if uds is not None else aiohttp.TCPConnector(limit=0),
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
        read_bufsize=_LONGEST_LINE,
    )


async def _probe(url: str) -> bool:
    timeout = aiohttp.ClientTimeout(total=_PROBE_TIMEOUT_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{url}/v1/models") as response:
            return response.status in (200, 401, 403)
    except (aiohttp.ClientError, OSError):  # TimeoutError is one
        return False


def _refusal(status: int, body: bytes, url: str) -> Exception:
    try:
        text = _message(msgspec.json.decode(body))
    except msgspec.DecodeError:
        text = None
    if status in (401, 403):
        return ConfigError(f"{url} wants a key ({text or status}): give --api-key, or set PAGEWIRE_API_KEY.")
    message = text or f"HTTP {status} from {url}: {body[:200].decode(errors='replace').strip() or 'no text'}"
    return InvalidRequest(message) if status < 500 else EngineError(message)


def _message(body: object) -> str | None:
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):
        error = error.get("message")
    return None if error is None else str(error)


def _decode(data: bytes) -> JsonObject:
    try:
        return msgspec.json.decode(data, type=JsonObject)
    except msgspec.DecodeError as exc:
        raise MachineError(f"the server's answer is not OpenAI's: {exc}") from exc
