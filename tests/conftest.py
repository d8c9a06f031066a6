"""What the process of the tests needs before any test module is imported.

Triton kernels of this process are interpreted: tests need no GPU. Triton decides when it is imported, and any library
may import it (transformers does), so it is imported here. Child processes are not touched: the switch is taken out of
the environment again, so that an executor decides for itself.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

SWITCH = "TRITON_INTERPRET"


def import_triton_interpreted() -> None:
    assert "triton" not in sys.modules, "something imported Triton before the tests could switch its interpreter on"
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "1"
    from triton import knobs

    # Kernels are decorated later on, when their modules are imported.
    knobs.propagate_env = False
    knobs.runtime.interpret = True
    knobs.propagate_env = True
    if before is None:
        del os.environ[SWITCH]
    else:
        os.environ[SWITCH] = before


if importlib.util.find_spec("triton") is not None:  # an optional dependency
    import_triton_interpreted()

# A shell starts what runs in the background with SIGINT ignored, children inherit that, and tests of Ctrl-C would wait
# for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def logging_as_before() -> Iterator[None]:
    """Undo what a test sets up for its process's log: no later test would see what it waits for."""
    logger, root = logging.getLogger("pagewire"), logging.getLogger()
    handlers, level, propagate, of_root = list(logger.handlers), logger.level, logger.propagate, list(root.handlers)
    hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    yield
    is_unchanged = logger.handlers == handlers
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = propagate
    if not is_unchanged:
        root.handlers[:] = of_root
        logging.captureWarnings(False)
        sys.excepthook, threading.excepthook, sys.unraisablehook = hooks


@pytest.fixture(autouse=True, scope="module")
def logging_of_a_module_ends_with_it() -> Iterator[None]:
    with logging_as_before():
        yield


@pytest.fixture(autouse=True)
def logging_of_a_test_ends_with_it() -> Iterator[None]:
    with logging_as_before():
        yield
