"""What clients may ask about rest, see `Rest`; who asks for it is answered once it has begun.

pause            mode (abort, wait or keep), clear_cache -> True once nothing runs
resume           True
is_paused        whether nothing is scheduled, be it paused or asleep
sleep            level (1 or 2), mode -> True once the executors have ended and given all their memory back
wake_up          True once there are executors again
is_sleeping      whether it was put to sleep
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import msgspec

from pagewire.ipc.channels import ClientId
from pagewire.ipc.errors import EngineError, InvalidRequest, PagewireError
from pagewire.ipc.outputs import UtilityResult
from pagewire.ipc.requests import CallUtility

from ..engine import Engine
from ..executors.supervisor import ExecutorSupervisor
from .rest import Rest, RestMode

T = TypeVar("T")

METHODS = frozenset({"pause", "resume", "is_paused", "sleep", "wake_up", "is_sleeping"})


class _Pause(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    mode: RestMode = "abort"
    clear_cache: bool = True


class _Sleep(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    level: Literal[1, 2] = 1
    mode: RestMode = "abort"


@dataclass(frozen=True, slots=True)
class _Waiter:
    client: ClientId
    call_id: int
    method: str


class RestCalls:
    """Answers the calls of the module's list, and ends and starts executors as they ask.

    Args:
        executors: that end while the engine sleeps.
        answer: sends a result to a client.
        executors_ended: called when they were told to.
    """

    def __init__(
        self,
        executors: ExecutorSupervisor,
        answer: Callable[[ClientId, UtilityResult], None],
        executors_ended: Callable[[], None],
    ) -> None:
        self._executors = executors
        self._answer = answer
        self._executors_ended = executors_ended
        self._waiters: list[_Waiter] = []
        self._clears: Literal["", "cached", "all"] = ""  # what a pause forgets once nothing runs

    def call(self, engine: Engine, client: ClientId, call: CallUtility, now: float) -> None:
        """Answer a call, now or when it has taken effect.

        Args:
            engine: that is to rest.
            client: who asks.
            call: of a method in `METHODS`.
            now: seconds on the loop's monotonic clock.
        """
        try:
            result = self._start(engine, _Waiter(client, call.call_id, call.method), call, now)
        except PagewireError as exc:
            self._answer(client, UtilityResult(call_id=call.call_id, error=exc.to_info()))
            return
        if result is not None:
            self._answer(client, UtilityResult(call_id=call.call_id, result=result))
        self.look_after(engine, now)

    def look_after(self, engine: Engine, now: float) -> bool:
        """Do what is due by now; return whether the engine's state has changed, which all clients are to hear."""
        rest = engine.rest
        has_changed = False
        if self._clears and engine.is_quiet:
            rest.forget_computed(runs_again=self._clears == "all")
            self._clears = ""
        if rest.is_asleep and engine.is_quiet and not self._executors.is_resting:
            engine.suspend()
            self._executors.rest(now)
            self._executors_ended()
            has_changed = True
        if self._waiters:
            self._answer_waiters(engine)
        return has_changed

    def _start(self, engine: Engine, waiter: _Waiter, call: CallUtility, now: float) -> bool | None:
        """Begin what a call asks; None: it is answered later."""
        rest = engine.rest
        match call.method:
            case "pause":
                pause = _arguments(call, _Pause)
                _refuse_to_run(rest, pause.mode)
                rest.pause(pause.mode)
                self._clears = ("all" if pause.mode == "keep" else "cached") if pause.clear_cache else ""
            case "sleep":
                sleep = _arguments(call, _Sleep)
                _refuse_to_run(rest, sleep.mode)
                rest.sleep(sleep.level, sleep.mode)
            case "wake_up":
                _no_arguments(call)
                if not rest.is_asleep:
                    return True
                rest.wake_up()
                self._executors.wake(now)
            case "resume":
                _no_arguments(call)
                if rest.is_asleep:
                    raise InvalidRequest("The engine is asleep; wake it up (wake_up).", param="method")
                rest.resume()
                self._clears = ""  # of a pause that is over before it could
                return True
            case "is_paused":
                _no_arguments(call)
                return rest.is_on
            case _:
                _no_arguments(call)
                return rest.is_asleep
        self._waiters.append(waiter)
        return None

    def _answer_waiters(self, engine: Engine) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            result = self._result(engine, waiter)
            if result is None:
                self._waiters.append(waiter)
            else:
                self._answer(waiter.client, result)

    def _result(self, engine: Engine, waiter: _Waiter) -> UtilityResult | None:
        rest = engine.rest
        match waiter.method:
            case "pause":
                is_over, is_done = not rest.is_on, engine.is_quiet
            case "sleep":
                is_over, is_done = not rest.is_asleep, self._executors.is_at_rest
            case _:
                is_over, is_done = rest.is_asleep, self._executors.takes_steps and engine.is_serving
        if is_over:
            error = EngineError(f"The call {waiter.method} was overtaken by another one that undoes it.")
            return UtilityResult(call_id=waiter.call_id, error=error.to_info())
        return UtilityResult(call_id=waiter.call_id, result=True) if is_done else None


def _refuse_to_run(rest: Rest, mode: RestMode) -> None:
    if mode == "wait" and rest.is_asleep:
        raise InvalidRequest("mode wait has requests run to their ends, and the engine is asleep; wake it up first.")


def _no_arguments(call: CallUtility) -> None:
    if call.args:
        raise InvalidRequest(f"{call.method} takes no arguments; got {call.args}.", param="args")


def _arguments(call: CallUtility, kind: type[T]) -> T:
    try:
        return msgspec.convert(call.args, kind)
    except msgspec.ValidationError as exc:
        takes = "mode (abort, wait or keep) and clear_cache (a boolean)"
        if kind is _Sleep:
            takes = "level (1 or 2) and mode (abort, wait or keep)"
        raise InvalidRequest(f"{call.method} takes {takes}; got {call.args}.", param="args") from exc
