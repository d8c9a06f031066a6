"""Makes Triton's interpreter several times faster, for tests of many small launches.

The interpreter puts its own functions in the place of those of `triton.language` at each call of each function of a
kernel, and looks through the whole module to do so: with small tiles that is most of the time. Once does as well.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import pytest
import triton.language as tl
from triton.runtime import interpreter


@contextlib.contextmanager
def language_patched_once() -> Iterator[None]:
    """Let `triton.language` stay as interpreted kernels need it; nothing else may use it meanwhile."""

    def a_function_of_a_kernel() -> None:
        pass

    patch, no_change = interpreter._patch_lang, interpreter._LangPatchScope
    scopes = [patch(types.FunctionType(a_function_of_a_kernel.__code__, {"tl": module})) for module in (tl, tl.core)]
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(interpreter, "_patch_lang", lambda function: no_change())
        yield
    for scope in reversed(scopes):
        scope.restore()


def multiply_rows_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `tl.dot` give a row the same bits wherever in its tile it lies, as matrix units do.

    The interpreter takes numpy's product, whose loops treat the rows at a matrix's edge in another way.
    """

    # Handles of the interpreter, which is untyped.
    def create_dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        left, right = (operand.data.astype(d.data.dtype) for operand in (a, b))
        products = left[:, :, None] * right[None, :, :]
        return interpreter.TensorHandle(products.sum(axis=1) + d.data, d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
