"""Cores that follow each other at one address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.successive_cores import Cores


@pytest.fixture
async def cores(tmp_path: Path) -> AsyncIterator[Cores]:
    cores = Cores(tmp_path)
    yield cores
    await cores.kill()
