"""What the process of the tests needs before any test module is imported.

Triton kernels of this process are interpreted: tests need no GPU. Triton decides when it is imported, and any library
may import it (transformers does), so it is imported here. Child processes are not touched: the switch is taken out of
the environment again, so that an executor decides for itself.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys

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
