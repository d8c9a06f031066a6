"""The same requests get the same ids and logprob bits in every way of running them, by the command that checks it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.children import ROOT
from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow


def test_answers_do_not_depend_on_company_chunks_cache_preemption_or_interface():
    options = ["--prompts", "6", "--tokens", "40", "--max-model-len", "128", "--small-pool", "12"]
    done = subprocess.run(
        [sys.executable, "-m", "tools.check_invariance", "--model", str(tiny_checkpoint()), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all answers are bit-identical" in done.stdout
    ways = re.findall(r"^(.+?) +6/6 identical", done.stdout, re.MULTILINE)
    assert len(ways) == 10, "batch, three budgets, cache off and warm, small pool, in turn, HTTP, EngineClient"
    preemptions = re.search(r"^pool of .*?(\d+) preemptions", done.stdout, re.MULTILINE)
    assert preemptions is not None
    assert int(preemptions.group(1)) > 0, "the pool was not small enough to try it"
    cached = re.search(r"^prefix cache warm.*?(\d+) prompt tokens", done.stdout, re.MULTILINE)
    assert cached is not None
    assert int(cached.group(1)) > 0
