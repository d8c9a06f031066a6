"""An engine core of our own and the session attached to it, on one event loop: a core that dies is started again.

A core that gives up says `Goodbye` to its clients before it ends: that is final. One that ends without a word (killed,
or by a bug), or that says nothing for the stall limit and is killed for it, gets a successor at the same address, to
which its clients hand their requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from pagewire.ipc.errors import EngineDead, EngineError, MachineError, PagewireError, StartError
from pagewire.ipc.outputs import StepStats
from pagewire.ipc.process import describe_exit
from pagewire.ipc.restart_budget import RestartBudget

from ..client.attach import attach
from ..client.core_link import LinkOptions
from ..client.session import Session
from .engine_process import EngineProcess

logger = logging.getLogger(__name__)

_LAST_WORDS_S = 1.0  # a core that can't start says why before it ends; its message may arrive after its death
# A start on a loaded machine: interpreter, imports, the model's header. Then the core answers, whatever else it does.
_START_LIMIT_S = 15.0
_FIRST_START_LIMIT_S = 60.0  # from a cold and busy disk
# An idle core is asked for a sign of life so often that one that has stopped is found soon after the stall limit.
_PROBES_PER_STALL_LIMIT = 4
_MAX_PROBE_INTERVAL_S = 5.0
_STRAINED_INTERVAL_S = 0.25  # after a death: what a core does until the next one may be over soon


class RunningEngine:
    """A core process and the session attached to it. Make it on the event loop that it is watched by.

    Attributes:
        session: set by `attach`.
        has_given_up: whether no further core is started, though the last one left no word to its clients.
    """

    def __init__(self, engine: EngineProcess) -> None:
        self.session: Session | None = None
        self.has_given_up = False
        self._engine = engine
        parallel = engine.config.parallel
        is_one_of_several = parallel.data_parallel_size > 1
        self._name = f"engine core {parallel.data_parallel_rank}" if is_one_of_several else "the engine core"
        supervision = engine.config.supervision
        self._stall_limit_s = supervision.stall_limit
        self._budget = RestartBudget("the engine core", supervision.max_restarts)
        self._loop = asyncio.get_running_loop()
        self._died = asyncio.Event()
        self._is_strained = asyncio.Event()  # a core has died, and none has made progress since
        self._tasks: list[asyncio.Task[None]] = []
        self._started_at = time.monotonic()
        self._watch_process()

    async def attach(self, name: str) -> Session:
        """Attach to the core, once it is ready; from then on it is started again when it ends.

        Raises:
            StartError: it can't start.
        """
        options = LinkOptions(
            silence_limit_s=self._stall_limit_s,
            max_held_back=self._engine.config.scheduler.max_waiting_requests,
            reconnect_limit_s=None,  # this supervisor knows better
            on_silence=self._on_silence,
            on_conviction=self._count_anew,  # the next request that ends cores has deaths of its own
        )
        connecting = asyncio.create_task(
            attach(self._engine.address, name=name, keys=self._engine.client_keys, timeout_s=None, options=options)
        )
        death = asyncio.create_task(self._died.wait())
        try:
            await asyncio.wait({connecting, death}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({connecting}, timeout=_LAST_WORDS_S)
            if not connecting.done():
                raise MachineError(
                    f"The engine core ended with exit code {self._engine.process.exit_code} before it was ready; "
                    "its log lines above say more."
                )
            session = connecting.result()
        except StartError:
            raise
        except PagewireError as exc:
            raise MachineError(exc.message) from exc
        finally:
            for task in (death, connecting):
                task.cancel()
            await asyncio.gather(death, connecting, return_exceptions=True)
        self.session = session
        session.add_stats_listener(self._note_progress)
        self._tasks = [
            asyncio.create_task(self._supervise(session)),
            asyncio.create_task(self._look_after(session)),
        ]
        for watching in self._tasks:
            watching.add_done_callback(self._on_task_end)
        return session

    async def aclose(self) -> None:
        """Stop watching and leave the engine, which still has to be stopped. Closing twice is fine."""
        if self._engine.process.death_fd >= 0:
            self._loop.remove_reader(self._engine.process.death_fd)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.session is not None:
            await self.session.aclose()

    def _watch_process(self) -> None:
        self._died.clear()
        self._loop.add_reader(self._engine.process.death_fd, self._on_death)

    def _on_death(self) -> None:
        self._loop.remove_reader(self._engine.process.death_fd)
        self._died.set()

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self.session is not None:  # nobody would start another core
            self.session.mark_dead(EngineDead(f"The engine's supervisor failed: {error!r}"))

    async def _supervise(self, session: Session) -> None:
        """Start a core whenever one has died, until one says goodbye or the budget is spent."""
        while True:
            await self._died.wait()
            code = self._engine.process.wait(timeout_s=1.0)
            assert code is not None, "its death notice came"
            if code >= 0:  # it ended of itself, and may have told its clients why
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_WORDS_S):
                        await session.is_dead.wait()
            if session.death is not None:
                return
            has_served = session.core[1] == self._engine.core_epoch
            self._budget.count_death(is_failed_start=code >= 0 and not has_served)
            self._is_strained.set()
            age_s = time.monotonic() - self._started_at
            how = f"{self._name} {describe_exit(code)} {age_s:.1f} s after its start"
            cause = self._budget.exhausted_by()
            if cause is None:
                logger.error("%s; starting another, epoch %d", how, self._engine.core_epoch + 1)
                try:
                    self._start_next(session)
                except OSError as exc:
                    cause = f"another one can't be started: {exc.strerror or exc}"
            if cause is not None:
                logger.error("%s; giving up: %s", how, cause)
                self.has_given_up = True
                session.mark_dead(EngineDead(f"The engine has given up: {cause}. Last, {how}."))
                return

    def _start_next(self, session: Session) -> None:
        self._engine.restart(session.info.num_blocks, session.adapters)
        self._started_at = time.monotonic()
        self._watch_process()

    async def _look_after(self, session: Session) -> None:
        """Find a core that hangs though this process waits for nothing, and the progress that others make with it."""
        interval_s = min(self._stall_limit_s / _PROBES_PER_STALL_LIMIT, _MAX_PROBE_INTERVAL_S)
        while session.death is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._is_strained.wait()
            if self._is_strained.is_set():
                await asyncio.sleep(min(interval_s, _STRAINED_INTERVAL_S))
            if await session.link.probe(interval_s) and self._is_strained.is_set():
                with contextlib.suppress(EngineError):  # asked again next time
                    stats = await session.call_utility("stats", timeout_s=interval_s)
                    self._note_progress(StepStats(num_steps=stats["num_steps"]))

    def _note_progress(self, stats: StepStats) -> None:
        if self._is_strained.is_set() and stats.num_steps > 0:
            self._budget.start_succeeded()
            self._count_anew()

    def _count_anew(self) -> None:
        self._budget.step_finished()
        self._is_strained.clear()

    def _on_silence(self, has_answered: bool) -> None:
        """Kill a core that says nothing; its death notice does the rest."""
        age_s = time.monotonic() - self._started_at
        start_limit_s = _FIRST_START_LIMIT_S if self._engine.core_epoch == 1 else _START_LIMIT_S
        limit_s = self._stall_limit_s if has_answered else max(self._stall_limit_s, start_limit_s)
        if age_s < limit_s or self._died.is_set():
            return
        flag = " (--stall-limit)" if limit_s == self._stall_limit_s else ""
        logger.error("%s has said nothing for %g s%s: killing it", self._name, limit_s, flag)
        self._engine.process.begin_kill()
