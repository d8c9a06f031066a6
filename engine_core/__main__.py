"""The engine core's process: `python -m pagewire.engine_core`, started by the supervisor."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from pagewire.ipc.endpoints import RuntimeDir
from pagewire.ipc.errors import PagewireError, ProtocolError, StartError
from pagewire.ipc.logs import setup_logging
from pagewire.ipc.process import ParentWatch, read_bootstrap, wake_when_parent_ends

from .loop import EngineCore

logger = logging.getLogger("pagewire.engine_core")  # __name__ is __main__ here


def main() -> int:
    """Read the bootstrap, serve, return the exit code."""
    try:
        bootstrap = read_bootstrap()
    except ProtocolError as exc:
        sys.stderr.write(f"{exc}\n")
        return 2
    setup_logging(bootstrap.name, bootstrap.log_level, bootstrap.log_format)
    wake_when_parent_ends()
    assert bootstrap.config is not None
    try:
        core = EngineCore(
            bootstrap.config,
            address=bootstrap.address,
            runtime_dir=RuntimeDir(Path(bootstrap.runtime_dir)),
            watch=ParentWatch(bootstrap.parent_pid),
            core_epoch=bootstrap.core_epoch,
            num_blocks=bootstrap.num_blocks,
            keys=bootstrap.server_keys,
            cluster_keys=bootstrap.cluster_keys,
            engine_id=bootstrap.engine_id,
        )
    except PagewireError as exc:
        logger.error("%s", exc)
        return exc.exit_code if isinstance(exc, StartError) else 1
    return core.run()


if __name__ == "__main__":
    sys.exit(main())
