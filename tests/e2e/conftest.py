"""One server of the packaged model and one of a tiny checkpoint, shared by the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.running_server import RunningServer, running_server
from tests.support.tiny_model import tiny_checkpoint


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The packaged model, as `make serve` serves it."""
    with running_server(tmp_path_factory.mktemp("smollm2"), "--max-model-len", "2048") as server:
        yield server


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A tiny random Llama: fast, and of no use but for its mechanics."""
    directory = tmp_path_factory.mktemp("tiny")
    with running_server(directory, str(tiny_checkpoint("llama")), "--served-model-name", "tiny") as server:
        yield server
