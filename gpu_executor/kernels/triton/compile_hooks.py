"""Being told of each kernel that Triton compiles, by the hooks that it has for that."""

from __future__ import annotations

from typing import Any

from ..compilation_watch import CompilationWatch


def watch_compilations(watch: CompilationWatch) -> None:
    """Have every compilation of this process from now on told; replaces who was told before.

    Kernels that are interpreted are never compiled. Triton 3.3 has no such hooks, and nothing is told.

    Args:
        watch: is told.
    """
    try:
        from triton import knobs
    except ImportError:
        return

    # Triton names all arguments, of which its versions add some. What is not None would forbid the compilation.
    def begin(*, fn: Any, **_: Any) -> None:
        watch.begin(fn.name)

    def end(*, fn: Any, **_: Any) -> None:
        watch.end(fn.name)

    knobs.runtime.jit_cache_hook = begin
    knobs.runtime.jit_post_compile_hook = end
