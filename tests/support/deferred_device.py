"""A device that computes only when it is told to, on a CPU: what a GPU does, with every race made certain.

While work is being launched on it, torch's operations are queued instead of done. A tensor holds poison until the
device comes to the operation that makes it; so whatever the host reads too early, or writes while it is still needed,
shows in the results. An operation that would make the host wait for a GPU is an error.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map_only

from pagewire.gpu_executor.devices.base import Device, DeviceMemory, Download, Marker

# They look at values, or their results' shapes depend on values: the host would have to wait for them.
_WAITING = ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "equal", "_unique2", "tolist")
_POISON = -(2**62)
_DEADLINE_S = 60.0


@dataclass
class _Work:
    run: Callable[[], object]
    launched_s: float
    seconds: float
    name: str


class DeferredDevice(Device):
    """See the module.

    Attributes:
        host_s: the host's clock, which a test sets.
        device_s: when the device was done with what it did last.
        runs_when_waited: whether a wait makes the device work, or blocks until another thread does.
        done: names of what was computed, in order.
        num_waits: how often the host waited for something that was not done.
    """

    is_asynchronous = True

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self.name = "deferred"
        self.host_s = self.device_s = 0.0
        self.runs_when_waited = True
        self.done: list[str] = []
        self.num_waits = 0
        self._queue: deque[_Work] = deque()
        self._num_launched = self._num_done = 0
        self._is_closed = False
        self._changed = threading.Condition()

    @contextmanager
    def launching(self) -> Iterator[None]:
        """Queue what torch is asked for in this block by this thread."""
        with _Deferring(self):
            yield

    def launch(self, run: Callable[[], object], name: str, seconds: float = 0.0) -> None:
        """Queue one piece of work."""
        with self._changed:
            self._queue.append(_Work(run, self.host_s, seconds, name))
            self._num_launched += 1
            self._changed.notify_all()

    def run(self, until: int | None = None) -> None:
        """Do what was launched, all of it or up to a number of launches."""
        end = self._num_launched if until is None else until
        while self._num_done < end:
            with self._changed:
                work = self._queue.popleft()
            self.device_s = max(self.device_s, work.launched_s) + work.seconds
            with _disable_current_modes(), torch.inference_mode():
                work.run()
            with self._changed:
                self.done.append(work.name)
                self._num_done += 1
                self._changed.notify_all()

    def work_until_closed(self) -> None:
        """Do what is launched as it comes, in this thread, until `close`; waits block from then on."""
        self.runs_when_waited = False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_closed)
                if self._is_closed:
                    return
            self.run()

    def close(self) -> None:
        """End `work_until_closed`."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def memory(self) -> DeviceMemory:
        return DeviceMemory(total_bytes=2**40, free_bytes=2**40, source="of a fake")

    def upload(self, array: np.ndarray) -> Tensor:
        with _disable_current_modes():
            staged = torch.from_numpy(array.copy())
            uploaded = _poisoned(staged)
        self.launch(lambda: uploaded.copy_(staged), "upload")
        return uploaded

    def download(self, tensor: Tensor) -> Download:
        array = np.zeros(tuple(tensor.shape))
        copies: list[np.ndarray] = [array]

        def copy() -> None:
            copies[0] = tensor.numpy(force=True).copy()

        self.launch(copy, "download")
        return _Copy(copies, self.mark())

    def mark(self) -> DeferredMarker:
        marker = DeferredMarker(self, self._num_launched + 1)
        self.launch(marker.stamp, "mark")
        return marker

    def has_done(self, number: int) -> bool:
        """Say whether so many launches are done."""
        return self._num_done >= number

    def wait(self, number: int) -> None:
        """Block until so many launches are done."""
        if self.has_done(number):
            return
        self.num_waits += 1
        if self.runs_when_waited:
            self.run(until=number)
        else:
            with self._changed:
                assert self._changed.wait_for(lambda: self.has_done(number), _DEADLINE_S), "the device does not work"


class DeferredMarker(Marker):
    """A place in the queue."""

    def __init__(self, device: DeferredDevice, number: int) -> None:
        self._device = device
        self._number = number
        self._time_s = float("nan")

    def stamp(self) -> None:
        """Note the time: the device has come here."""
        self._time_s = self._device.device_s

    def is_reached(self) -> bool:
        return self._device.has_done(self._number)

    def wait(self) -> None:
        self._device.wait(self._number)

    def seconds_since(self, earlier: Marker) -> float:
        assert isinstance(earlier, DeferredMarker)
        assert self.is_reached(), "an event's time is asked for before it is there"
        assert earlier.is_reached()
        return self._time_s - earlier._time_s


class _Copy(Download):
    def __init__(self, copies: Sequence[np.ndarray], marker: Marker) -> None:
        self._copies = copies
        self._marker = marker

    def array(self) -> np.ndarray:
        self._marker.wait()
        return self._copies[0]


class _Deferring(TorchDispatchMode):
    """Queues operations; those that only give another view of a tensor are done at once, since no data is read."""

    def __init__(self, device: DeferredDevice) -> None:
        super().__init__()
        self._device = device

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch's compiler, which nothing here uses, takes seconds to import

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # Any: torch's own
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        assert name not in _WAITING, f"the host would wait for the device: {func}"
        inputs = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, Tensor)]
        if func._schema.is_mutable:
            self._device.launch(lambda: func(*args, **kwargs), name)
            return args[0]
        if any(returned.alias_info is not None for returned in func._schema.returns):
            result = func(*args, **kwargs)
            flat = [value for value in tree_flatten(result)[0] if isinstance(value, Tensor)]
            owners = {tensor.untyped_storage().data_ptr() for tensor in inputs}
            if all(tensor.untyped_storage().data_ptr() in owners for tensor in flat):
                return result
        # What shapes come out does not hang on the numbers; zeros are good indices, too.
        zero_args, zero_kwargs = tree_map_only(Tensor, torch.zeros_like, (args, kwargs))
        outputs = tree_map_only(Tensor, _poisoned, func(*zero_args, **zero_kwargs))

        def compute() -> None:
            results = tree_flatten(func(*args, **kwargs))[0]
            for output, value in zip(tree_flatten(outputs)[0], results, strict=True):
                output.copy_(value)

        self._device.launch(compute, name)
        return outputs


def _poisoned(like: Tensor) -> Tensor:
    """Return a tensor of that shape whose numbers give themselves away."""
    with _disable_current_modes():
        made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="cpu")
        return made.fill_(float("nan") if like.dtype.is_floating_point else _poison_of(like.dtype))


def _poison_of(dtype: torch.dtype) -> int:
    return 0 if dtype == torch.bool else max(_POISON, torch.iinfo(dtype).min)
