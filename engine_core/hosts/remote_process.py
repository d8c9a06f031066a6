"""An executor's process on another host, as its group in the core sees it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from pagewire.ipc.hosts import KillRank, StopRank
from pagewire.ipc.process import describe_exit

# A host that does not answer counts as dead after 3 s, and with it all that runs there.
_KILL_LIMIT_S = 5.0
_LOST_CODE = -9


class RemoteProcess:
    """What `engine_core.executor_placer.RankProcess` asks for; the hub's thread tells it of the end.

    Args:
        name: for logs and error texts.
        executor_epoch: of its group.
        rank: which executor it is.
        tell: sends an order to the agent of its host.
    """

    def __init__(self, name: str, executor_epoch: int, rank: int, tell: Callable[[StopRank | KillRank], None]) -> None:
        self.name = name
        self._executor_epoch = executor_epoch
        self._rank = rank
        self._tell = tell
        self._ended = threading.Event()
        self._how = ""
        self._exit_code: int | None = None
        self._notice_fd, self._ending_fd = os.pipe()
        self._closing = threading.Lock()  # the hub's thread must not write to a descriptor that is another's by now

    @property
    def death_fd(self) -> int:
        """A descriptor that becomes readable when the process is known to be dead."""
        return self._notice_fd

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal, as of one that was killed if its host was lost; None while it runs."""
        return self._exit_code

    def describe_end(self) -> str:
        """Return how it ended, for a text: "ended with exit code 1", "was lost with host 1"."""
        return self._how

    def ask_to_stop(self) -> None:
        """Order it to stop; returns at once."""
        self._tell(StopRank(executor_epoch=self._executor_epoch, rank=self._rank))

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end; return the exit code, None if it still runs after `timeout_s`."""
        self._ended.wait(timeout_s)
        return self._exit_code

    def begin_kill(self) -> None:
        """Have it killed without waiting for its end."""
        if self._exit_code is None:
            self._tell(KillRank(executor_epoch=self._executor_epoch, rank=self._rank))

    def kill(self) -> None:
        """Have it killed and wait for its end, or that of its host."""
        self.begin_kill()
        self._ended.wait(_KILL_LIMIT_S)
        self.close()

    def close(self) -> None:
        """Release the descriptors."""
        with self._closing:
            if self._notice_fd >= 0:
                os.close(self._notice_fd)
                os.close(self._ending_fd)
                self._notice_fd = self._ending_fd = -1

    def note_end(self, exit_code: int) -> None:
        """Note that its agent has reaped it."""
        self._note(exit_code, describe_exit(exit_code))

    def note_loss(self, host: str) -> None:
        """Note that its host does not answer any more, by its name."""
        self._note(_LOST_CODE, f"was lost with {host}")

    def _note(self, exit_code: int, how: str) -> None:
        if self._exit_code is not None:
            return
        self._how, self._exit_code = how, exit_code
        with self._closing:
            if self._ending_fd >= 0:
                os.write(self._ending_fd, b"\0")
        self._ended.set()
