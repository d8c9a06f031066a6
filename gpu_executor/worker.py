"""One rank as a message handler: what comes in, what goes out. The sockets are `__main__`'s."""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence
from contextlib import nullcontext

from pagewire.ipc.channels import PairChannel
from pagewire.ipc.errors import InvalidRequest, NotFound
from pagewire.ipc.outputs import UtilityResult
from pagewire.ipc.requests import CallUtility
from pagewire.ipc.step_trace import StepTrace
from pagewire.ipc.steps import (
    AdapterLoaded,
    ExecuteStep,
    ExecutorReady,
    FromExecutor,
    LoadAdapter,
    LoadModel,
    ToExecutor,
    UnloadAdapter,
)

from .adapters.background import AdapterLoads
from .core_inbox import MaskSource
from .host_limits import HostLimits
from .loading import StartupClock, load_executor
from .long_work import AnnouncedCompilations, LongWork
from .model_runner import ModelRunner
from .step_in_flight import StepInFlight
from .step_profile import trace_channel, trace_runner

# The first capture compiles kernels for shapes that no step has had: on a slow and busy machine, many seconds each.
_CAPTURE_LIMIT_S = 120.0
_COMPILATION_LIMIT_S = 120.0

logger = logging.getLogger(__name__)


class Worker:
    """Holds the model between messages.

    Args:
        host: CPUs and memory.
        channel: where the messages come from: a timeline shows the waiting, and the core is told of long work.
        import_s: seconds that the process spent on imports, the first phase of its start.
    """

    def __init__(self, host: HostLimits, channel: PairChannel[ToExecutor] | None = None, import_s: float = 0.0) -> None:
        self._host = host
        self._channel = channel
        self._import_s = import_s
        self._runner: ModelRunner | None = None
        self._epoch: int | None = None
        self._trace: StepTrace | None = None
        self._long_work: LongWork | None = None
        self._max_steps_in_flight = 1
        self._is_output_rank = True
        self._adapter_loads: AdapterLoads | None = None

    @property
    def background_fd(self) -> int | None:
        """Readable when `take_background_answers` has something to return; None: never."""
        return None if self._adapter_loads is None else self._adapter_loads.fd

    def take_background_answers(self) -> Sequence[FromExecutor]:
        """Return the answers to what was done beside the steps, and is done by now."""
        return () if self._adapter_loads is None else self._adapter_loads.take()

    @property
    def launches_ahead(self) -> bool:
        """Whether steps are launched before those before them are done: then `launch` is to be called, not `handle`."""
        return self._runner is not None and self._runner.launches_ahead

    @property
    def max_steps_in_flight(self) -> int:
        """Steps that the core sends before it has the result of the first."""
        return self._max_steps_in_flight

    @property
    def is_output_rank(self) -> bool:
        """Whether the results of this rank's steps are the engine's; otherwise nobody is told of them."""
        return self._is_output_rank

    def close(self) -> None:
        """Write what there is of a timeline: no message comes any more."""
        if self._trace is not None:
            self._trace.close()

    def handle(
        self, message: LoadModel | LoadAdapter | UnloadAdapter | ExecuteStep | CallUtility
    ) -> FromExecutor | None:
        """Do what a message asks and return the answer.

        None for a step of another epoch, and for an adapter, which is read beside the steps; and but for loads, the
        engine's output rank alone answers.

        Raises:
            StartError: the model can't be loaded.
        """
        match message:
            case LoadModel():
                return self._load(message)
            case ExecuteStep():
                if self._runner is None or message.executor_epoch != self._epoch:
                    return None
                result = self._runner.execute(message)
                return result if self._is_output_rank else None
            case LoadAdapter():
                return self._load_adapter(message)
            case UnloadAdapter():
                if self._runner is not None and self._runner.adapters is not None:
                    self._runner.adapters.unload(message.load_id)
                return None
            case CallUtility():
                return self._call(message) if self._is_output_rank else None

    def take_masks_from(self, source: MaskSource) -> None:
        """Have steps wait there for what their rows may draw; once the model is loaded."""
        if self._runner is not None:
            self._runner.mask_source = source

    def launch(self, step: ExecuteStep) -> StepInFlight | None:
        """Launch a step; None for one of another epoch."""
        if self._runner is None or step.executor_epoch != self._epoch:
            return None
        return self._runner.launch(step)

    def must_pause(self) -> bool:
        """Say whether steps are to be held up for a call of `idle`: what it would do would speed up many of them."""
        graphs = None if self._runner is None else self._runner.graphs
        return graphs is not None and graphs.is_due()

    def idle(self) -> bool:
        """Capture a graph, while the core knows that it takes a while; return whether there was one to capture.

        No step may be in flight.
        """
        if self._runner is None or self._runner.graphs is None:
            return False
        reason = self._runner.graphs.next_capture()
        if reason is None:
            return False
        self._runner.forget_last_step()
        with nullcontext() if self._long_work is None else self._long_work.during(reason, _CAPTURE_LIMIT_S):
            self._runner.graphs.capture()
        return True

    def _load(self, message: LoadModel) -> ExecutorReady:
        self._epoch = message.executor_epoch
        self._max_steps_in_flight = message.config.max_steps_in_flight
        mesh, rank = message.config.parallel.mesh, message.placement.rank
        self._is_output_rank = rank == mesh.output_rank
        loaded = load_executor(message, self._host, StartupClock((("imports", round(self._import_s, 3)),)))
        self._runner = loaded.runner
        if loaded.runner.adapters is not None:
            self._adapter_loads = AdapterLoads(loaded.runner.adapters)
        if self._channel is not None:
            self._long_work = LongWork(self._channel.send, message.executor_epoch)
            loaded.ops.watch_compilations(AnnouncedCompilations(self._long_work, _COMPILATION_LIMIT_S))
        path = message.config.observability.profile_steps
        if path is not None and self._trace is None:
            place = message.placement
            self._trace = StepTrace(path, "executor" if place.num_on_host == 1 else f"executor {place.index_on_host}")
            trace_runner(self._trace, loaded.runner, loaded.ops)
            if self._channel is not None:
                trace_channel(self._trace, self._channel)
        # What was made up to now lives as long as the process: the collector need not walk it again and again.
        gc.collect()
        gc.freeze()
        logger.debug("memory: %s", loaded.ready.memory)
        return loaded.ready

    def _load_adapter(self, message: LoadAdapter) -> AdapterLoaded | None:
        if self._adapter_loads is None:
            error = InvalidRequest("Adapters are served with --enable-lora.").to_info()
            return AdapterLoaded(executor_epoch=message.executor_epoch, load_id=message.adapter.load_id, error=error)
        self._adapter_loads.begin(message)
        return None

    def _call(self, message: CallUtility) -> UtilityResult:
        """Answer a utility call: `batch_rows` gives [row_id, num_tokens, block_ids] of every row held."""
        if message.method != "batch_rows":
            error = NotFound(f"An executor has no utility {message.method!r}; it has batch_rows.", param="method")
            return UtilityResult(call_id=message.call_id, error=error.to_info())
        rows = []
        if self._runner is not None:
            batch = self._runner.batch
            rows = [[row, len(batch.history_of(row).token_ids), batch.block_table_of(row)] for row in batch.row_ids]
        return UtilityResult(call_id=message.call_id, result=rows)
