"""Signs of life while the main thread is at work that takes longer than a step."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

from pagewire.ipc.channels import PairChannel
from pagewire.ipc.steps import ExecutorBusy, ToExecutor

_INTERVAL_S = 0.5
# How long one silence may last, not the whole work. An import holds the interpreter while the system maps a library of
# hundreds of megabytes: 0.6 s on 2 cores, 1.0 s where others use them as well, much longer from a cold and slow disk.
_FIRST_LIMIT_S = 20.0
_LATER_LIMIT_S = 5.0  # what an earlier executor has read is in memory
# With nobody left who uses them, drivers of GPUs forget all, and set every GPU of the machine up again, within one call
# that holds the interpreter: seconds for each, and machines have 8. torch's libraries for GPUs are gigabytes.
_GPU_LIMIT_S = 60.0
# Where drivers of GPUs are reached.
_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))


def longest_silence_s(*, is_first: bool, device: str = "cpu", drivers: tuple[Path, ...] = _DRIVERS) -> float:
    """Return how long an executor that loads may be silent, in seconds, before it counts as hung.

    Args:
        is_first: no executor of this engine has read the same files before.
        device: as `--device` has it.
        drivers: device files, of which one is there if the machine has GPUs.
    """
    may_use_gpu = device != "cpu" and any(path.exists() for path in drivers)
    if may_use_gpu:
        return _GPU_LIMIT_S
    return _FIRST_LIMIT_S if is_first else _LATER_LIMIT_S


class Pulse:
    """Tells the core again and again that this process runs, as long as the `with` block lasts.

    A process that is stopped, or that hangs with the interpreter held, falls silent, and the core replaces it. A socket
    belongs to one thread at a time: within the block nobody else may use the channel.

    Args:
        channel: to the core.
        epoch: of this executor.
        reason: what the main thread does, for the core's log.
        limit_s: how long a single silence may last.
        interval_s: seconds between two messages.
    """

    def __init__(
        self,
        channel: PairChannel[ToExecutor],
        *,
        epoch: int,
        reason: str,
        limit_s: float,
        interval_s: float = _INTERVAL_S,
    ) -> None:
        self._channel = channel
        self._message = ExecutorBusy(executor_epoch=epoch, reason=reason, limit_s=limit_s)
        self._interval_s = interval_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="pulse", daemon=True)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()

    def _beat(self) -> None:
        self._channel.send(self._message)
        while not self._is_over.wait(self._interval_s):
            self._channel.send(self._message)
