"""What a load has taken of a device's memory, and what the largest step will: measured on GPUs, reckoned on a CPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from pagewire.checkpoint.model_config import ModelConfig
from pagewire.ipc.config import StepLimits
from pagewire.ipc.errors import MachineError

from .devices.base import Device
from .devices.graph_recorder import is_out_of_memory
from .host_limits import HostLimits
from .memory import MemoryUse, estimate_workspace
from .profile_run import ProfileRun

# A process that uses a GPU holds some of its memory before it asks for any, and can't see how much: an upper bound.
_MAX_CONTEXT_BYTES = 512 << 20
# Memory is asked for in large pieces, of which some stay unused while others are too small. Unmeasured.
_FRAGMENTATION = 1.1
# What the driver keeps of one captured graph: its hundreds of kernels with their arguments. Unmeasured.
_BYTES_PER_GRAPH = 8 << 20


class MemoryMeter(ABC):
    """Follows one load. To be made before the model is built."""

    free_share: float | None = None
    """Of the memory that is free in the end, how much may be used; see `size_pool`."""

    @abstractmethod
    def note_weights(self) -> None:
        """Take what was allocated since the start as weights."""

    @abstractmethod
    def measure(self, run: ProfileRun, num_graphs: int, draft_run: ProfileRun | None = None) -> MemoryUse:
        """Return what is taken and spoken for, once the weights were noted.

        Args:
            run: the largest steps. What is allocated before is counted, and stays.
            num_graphs: that may be captured later on.
            draft_run: the largest steps of a draft model, which come after those of the served one.

        Raises:
            MachineError: the largest step does not fit beside the weights.
        """


class HostMeter(MemoryMeter):
    """The CPU: weights by what the process has grown, the work space as `estimate_workspace` says.

    Args:
        host: says how large the process is.
        model: the shapes.
        limits: of steps.
        dtype: what weights are stored in; None: as in the checkpoint.
        widens: see `estimate_workspace`.
        num_ranks: likewise.
        draft: the shapes of a draft model, whose steps come after those of the served one.
    """

    def __init__(
        self,
        host: HostLimits,
        model: ModelConfig,
        limits: StepLimits,
        dtype: torch.dtype | None,
        *,
        widens: bool,
        num_ranks: int = 1,
        draft: ModelConfig | None = None,
    ) -> None:
        self._host = host
        self._runtime = host.resident_bytes()
        self._weights = 0
        self._workspace = max(
            estimate_workspace(each, limits, dtype, widens=widens, num_ranks=num_ranks)
            for each in (model, draft)
            if each is not None
        )

    def note_weights(self) -> None:
        """See `MemoryMeter.note_weights`."""
        self._weights = max(0, self._host.resident_bytes() - self._runtime)

    def measure(self, run: ProfileRun, num_graphs: int, draft_run: ProfileRun | None = None) -> MemoryUse:
        """See `MemoryMeter.measure`; nothing is run, which would take seconds."""
        return MemoryUse(weights=self._weights, runtime=self._runtime, workspace=self._workspace)


class Allocator:
    """torch's allocator of GPU memory.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def allocated_bytes(self) -> int:
        """Return what tensors have now."""
        return torch.cuda.memory_allocated(self._device)

    def reserved_bytes(self) -> int:
        """Return what it holds of the device, in use or kept."""
        return torch.cuda.memory_reserved(self._device)

    def peak_bytes_of(self, work: Callable[[], None]) -> int:
        """Run something, to its end; return the most that tensors had meanwhile."""
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        work()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device)

    def release(self) -> None:
        """Give back what is only kept."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()


class GpuMeter(MemoryMeter):
    """A GPU: all by torch's and the driver's own count.

    The driver's count of free memory has everybody's use in it. What of it this process took beside torch's memory, it
    took since the start; before, by setting the device up.

    Args:
        device: the GPU, set up.
        allocator: of its memory.
    """

    free_share = 0.99  # others who use the device have theirs already; the rest is rounding of large pieces

    def __init__(self, device: Device, allocator: Allocator) -> None:
        self._device = device
        self._allocator = allocator
        self._first = device.memory()
        self._first_reserved = allocator.reserved_bytes()
        self._first_allocated = allocator.allocated_bytes()
        self._weights = 0

    def note_weights(self) -> None:
        """See `MemoryMeter.note_weights`."""
        self._allocator.release()
        self._weights = self._allocator.allocated_bytes() - self._first_allocated

    def measure(self, run: ProfileRun, num_graphs: int, draft_run: ProfileRun | None = None) -> MemoryUse:
        """See `MemoryMeter.measure`."""
        runs = [run] if draft_run is None else [run, draft_run]
        held = self._allocator.allocated_bytes()
        try:
            for each in runs:
                each.rehearse()  # code takes memory as well
            peaks = [self._allocator.peak_bytes_of(work) for each in runs for work in (each.prefill, each.decode)]
            of_graph = self._allocator.peak_bytes_of(run.decode_without_draws) - held
        except RuntimeError as exc:  # the class of what a driver refuses; an allocator's is one of it
            if not is_out_of_memory(exc):
                raise
            raise MachineError(
                f"The largest step does not fit on {self._device.name} beside the weights "
                f"({self._weights / 2**30:.2f} GiB of {self._first.total_bytes / 2**30:.2f} GiB): lower "
                "--max-num-batched-tokens or --max-num-seqs, serve a smaller model, or free memory."
            ) from exc
        self._allocator.release()
        # All graphs share the memory that the largest one computes in.
        graphs = int(_FRAGMENTATION * of_graph) + num_graphs * _BYTES_PER_GRAPH if num_graphs else 0
        return MemoryUse(
            weights=self._weights,
            runtime=self._runtime() + held - self._weights - self._first_allocated,
            workspace=int(_FRAGMENTATION * (max(peaks) - held)),
            graphs=graphs,
        )

    def _runtime(self) -> int:
        """Return what this process has of the device beside torch's memory."""
        context = min(self._first.total_bytes - self._first.free_bytes, _MAX_CONTEXT_BYTES)
        taken = self._first.free_bytes - self._device.memory().free_bytes
        by_torch = self._allocator.reserved_bytes() - self._first_reserved
        return context + max(0, taken - by_torch)
