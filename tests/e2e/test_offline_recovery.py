"""`LLM` outlives its processes as a server does: its answers are those of an undisturbed run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pagewire.frontend.offline.llm import LLM
from pagewire.ipc.errors import EngineDead
from pagewire.ipc.outputs import StepStats
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.children import children_of, is_alive
from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow

PARAMS = SamplingParams(temperature=1, seed=4, max_tokens=600, ignore_eos=True)
PROMPTS = [[5, 6, index] for index in range(4)]


def answers(llm: LLM) -> list[list[int]]:
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    return [output.outputs[0].token_ids for output in llm.generate(prompts, PARAMS, use_tqdm=False)]


def command_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


class KillsCoreOnce:
    """Kills the core after some steps of a run; called with each step's figures."""

    def __init__(self) -> None:
        # The servers that other tests share are children of this process as well.
        (self.pid,) = (pid for pid in children_of(os.getpid()) if b"pagewire.engine_core" in command_of(pid))
        self.is_armed = True

    def __call__(self, stats: StepStats) -> None:
        if self.is_armed and stats.num_running == len(PROMPTS) and stats.num_steps % 50 == 0:
            self.is_armed = False
            os.kill(self.pid, signal.SIGKILL)


def test_killed_core_changes_no_answer() -> None:
    with LLM(str(tiny_checkpoint("llama", max_position=2048))) as llm:
        expected = answers(llm)
        killer = KillsCoreOnce()
        llm.add_stats_listener(killer)
        assert answers(llm) == expected
        assert not killer.is_armed
        assert not is_alive(killer.pid)
        assert answers(llm) == expected


def test_engine_that_may_not_be_started_again_fails_the_call() -> None:
    with LLM(str(tiny_checkpoint("llama", max_position=2048)), max_restarts=0) as llm:
        llm.add_stats_listener(KillsCoreOnce())
        with pytest.raises(EngineDead, match="--max-restarts 0"):
            answers(llm)
