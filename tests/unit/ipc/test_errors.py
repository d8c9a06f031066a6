from __future__ import annotations

import msgspec
import pytest

from pagewire.ipc import errors
from pagewire.ipc.errors import (
    ConfigError,
    ContextTooLong,
    EngineError,
    ErrorInfo,
    InvalidRequest,
    MachineError,
    NotFound,
    Overloaded,
    PagewireError,
    RequestError,
    StartError,
    describe_seconds,
)

CLASSES = [
    cls for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, PagewireError) and cls is not PagewireError
]  # fmt: skip


@pytest.mark.parametrize("cls", CLASSES)
def test_an_error_survives_the_way_through_another_process(cls: type[PagewireError]):
    error = cls("top_p must be at most 1; got 2.", param="top_p")
    info = msgspec.msgpack.decode(msgspec.msgpack.encode(error.to_info()), type=ErrorInfo)
    back = PagewireError.from_info(info)
    assert type(back) is cls
    assert (back.message, back.param, str(back)) == (error.message, "top_p", error.message)


def test_an_error_of_an_unknown_kind_is_the_engines_fault():
    back = PagewireError.from_info(ErrorInfo(kind="FromTheFuture", message="?"))
    assert type(back) is EngineError
    assert back.status == 500


def test_the_tree_tells_whose_fault_it_is():
    assert issubclass(ContextTooLong, InvalidRequest)
    assert issubclass(InvalidRequest, RequestError)
    assert (InvalidRequest.status, NotFound.status, Overloaded.status) == (400, 404, 503)
    assert not issubclass(EngineError, RequestError)
    assert not issubclass(StartError, EngineError)


def test_exit_codes_tell_the_command_line_from_the_machine():
    assert (ConfigError.exit_code, MachineError.exit_code) == (2, 1)


def test_the_docstring_draws_every_class():
    assert errors.__doc__ is not None
    assert [cls.__name__ for cls in CLASSES if f"-- {cls.__name__} " not in errors.__doc__] == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.3, "0.3 s"), (0.299422, "0.3 s"), (0.0497, "0.05 s"), (2.5, "2.5 s"), (12.4988, "12.5 s"), (600.0, "600 s"),
        (29.99997, "30 s"), (1e-9, "1e-09 s"), (1e300, "1e+300 s"),
    ],
)  # fmt: skip
def test_time_limit_is_told_as_it_was_given(seconds, text):
    assert describe_seconds(seconds) == text
