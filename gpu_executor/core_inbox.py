"""What the core sends an executor, with the masks sorted out: they are wanted in the middle of a step, not in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Protocol

from pagewire.ipc.channels import PairChannel
from pagewire.ipc.requests import CallUtility
from pagewire.ipc.steps import (
    ExecuteStep,
    FromExecutor,
    LoadAdapter,
    LoadModel,
    SamplingMasks,
    Shutdown,
    ToExecutor,
    UnloadAdapter,
)

Order = LoadModel | LoadAdapter | UnloadAdapter | ExecuteStep | CallUtility | Shutdown

StepMasks = Mapping[int, bytes]
"""Row id -> masks, as `RowMasks` has them."""


class Stopped(Exception):
    """The core said `Shutdown` while a step waited for its masks."""


class MaskSource(Protocol):
    """Where a step's masks come from."""

    def wait_for_masks(self, step_id: int) -> StepMasks:
        """Wait for the masks of a step and return them; once a step.

        Raises:
            Stopped: there will be none.
        """
        ...


class CoreInbox:
    """Orders in the order of their coming, and masks by step, whatever came first.

    The core sends a step's masks when the tokens before it are committed: that may be before the executor has come to
    the step, or after the core has sent the next one.

    Args:
        channel: to the core.
        epoch: of this executor; masks of another one are dropped.
    """

    def __init__(self, channel: PairChannel[ToExecutor], epoch: int) -> None:
        self._channel = channel
        self._epoch = epoch
        self._orders: deque[Order] = deque()
        self._masks: dict[int, StepMasks] = {}
        self.socket = channel.socket

    def send(self, message: FromExecutor) -> None:
        """Answer the core."""
        self._channel.send(message)

    def wait(self, timeout_ms: int | None = None, *, fd: int | None = None) -> bool:
        """Wait for a message, or until `fd` is readable; arguments and result as those of `PairChannel.wait`."""
        return bool(self._orders) or self._channel.wait(timeout_ms, fd=fd)

    def try_recv(self) -> Order | None:
        """Return the next order, None if there is none yet."""
        while not self._orders:
            message = self._channel.try_recv()
            if message is None:
                return None
            self._sort(message)
        return self._take_order()

    def try_masks(self, step_id: int) -> StepMasks | None:
        """Return the masks of a step, None if they are not there yet."""
        while step_id not in self._masks:
            message = self._channel.try_recv()
            if message is None:
                return None
            self._sort(message)
        return self._masks.pop(step_id)

    def wait_for_masks(self, step_id: int) -> StepMasks:
        """See `MaskSource`."""
        while step_id not in self._masks:
            if self._orders and isinstance(self._orders[-1], Shutdown):
                raise Stopped
            self._sort(self._channel.recv())
        return self._masks.pop(step_id)

    def _take_order(self) -> Order:
        order = self._orders.popleft()
        if isinstance(order, ExecuteStep) and self._masks:
            # A rank that draws nothing never asks for the masks of the steps before.
            self._masks = {step_id: masks for step_id, masks in self._masks.items() if step_id >= order.step_id}
        return order

    def _sort(self, message: ToExecutor) -> None:
        if isinstance(message, SamplingMasks):
            if message.executor_epoch == self._epoch:
                self._masks[message.step_id] = {row.row_id: row.masks for row in message.rows}
            return
        if isinstance(message, Shutdown) and self._orders:
            self._orders.clear()  # what was ordered before it need not be done
        self._orders.append(message)
