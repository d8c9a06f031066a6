"""Questions to the core besides requests for tokens, each with one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pagewire.ipc.errors import EngineDead, EngineError, ErrorInfo, PagewireError
from pagewire.ipc.outputs import UtilityResult
from pagewire.ipc.requests import CallUtility, ClientMessage


class UtilityCalls:
    """The calls that wait for their answer. One that is made while there is no core goes to the next one.

    Args:
        send: sends to the core that the client is attached to.
    """

    def __init__(self, send: Callable[[ClientMessage], None]) -> None:
        self._send = send
        self._is_attached = True
        self._unsent: dict[int, CallUtility] = {}
        self._answers: dict[int, asyncio.Future[UtilityResult]] = {}

    async def call(self, call: CallUtility, timeout_s: float | None) -> Any:  # Any: each utility documents its result
        """Send a call and return its result.

        Raises:
            PagewireError: what the utility answered; or the core is gone, or gave no answer in time.
        """
        answer: asyncio.Future[UtilityResult] = asyncio.get_running_loop().create_future()
        self._answers[call.call_id] = answer
        self._unsent[call.call_id] = call
        self._send_due()
        try:
            async with asyncio.timeout(timeout_s):
                result = await answer
        except TimeoutError:
            raise EngineError(f"The engine gave no answer to {call.method} within {timeout_s:g} s.") from None
        finally:
            del self._answers[call.call_id]
            self._unsent.pop(call.call_id, None)
        if result.error is not None:
            raise PagewireError.from_info(result.error)
        return result.result

    def take(self, result: UtilityResult) -> None:
        """Hand over an answer."""
        answer = self._answers.get(result.call_id)
        if answer is not None and not answer.done():
            answer.set_result(result)

    def core_lost(self) -> None:
        """Fail the calls under way: whether they took effect, nobody knows."""
        self._is_attached = False
        error = EngineDead("The engine core ended before it had answered the call, and is started again; call again.")
        self._fail([call_id for call_id in self._answers if call_id not in self._unsent], error.to_info())

    def core_attached(self) -> None:
        """Send the calls that were made meanwhile."""
        self._is_attached = True
        self._send_due()

    def fail_all(self, error: ErrorInfo) -> None:
        """Fail everything, as there will be no core any more."""
        self._is_attached = False
        self._fail(list(self._answers), error)

    def _send_due(self) -> None:
        if self._is_attached:
            for call in self._unsent.values():
                self._send(call)
            self._unsent.clear()

    def _fail(self, call_ids: list[int], error: ErrorInfo) -> None:
        for call_id in call_ids:
            self.take(UtilityResult(call_id=call_id, error=error))
