"""The engine core's process: one poll over clients, executors, deaths and orders, and what each event leads to.

While the executors compute a step, the loop takes new requests, commits the last step's tokens and sends them.
Without work it blocks in the poll.
"""

from __future__ import annotations

import gc
import logging
import math
import time
from pathlib import Path

import msgspec
import zmq

from pagewire.checkpoint.fingerprint import fingerprint
from pagewire.checkpoint.loading import load_model_config
from pagewire.checkpoint.model_config import ModelConfig
from pagewire.ipc.channels import ClientId, ClientRouter
from pagewire.ipc.cluster_keys import ClusterKeys
from pagewire.ipc.config import EngineConfig
from pagewire.ipc.curve import ServerKeys
from pagewire.ipc.endpoints import RuntimeDir
from pagewire.ipc.errors import EngineDead, EngineError, ErrorInfo, PagewireError, ProtocolError, StartError
from pagewire.ipc.outputs import StepOutputs, UtilityResult
from pagewire.ipc.process import ParentWatch
from pagewire.ipc.requests import AbortRequests, AddRequest, CallUtility, ClientMessage, Hello, Ping, WatchPrefixCache
from pagewire.ipc.step_trace import StepTrace
from pagewire.ipc.steps import AdapterLoaded, ExecutorReady, FromExecutor, StepResult

from .adapters.registry import AdapterRegistry
from .clients.cache_watchers import CacheWatchers
from .clients.calls import Calls
from .clients.engine_info import engine_info, request_limits
from .clients.registry import PING_INTERVAL_S, ClientRegistry
from .clients.welcome import Welcome
from .engine import Engine
from .executors.placer import LocalPlacer
from .executors.supervisor import ExecutorSupervisor
from .grammar.compiler import GrammarCompiler
from .grammar.vocabulary_source import VocabularySource
from .hosts.choose_placer import choose_placer
from .steps.profile import trace_if_asked

logger = logging.getLogger(__name__)

# Client messages handled between two looks at the executors: a flood of requests must not idle the device.
MAX_MESSAGES_PER_TURN = 256
GOODBYE_LINGER_MS = 500
TRACE_GRACE_S = 3.0  # an executor ends its step and writes its part of the timeline
# A bug in the core: its supervisor starts another one, to which the clients hand their requests.
CRASH_EXIT_CODE = 70


class EngineCore:
    """Owns the sockets and the executors; everything about requests is the `Engine`'s, which does no I/O."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        address: str,
        runtime_dir: RuntimeDir,
        watch: ParentWatch,
        core_epoch: int = 1,
        num_blocks: int | None = None,
        executor_module: str = "pagewire.gpu_executor",
        keys: ServerKeys | None = None,
        cluster_keys: ClusterKeys | None = None,
        engine_id: str = "",
    ) -> None:
        """Listen on `address`, with `keys` for the clients that these name alone, and start the executors.

        `num_blocks` is the pool size that an earlier core's executors settled, None to have it measured. `cluster_keys`
        are those of the hosts that executors run on. `engine_id` is the supervisor's own.

        Raises:
            StartError: an address can't be bound, or the model's files can't be read.
        """
        self._config = config
        self._watch = watch
        self._runtime_dir = runtime_dir
        self._started = time.monotonic()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = ClientRouter(self._context, address, keys)
        self._clients = ClientRegistry(self._router)
        self._cache_watchers = CacheWatchers(self._clients)
        self._poller = zmq.Poller()
        self._model: ModelConfig = load_model_config(Path(config.model.model_path))
        local = LocalPlacer(self._context, runtime_dir, config, core_epoch=core_epoch, module=executor_module)
        self._placer = choose_placer(config, local, cluster_keys, fingerprint(self._model), core_epoch=core_epoch)
        self._adapters = AdapterRegistry(config.lora)
        self._executors = ExecutorSupervisor(
            self._placer,
            config,
            self._poller,
            core_epoch=core_epoch,
            num_blocks=num_blocks,
            now=self._started,
            adapters=lambda: self._adapters.held,
        )
        vocabulary = VocabularySource.of(self._model, config.model.model_path)
        self._grammars = GrammarCompiler(vocabulary, log_level=config.log_level, poller=self._poller)
        self._welcome = Welcome(self._clients, core_epoch=core_epoch, engine_id=engine_id)
        self._calls = Calls(
            self._clients, self._executors, self._adapters, config.parallel.mesh.world_size, self._welcome.tell_adapters
        )
        self._engine: Engine | None = None
        self._failure: PagewireError | None = None
        self._was_busy = False
        self._trace: StepTrace | None = None
        self._router.register(self._poller)
        for fd in watch.fds:
            self._poller.register(fd, zmq.POLLIN)

    def run(self) -> int:
        """Serve until the parent orders a stop or something fails for good; return the exit code.

        A crash says nothing to the clients: a `Goodbye` is final, and theirs is to go on with the next core.
        """
        try:
            return self._serve()
        # The process's last resort: what the bug has left is not to be trusted with anything but the exit code.
        except Exception:
            logger.exception("the engine core crashed")
            self._executors.kill()
            return CRASH_EXIT_CODE
        finally:
            self._grammars.close()
            self._placer.close()
            self._context.destroy(linger=GOODBYE_LINGER_MS)

    def _serve(self) -> int:
        while self._failure is None:
            if self._wait():
                self._stop(EngineDead("the engine was stopped"))
                return 0
            now = time.monotonic()
            self._router.answer_door(now)
            self._drain_clients(now)
            if self._engine is not None:
                self._engine.fail_late(now)
                self._calls.let_go(self._engine)
                self._grammars.exchange(self._engine.grammars)
            self._watch_executors(now)
            self._dispatch(now)
            self._send_outputs(now)
            if self._engine is not None:
                self._calls.look_after(self._engine, now)
            self._watch_clients(now)
        failure = self._failure
        self._stop(failure)
        if isinstance(failure, StartError):  # the supervisor tells the user, in one line
            return failure.exit_code
        logger.error("%s", failure)
        return 1

    def _wait(self) -> bool:
        """Block until something happens; return whether the parent ended or ordered a stop."""
        events = dict(self._poller.poll(self._timeout_ms()))
        return any(fd in events for fd in self._watch.fds)

    def _timeout_ms(self) -> int | None:
        has_work = self._engine is not None and self._engine.has_work()
        if not has_work and not self._executors.needs_attention:
            return None
        wait_s = PING_INTERVAL_S
        deadline_s = None if self._engine is None else self._engine.next_deadline_s()
        if deadline_s is not None:
            wait_s = min(wait_s, max(deadline_s - time.monotonic(), 0.0))
        return math.ceil(wait_s * 1000)

    def _drain_clients(self, now: float) -> None:
        for _ in range(MAX_MESSAGES_PER_TURN):
            received = self._router.try_recv()
            if received is None:
                return
            self._handle(*received, now)

    def _handle(self, client: ClientId, message: ClientMessage | ProtocolError, now: float) -> None:
        match message:
            case ProtocolError():
                logger.warning("client %s sent an unreadable message: %s", client.hex(), message)
                if client in self._clients:
                    self._forget(client)
                self._clients.dismiss(client, message.to_info())
            case Hello():
                # A client may choose its connection's id, and one that left may have had the same: what that one asked
                # for is not for this one to read.
                if client in self._clients:
                    self._forget(client)
                if not self._clients.greet(client, message, now):
                    return
                self._welcome.greet(client, self._engine, now)
            case Ping() if client in self._clients:
                # Whoever waits for tokens hears from the core anyway; who waits for Ready learns that it runs.
                if self._engine is None or client not in self._engine.live_clients():
                    self._clients.send(client, Ping(), now)
            case _ if client not in self._clients or self._engine is None:
                self._clients.dismiss_stranger(client)
            case AddRequest():
                self._engine.add_request(client, message, now)
            case AbortRequests():
                self._engine.abort(client, message, now)
            case CallUtility():
                self._calls.call(self._engine, client, message, now)
            case WatchPrefixCache():
                self._cache_watchers.watch(client, self._engine.prefix_cache, now)

    def _watch_executors(self, now: float) -> None:
        self._drain_executors(now)
        if self._failure is None and self._executors.is_lost(now):
            self._drain_executors(now)  # once more: its last words, and steps that it had done
            self._lose_executors(now)
        if self._failure is None:
            self._failure = self._executors.go_on(now)

    def _lose_executors(self, now: float) -> None:
        death = self._executors.end(now)
        self._calls.executors_lost()
        if death.final is not None:
            self._failure = death.final
        elif self._engine is not None:
            if self._engine.lose_executor(death.text, was_killed=death.came_from_outside):
                self._executors.note_progress()  # else the next request that ends executors would spend the budget
            self._send_outputs(now)
            self._tell_stats(self._engine, now)

    def _drain_executors(self, now: float) -> None:
        try:
            for message in self._executors.receive(now):
                self._take(message, now)
        except ProtocolError as exc:
            self._executors.condemn(exc.message)

    def _take(self, message: FromExecutor, now: float) -> None:
        match message:
            case StepResult():
                assert self._engine is not None
                self._engine.apply(message, now)
                self._executors.note_progress()  # only now is it known to be an answer to the step
                # The device gets its next step first; then every client hears of this one.
                self._dispatch(now)
                self._send_outputs(now)
            case ExecutorReady():
                self._start_serving(message, now)
            case AdapterLoaded():
                self._calls.adapter_loaded(message)
            case UtilityResult():
                logger.warning("an executor answered a call that nobody made: %s", message.call_id)

    def _start_serving(self, executor: ExecutorReady, now: float) -> None:
        self._calls.executors_ready(executor)
        if self._engine is not None:
            self._engine.fail_adapters(executor.failed_adapters)
            self._engine.resume(executor.executor_epoch)
            self._tell_stats(self._engine, now)
            return
        config, model = self._config, self._model
        step_limits = config.scheduler.step_limits(executor.device)
        try:
            limits = request_limits(config, model, step_limits, executor.num_blocks)
        except StartError as exc:
            self._failure = exc
            return
        engine = self._engine = Engine(
            config,
            num_blocks=executor.num_blocks,
            step_limits=step_limits,
            limits=limits,
            executor_epoch=executor.executor_epoch,
            adapters=self._adapters,
        )
        self._trace = trace_if_asked(config, engine, self._executors, self._clients, self._poller)
        info = engine_info(config, model, step_limits, limits, executor, now - self._started)
        info = msgspec.structs.replace(info, adapters=tuple(self._adapters.listed))
        self._welcome.begin(info, now)
        # What was made up to now lives as long as the process: collections in the middle of a step need not walk it.
        gc.collect()
        gc.freeze()

    def _dispatch(self, now: float) -> None:
        if self._engine is None:
            return
        self._send_masks(self._engine)  # first: the step that the executors are at may wait for them
        while self._executors.takes_steps and self._engine.can_schedule():
            step = self._engine.schedule(now)
            if step is None:
                return
            self._executors.send(step, now)
            self._send_masks(self._engine)

    def _send_masks(self, engine: Engine) -> None:
        for masks in engine.take_masks():
            self._executors.send_masks(masks)

    def _send_outputs(self, now: float) -> None:
        if self._engine is None:
            return
        outputs = self._engine.take_outputs()
        for client, message in outputs.items():
            self._clients.send(client, message, now)
        # What each client shows of the engine would stay as it was at its own last step, others' requests included.
        is_busy = self._engine.has_work()
        if self._was_busy and not is_busy:
            self._clients.send_to_all(StepOutputs(stats=self._engine.stats), now, but=outputs)
        self._was_busy = is_busy
        self._cache_watchers.tell_changes(now, is_busy=is_busy)

    def _tell_stats(self, engine: Engine, now: float) -> None:
        self._clients.send_to_all(StepOutputs(stats=engine.stats), now)

    def _watch_clients(self, now: float) -> None:
        if self._engine is not None:
            self._clients.ping(self._engine.live_clients(), now)
        for client in self._clients.take_lost():
            self._forget(client)

    def _forget(self, client: ClientId) -> None:
        self._welcome.forget(client)
        self._cache_watchers.forget(client)
        if self._engine is not None:
            self._engine.abort_client(client)

    def _stop(self, reason: PagewireError) -> None:
        """End every request with its terminal message, say goodbye, end the executors, leave nothing behind."""
        if self._trace is not None:
            self._trace.close()
        error = reason.to_info()
        now = time.monotonic()
        if self._engine is not None:
            cause = error if isinstance(reason, EngineError) else ErrorInfo(kind="EngineDead", message=reason.message)
            self._engine.fail_all(cause)
            self._send_outputs(now)
        self._clients.dismiss_all(error)
        if self._watch.parent_is_dead:
            self._executors.kill()
        else:
            self._executors.stop(grace_s=0.0 if self._trace is None else TRACE_GRACE_S)
            self._placer.dismiss(None if self._failure is None else error)
        self._router.socket.setsockopt(zmq.LINGER, GOODBYE_LINGER_MS)
        self._router.close()
        if self._watch.parent_is_dead:
            self._runtime_dir.remove()
