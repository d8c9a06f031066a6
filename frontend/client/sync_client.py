"""`EngineClient`: the blocking face of `AsyncEngineClient`, for scripts and notebooks.

    with EngineClient("ipc:///tmp/pagewire.sock") as client:
        for delta in client.generate([1, 2, 3], SamplingParams(max_tokens=8)):
            print(delta.token_ids)

The connection lives on an event loop of its own thread, so a loop that runs in the caller's thread (a notebook) does
not matter, and signs of life flow while the caller computes.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

from pagewire.ipc.curve import ClientKeys
from pagewire.ipc.errors import EngineDead
from pagewire.ipc.outputs import EngineInfo, RequestEnd, RequestStart, StepStats, TokenDelta
from pagewire.ipc.requests import AddRequest, EmbedTask, GenerateTask
from pagewire.ipc.sampling_params import SamplingParams

from .embedding import PromptEmbedding
from .engine_client import AsyncEngineClient
from .loop_thread import LoopThread
from .token_stream import TokenStream

T = TypeVar("T")


class EngineClient:
    """A connection to one engine core for blocking code. `close` it, or use it in a `with` statement."""

    def __init__(
        self, address: str, *, name: str = "", keys: ClientKeys | None = None, timeout_s: float | None = 10.0
    ) -> None:
        """Attach to the core that listens on `address`; arguments and errors as `AsyncEngineClient.connect`."""
        self._thread = LoopThread("engine-client")
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self._thread.close)
            connecting = AsyncEngineClient.connect(address, name=name, keys=keys, timeout_s=timeout_s)
            self._client = self._thread.run(connecting)
            on_failure.pop_all()
        # A client that was never closed, or whose interpreter ends, takes its thread and socket along.
        self._close = weakref.finalize(
            self, self._thread.run_outside, functools.partial(_close, self._thread, self._client)
        )

    @property
    def info(self) -> EngineInfo:
        """What the core serves and its limits."""
        return self._client.info

    @property
    def stats(self) -> StepStats | None:
        """The core's state at the last step that concerned this client."""
        return self._client.stats

    def generate(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams | GenerateTask,
        *,
        label: str = "",
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
        adapter: str = "",
    ) -> SyncTokenStream:
        """Ask for tokens; arguments and errors as `AsyncEngineClient.generate`."""

        async def submit() -> TokenStream:
            return self._client.generate(
                prompt_token_ids,
                params,
                label=label,
                priority=priority,
                cache_salt=cache_salt,
                timeout_s=timeout_s,
                adapter=adapter,
            )

        return SyncTokenStream(_run(self._thread, submit()), self._thread)

    def embed(
        self,
        prompt_token_ids: Sequence[int],
        task: EmbedTask | None = None,
        *,
        label: str = "",
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
        adapter: str = "",
    ) -> PromptEmbedding:
        """Return the vector of a prompt; arguments and errors as `AsyncEngineClient.embed`."""
        embedding = self._client.embed(
            prompt_token_ids,
            task,
            label=label,
            priority=priority,
            cache_salt=cache_salt,
            timeout_s=timeout_s,
            adapter=adapter,
        )
        return _run(self._thread, embedding)

    def call_utility(
        self, method: str, *args: int | float | str | bool | None, timeout_s: float | None = 30.0
    ) -> Any:  # Any: each utility documents its result
        """Call a utility of the core; errors as `AsyncEngineClient.call_utility`."""
        return _run(self._thread, self._client.call_utility(method, *args, timeout_s=timeout_s))

    def close(self) -> None:
        """Leave the engine; live requests are aborted. Closing twice is fine."""
        self._close()

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class SyncTokenStream:
    """The answer to one request, iterated by blocking code. Leaving it early aborts the request, as `TokenStream`."""

    def __init__(self, stream: TokenStream, thread: LoopThread) -> None:
        self._stream = stream
        self._thread = thread

    @property
    def request(self) -> AddRequest:
        """The request as it was sent."""
        return self._stream.request

    @property
    def start(self) -> RequestStart | None:
        """Facts of the prefill; there from the first token on."""
        return self._stream.start

    @property
    def end(self) -> RequestEnd | None:
        """The terminal message, once it came."""
        return self._stream.end

    def accepted(self) -> None:
        """Wait until the engine took the request, or raise why it did not."""
        _run(self._thread, self._stream.accepted())

    def __iter__(self) -> Iterator[TokenDelta]:
        return self

    def __next__(self) -> TokenDelta:
        delta = _run(self._thread, _next_or_none(self._stream))
        if delta is None:
            raise StopIteration
        return delta

    def close(self) -> None:
        """Abort the request if it still runs; that of a closed client doesn't."""
        if self._thread.is_running:
            self._thread.run(self._stream.aclose())

    def __enter__(self) -> SyncTokenStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _run(thread: LoopThread, coroutine: Coroutine[Any, Any, T]) -> T:  # Any: what asyncio sends
    if not thread.is_running:
        coroutine.close()
        raise EngineDead("This client was closed.")
    return thread.run(coroutine)


async def _next_or_none(stream: TokenStream) -> TokenDelta | None:
    async for delta in stream:
        return delta
    return None


def _close(thread: LoopThread, client: AsyncEngineClient) -> None:
    if thread.is_running:
        thread.run(client.aclose())
        thread.close()
