"""A pytest plugin: one module of the package is taken from another file, the one with the planted error.

`pytest -p tools.plant_errors.swapped_module`, with the module's name and the file's path in the environment. The file
is read where it lies, as Triton's interpreter wants to see a kernel's source.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from .errors import FILE_VARIABLE, MODULE_VARIABLE


class _Swap:
    """Finds one module, before all other finders."""

    def __init__(self, module: str, path: str) -> None:
        self._module = module
        self._path = path

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return where the module is, if it is the one."""
        return importlib.util.spec_from_file_location(name, self._path) if name == self._module else None


def _install() -> None:
    module = os.environ[MODULE_VARIABLE]
    if module in sys.modules:
        raise RuntimeError(f"{module} was imported before an error could be planted into it")
    sys.meta_path.insert(0, _Swap(module, os.environ[FILE_VARIABLE]))


_install()
