"""A core's socket for clients, on a context that closes what a test leaves open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from pagewire.ipc.channels import ClientRouter


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield context
    context.destroy(linger=0)  # closes what is still open


@pytest.fixture
def router(context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path) -> Iterator[ClientRouter]:
    router = ClientRouter(context, f"ipc://{tmp_path}/core")
    yield router
    router.close()
