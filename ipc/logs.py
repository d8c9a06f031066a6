"""One logging setup for every process: level, time, process name, message; to stderr."""

from __future__ import annotations

import logging
import sys


def setup_logging(process: str, level: str) -> None:
    """Send this process's log lines of `level` ("debug" ... "error") and above to stderr, tagged with `process`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter(f"%(levelname)s %(asctime)s [{process}] %(message)s", datefmt="%m-%d %H:%M:%S")
    )
    logger = logging.getLogger("pagewire")
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
