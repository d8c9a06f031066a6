"""One browser for all tests of the page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.browser import MissingBrowser, chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium; without one the tests are skipped, and say so."""
    with ExitStack() as stack:
        try:
            driver = stack.enter_context(chromium())
        except MissingBrowser as missing:
            pytest.skip(str(missing))
        yield driver
