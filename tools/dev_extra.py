"""One clear line where a tool needs a package that only the extra "dev" brings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def dev_extra() -> Iterator[None]:
    """Surround a module's imports of such packages.

    Raises:
        SystemExit: one is not installed; its text says how to install them.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"this tool needs {error.name}, which is not installed: `pip install -e '.[dev]'` installs what the tools "
            "and tests need (`make test` does it, in .venv)"
        ) from None
