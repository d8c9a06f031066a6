"""The whole exception tree of the project.

    PagewireError
    |-- RequestError             the caller's fault: 4xx, only this request fails
    |   |-- InvalidRequest       a value is malformed, out of range or not supported (400)
    |   |   `-- ContextTooLong   the prompt does not fit the model's context (400, context_length_exceeded)
    |   |-- NotFound             the named model or object does not exist (404)
    |   |-- Overloaded           admission is closed or full; try again later (503)
    |   `-- DeadlineExceeded     the time that the request was given is over (504)
    |-- EngineError              our fault: 5xx
    |   |-- EngineDead           the engine core is gone and will not answer
    |   |-- ClientGivenUp        the engine core goes on, but has ended its conversation with this client
    |   |-- ExecutorDied         an executor process ended or failed a step
    |   |   `-- RankLost         an executor can't go on, because it lost another one that it computes with
    |   |-- PoisonRequest        the request ended a process each time that it ran alone
    |   `-- ProtocolError        a peer sent what this version does not understand
    `-- StartError               the engine can't start; one line for the user
        |-- ConfigError          what the command line asks can't be met (exit code 2)
        `-- MachineError         what the machine lacks: port, memory, device (exit code 1)

Errors cross processes as `ErrorInfo` data, never as pickles. Input is checked by `raise`, invariants by `assert`.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True, array_like=True, omit_defaults=True, gc=False):
    """An error as it travels between processes.

    `kind` is the exception's class name, `param` the request field at fault, `retry_after_s` when to try again.
    """

    kind: str
    message: str
    param: str | None = None
    retry_after_s: int | None = None


class PagewireError(Exception):
    """The root: catch it to catch everything this project raises on purpose.

    Args:
        message: what went wrong: the value, the limit and the remedy.
        param: the request field or flag at fault, if one is.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def to_info(self) -> ErrorInfo:
        """Return the error as data for another process."""
        return ErrorInfo(kind=type(self).__name__, message=self.message, param=self.param)

    @staticmethod
    def from_info(info: ErrorInfo) -> PagewireError:
        """Return the exception that `info` describes; an unknown kind becomes an `EngineError`."""
        if info.kind == Overloaded.__name__:
            return Overloaded(info.message, param=info.param, retry_after_s=info.retry_after_s or 1)
        return _CLASSES.get(info.kind, EngineError)(info.message, param=info.param)


class RequestError(PagewireError):
    """The caller's fault. Change the request; no other request notices."""

    status: ClassVar[int] = 400


class InvalidRequest(RequestError):
    """A value is malformed, out of range or not supported."""


class ContextTooLong(InvalidRequest):
    """The prompt does not fit the model's context. Shorten it."""


class NotFound(RequestError):
    """The named model or object does not exist here."""

    status: ClassVar[int] = 404


class Overloaded(RequestError):
    """Admission is full or closed. Try again later.

    Args:
        message: what is full, its limit and the remedy.
        param: see `PagewireError`.
        retry_after_s: whole seconds after which it is worth another try.
    """

    status: ClassVar[int] = 503

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: int = 1) -> None:
        super().__init__(message, param=param)
        self.retry_after_s = retry_after_s

    def to_info(self) -> ErrorInfo:
        """Return the error as data for another process."""
        return ErrorInfo(
            kind=type(self).__name__, message=self.message, param=self.param, retry_after_s=self.retry_after_s
        )


class DeadlineExceeded(RequestError):
    """The time that the request was given is over. Give it more, or ask for fewer tokens."""

    status: ClassVar[int] = 504


class EngineError(PagewireError):
    """Our fault. The request may be sent again."""

    status: ClassVar[int] = 500


class EngineDead(EngineError):
    """The engine core is gone; requests on this client can't be answered any more."""


class ClientGivenUp(EngineError):
    """The engine core could not reach this client, or it did not read, so its requests were aborted. Attach anew."""


class ExecutorDied(EngineError):
    """An executor process ended, or failed a step."""


class RankLost(ExecutorDied):
    """An executor can't reach another one that shares its work. What happened to that one is the cause."""


class PoisonRequest(EngineError):
    """The request ended a process of the engine each time that it ran alone. Others are not touched; change it."""


class ProtocolError(EngineError):
    """A peer sent what this version does not understand. Update the older side."""


class StartError(PagewireError):
    """The engine can't start. The message is one line for the user."""

    exit_code: ClassVar[int] = 1


class ConfigError(StartError):
    """What the command line asks can't be met. Change the flags."""

    exit_code: ClassVar[int] = 2


class MachineError(StartError):
    """The machine lacks what the start needs: a free port, memory, a device."""


_CLASSES: dict[str, type[PagewireError]] = {
    cls.__name__: cls
    for cls in (
        RequestError, InvalidRequest, ContextTooLong, NotFound, Overloaded, DeadlineExceeded, EngineError, EngineDead,
        ClientGivenUp, ExecutorDied, RankLost, PoisonRequest, ProtocolError, StartError, ConfigError, MachineError,
    )
}  # fmt: skip


def describe_seconds(seconds: float) -> str:
    """Return a time limit for a message, as people give them: of a request's 0.3 s some microseconds have passed."""
    return f"{round(seconds, 1):g} s" if seconds >= 1 else f"{seconds:.2g} s"
