"""The ranks that share layers on the CPUs of one host, joined by memory that all of them have mapped."""

from __future__ import annotations

import ctypes
import mmap
import weakref

from torch import Tensor

from pagewire.ipc.errors import MachineError

from ..kernels.cpu.native_library import load_library
from .rank_group import RankGroup

# What a rank hands over at once; larger tensors go in pieces, so that the memory does not grow with the step: 256 rows
# of 4096 channels, of which a product's weights are no longer read for each row.
AREA_BYTES = 4 << 20


class SharedMemoryGroup(RankGroup):
    """Ranks read what the others wrote into their common memory, and add it up themselves.

    The compiled decoder does that by itself, within its one call (csrc/ranks/shared_ranks.h); what it does not know
    comes here.

    Args:
        memory: `num_bytes` of it, the same in all ranks, zeros before the first of them comes; kept.
        rank: this one.
        size: ranks of the group.
        area_bytes: what a rank hands over at once, a multiple of 64.

    Attributes:
        handle: of the library's object.

    Raises:
        LibraryMissing: there is no compiled library.
        MachineError: there is no memory for the handle.
    """

    def __init__(self, memory: mmap.mmap, rank: int, size: int, area_bytes: int = AREA_BYTES) -> None:
        self.rank = rank
        self.size = size
        self._library = load_library()
        assert len(memory) >= self.num_bytes(size, area_bytes), "the ranks agree on the size of the memory"
        self._memory = ctypes.c_char.from_buffer(memory)  # keeps it mapped
        self.handle: int = self._library.pagewire_ranks_join(ctypes.addressof(self._memory), rank, size, area_bytes)
        if self.handle is None:
            raise MachineError("No memory for a group of ranks: free memory on this machine.")
        weakref.finalize(self, self._library.pagewire_ranks_leave, self.handle)

    @staticmethod
    def num_bytes(size: int, area_bytes: int = AREA_BYTES) -> int:
        """Return the bytes of memory that so many ranks share.

        Raises:
            LibraryMissing: there is no compiled library.
        """
        return int(load_library().pagewire_ranks_bytes(size, area_bytes))

    def sum_in_order(self, x: Tensor) -> Tensor:
        assert x.is_contiguous(), "ranks exchange plain memory"
        total = x.float()
        address = total.data_ptr()
        self._library.pagewire_ranks_sum(self.handle, address, total.numel(), address)
        return total.to(x.dtype)

    def gather(self, x: Tensor) -> list[Tensor]:
        assert x.is_contiguous(), "ranks exchange plain memory"
        parts = x.new_empty(self.size, *x.shape)
        self._library.pagewire_ranks_gather(self.handle, x.data_ptr(), x.nbytes, parts.data_ptr())
        return list(parts.unbind())

    def least(self, number: int) -> int:
        mine = ctypes.c_int64(number)
        everyones: ctypes.Array[ctypes.c_int64] = (ctypes.c_int64 * self.size)()
        self._library.pagewire_ranks_gather(
            self.handle, ctypes.byref(mine), ctypes.sizeof(mine), ctypes.byref(everyones)
        )
        return min(everyones[:])
