"""Who wants to know of kernels that are compiled when they are first launched."""

from __future__ import annotations

from typing import Protocol


class CompilationWatch(Protocol):
    """Is called by the thread that launches, before and after each compilation."""

    def begin(self, kernel: str) -> None:
        """Note that a kernel is about to be compiled, or taken from a cache on disk, for a second or many.

        Args:
            kernel: its name.
        """
        ...

    def end(self, kernel: str) -> None:
        """Note that it is done; not called for one that fails."""
        ...
