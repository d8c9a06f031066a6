"""A frontend that waits for the others' answers for as long as a busy machine takes to give them."""

from __future__ import annotations

import sys

from pagewire.frontend.exchange import siblings
from pagewire.frontend.supervisor.frontend_process import main

PATIENCE_S = 60.0

if __name__ == "__main__":
    siblings._GATHER_TIMEOUT_S = PATIENCE_S
    sys.exit(main())
