"""Why a group of executors can't go on: of all that its ranks say and show, the one cause."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pagewire.ipc.errors import PagewireError, RankLost

from .client import ProcessDeath

_CRASHES = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


@dataclass(frozen=True, slots=True)
class ExecutorDeath:
    """Why a group of executors can't go on.

    Attributes:
        text: what happened, as a clause: "executor 0 was killed by signal 9".
        error: what the executors themselves said of it, if they did.
        came_from_outside: they were killed or stopped: another group may well do better.
        final: with what to give up, None if another group follows.
        is_certain: whether nothing else can turn out to be the cause. A rank that was lost ends the others, and what
            they say of that may be here before its death notice.
    """

    text: str
    error: PagewireError | None = None
    came_from_outside: bool = False
    final: PagewireError | None = None
    is_certain: bool = True


def name_of(rank: int, world_size: int, engine_index: int = 0) -> str:
    """Return what texts call a rank that did something: what its process is called, if there are several.

    Args:
        rank: of its engine.
        world_size: ranks of each engine.
        engine_index: of its engine, among those of one server.
    """
    return f"executor {engine_index * world_size + rank}" if world_size > 1 else "the executor"


def find_cause(
    deaths: Sequence[ProcessDeath], failures: Mapping[int, PagewireError], *, world_size: int, engine_index: int = 0
) -> ExecutorDeath | None:
    """Return why a group can't go on, None while it can.

    The end of one rank makes the others fail, or even crash, in any order and often in the same moment. So a rank that
    was killed from outside is the cause of all else, and the loss of another rank never is.

    Args:
        deaths: of processes.
        failures: what ranks said of their own failures, by rank, the earliest first.
        world_size: number of ranks.
        engine_index: see `name_of`.
    """
    silent = [death for death in deaths if death.rank not in failures]
    for death in silent:
        if death.exit_code < 0 and -death.exit_code not in _CRASHES:
            return ExecutorDeath(death.text, came_from_outside=True)
    for rank, error in failures.items():
        if not isinstance(error, RankLost):
            return _failure(name_of(rank, world_size, engine_index), error)
    for death in silent:
        # Whoever ends by itself may still have its last words on the way.
        is_certain = death.exit_code < 0 and world_size == 1
        return ExecutorDeath(death.text, came_from_outside=death.exit_code < 0, is_certain=is_certain)
    for rank, error in failures.items():
        # The one that was lost would have been found dead by now, or said why it fails, had its host not been lost too.
        return replace(
            _failure(name_of(rank, world_size, engine_index), error), came_from_outside=True, is_certain=False
        )
    return None


def _failure(name: str, error: PagewireError) -> ExecutorDeath:
    return ExecutorDeath(f"{name} failed: {error}", error)
