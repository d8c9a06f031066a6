"""A child process that renders chat templates, seen from the frontend's event loop.

One job at a time, in the order of their coming; so many wait and no more. A process that ends is replaced at once; the
job that it was at is given to the next one, once: it may not have been its fault.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import deque

from pagewire.ipc.errors import EngineError, InvalidRequest, Overloaded, PagewireError, ProtocolError

from .child import TemplateChild
from .jobs import LoadTemplate, RenderChat, encode_message
from .limits import CPU_LIMIT_S, MAX_WAITING_BYTES, MAX_WAITING_CHATS, START_LIMIT_S, WALL_LIMIT_S

logger = logging.getLogger(__name__)

MODULE = "pagewire.frontend.templates"
_MAX_TRIES = 2


class TemplateHelper:
    """Renders chats in a process that can be killed. Make it and close it on one event loop.

    Args:
        load: the template and its variables, given to every process that is started.
        name: the process's tag in the logs.
        log_level: of the process.
        module: the process's module; tests give others.
        wall_limit_s: a process that takes longer over a job is replaced, whatever keeps it.
    """

    def __init__(
        self,
        load: LoadTemplate,
        *,
        name: str,
        log_level: str = "info",
        module: str = MODULE,
        wall_limit_s: float = WALL_LIMIT_S,
    ) -> None:
        self._load = encode_message(load)
        self._name = name
        self._log_level = log_level
        self._module = module
        self._wall_limit_s = wall_limit_s
        self._jobs: deque[_Job] = deque()
        self._num_waiting = 0
        self._waiting_bytes = 0
        self._has_jobs = asyncio.Event()
        self._child: TemplateChild | None = self._start()  # None while the former has ended and no next one started
        self._ending: asyncio.Task[int] | None = None  # of the former process
        self._working = asyncio.create_task(self._work())

    @property
    def pid(self) -> int | None:
        """The present process's id; None if the last one has ended."""
        return None if self._child is None else self._child.pid

    async def loaded(self) -> None:
        """Wait until the template is compiled.

        Raises:
            InvalidRequest: it is no template, or compiling it takes more than a template may.
            Overloaded: the process got no processor for long.
            EngineError: the helper was closed.
        """
        await self._submit(None)

    async def render(self, chat: RenderChat) -> str:
        """Return the prompt.

        Raises:
            InvalidRequest: the template refuses the messages, or takes more than it may.
            Overloaded: too many chats wait already, or the process got no processor for long.
            EngineError: the helper was closed.
        """
        frame = encode_message(chat)
        if self._num_waiting >= MAX_WAITING_CHATS or self._waiting_bytes + len(frame) > MAX_WAITING_BYTES:
            raise Overloaded(
                f"{self._num_waiting} chats of {self._waiting_bytes} bytes wait for their chat template, of at most "
                f"{MAX_WAITING_CHATS} and {MAX_WAITING_BYTES}; try again later."
            )
        return await self._submit(frame)

    async def aclose(self) -> None:
        """End the process; whoever waits is told. Closing twice is fine."""
        self._working.cancel()
        await asyncio.gather(self._working, return_exceptions=True)
        if self._ending is not None:
            await self._ending
        if self._child is not None:
            await self._child.end()

    def _start(self) -> TemplateChild:
        return TemplateChild(self._module, name=self._name, log_level=self._log_level, load=self._load)

    async def _submit(self, frame: bytes | None) -> str:
        if self._working.done():
            raise _closed()
        job = _Job(frame)
        num_bytes = 0 if frame is None else len(frame)
        self._num_waiting += 1
        self._waiting_bytes += num_bytes
        self._jobs.append(job)
        self._has_jobs.set()
        try:
            return await job.answer
        finally:
            self._num_waiting -= 1
            self._waiting_bytes -= num_bytes
            job.frame = None  # one that nobody waits for any more is passed over, and takes no memory until then

    async def _work(self) -> None:
        try:
            while True:
                await self._has_jobs.wait()
                while self._jobs:
                    job = self._jobs[0]
                    if not job.answer.done():  # whoever asked may have left
                        await self._do(job)
                    self._jobs.popleft()
                self._has_jobs.clear()
        finally:
            for job in self._jobs:
                job.fail(_closed())
            self._jobs.clear()

    async def _do(self, job: _Job) -> None:
        frame = job.frame
        try:
            text = None
            for tries_left in reversed(range(_MAX_TRIES)):
                text = await self._try(frame, is_last=tries_left == 0)
                if text is not None:
                    break
        except PagewireError as exc:
            job.fail(exc)
        except OSError as exc:  # the former process has ended, and the machine has no room for another
            job.fail(EngineError(f"No process can be started to render the chat: {exc.strerror}."))
        else:
            assert text is not None
            job.succeed(text)

    async def _try(self, frame: bytes | None, *, is_last: bool) -> str | None:
        """Return the prompt; None if the process ended, and it isn't known that the job ended it."""
        if self._child is None:
            self._child = self._start()
        child = self._child
        limit_s = START_LIMIT_S
        try:
            async with asyncio.timeout(limit_s):
                await child.load()
            limit_s = self._wall_limit_s
            async with asyncio.timeout(limit_s):
                return "" if frame is None else await child.ask(frame)
        except TimeoutError:
            await self._replace(child)
            raise Overloaded(
                f"The chat was not rendered within {limit_s:g} s: the machine is too busy; try again later."
            ) from None
        except (EOFError, OSError, ProtocolError) as exc:
            code = await self._replace(child)
            if code == -signal.SIGPROF:
                raise InvalidRequest(
                    f"the chat template takes more than the {CPU_LIMIT_S:g} s of processor time that it may",
                    param="messages",
                ) from None
            logger.warning("the process %s ended with exit code %s (%s); another one took over", self._name, code, exc)
            if is_last:
                raise InvalidRequest(
                    "the chat template ends the process that renders these messages, each time", param="messages"
                ) from None
            return None

    async def _replace(self, former: TemplateChild) -> int:
        """End a process, start the next one, return the former's exit code."""
        # First of all nobody may ask it any more: its late answer would be taken for that to another chat.
        self._child = None
        # Closing this helper must not leave it half ended.
        self._ending = asyncio.create_task(former.end())
        code = await asyncio.shield(self._ending)
        try:
            self._child = self._start()
        except OSError as exc:
            logger.warning("the process %s can't be started again now: %s", self._name, exc)  # the next job tries
        return code


def _closed() -> EngineError:
    return EngineError("The server no longer renders chats: it is shutting down.")


class _Job:
    """A message for the process, or None to wait for its template, and who waits for the answer."""

    def __init__(self, frame: bytes | None) -> None:
        self.frame = frame
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def succeed(self, text: str) -> None:
        if not self.answer.done():
            self.answer.set_result(text)

    def fail(self, error: PagewireError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
