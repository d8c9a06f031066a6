"""Tiny tensors gain nothing from threads, and on a busy machine threads that wait for each other cost a lot."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)
