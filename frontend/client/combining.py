"""What several cores say, as if it were one: figures add up, answers to utility calls are put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest
from typing import Any

import msgspec

from pagewire.ipc.outputs import EngineInfo, StepStats

_ALL_BUT_SUMS = frozenset(
    {
        "accepted_at", "step_sizes", "is_paused", "is_serving", "sleep_level", "step_s", "running_adapters",
        "waiting_adapters",
    }
)  # fmt: skip
_SUMMED = tuple(name for name in StepStats.__struct_fields__ if name not in _ALL_BUT_SUMS)


def sum_stats(stats: Sequence[StepStats]) -> StepStats:
    """Return the figures of all cores together.

    The engine serves while one of them does, and rests while all of them do. `step_s` is that of the slowest.
    """
    if len(stats) == 1:
        return stats[0]
    sums = {name: sum(getattr(of_core, name) for of_core in stats) for name in _SUMMED}
    return StepStats(
        **sums,
        accepted_at=sum_places([of_core.accepted_at for of_core in stats]),
        step_sizes=sum_places([of_core.step_sizes for of_core in stats]),
        step_s=max((of_core.step_s for of_core in stats), default=0.0),
        is_serving=any(of_core.is_serving for of_core in stats),
        is_paused=bool(stats) and all(of_core.is_paused for of_core in stats),
        sleep_level=min((of_core.sleep_level for of_core in stats), default=0),
        running_adapters=_all_of(of_core.running_adapters for of_core in stats),
        waiting_adapters=_all_of(of_core.waiting_adapters for of_core in stats),
    )


def sum_places(counts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return counts by place, added place by place; a shorter row has nothing in the places that it lacks."""
    return tuple(map(sum, zip_longest(*counts, fillvalue=0)))


def _all_of(numbers: Iterable[Sequence[int]]) -> tuple[int, ...]:
    return tuple(sorted(set(chain.from_iterable(numbers))))


def combine_infos(infos: Sequence[EngineInfo]) -> EngineInfo:
    """Return what clients of all cores must know: any request has to fit each of them."""
    return msgspec.structs.replace(
        infos[0],
        max_model_len=min(info.max_model_len for info in infos),
        num_blocks=sum(info.num_blocks for info in infos),
    )


def combine_answers(method: str, answers: Sequence[Any]) -> Any:  # Any: each utility documents its result
    """Return the answer to a utility call that every core got.

    Numbers add up, lists are joined, of maps each value is combined so, and yes is what all say. `stats` are those of
    `sum_stats`; adapters, which all have, are listed once.
    """
    if method == "stats":
        return msgspec.structs.asdict(sum_stats([StepStats(**answer) for answer in answers]))
    if method == "list_adapters":
        return answers[0]
    return _combine(answers)


def _combine(answers: Sequence[Any]) -> Any:  # Any: as above
    first = answers[0]
    if len(answers) == 1:
        return first
    match first:
        case bool():
            return all(answers)
        case int() | float():
            return sum(answers)
        case list():
            return [item for answer in answers for item in answer]
        case dict():
            names = dict.fromkeys(name for answer in answers for name in answer)
            return {name: _combine([answer[name] for answer in answers if name in answer]) for name in names}
        case _:
            return first
