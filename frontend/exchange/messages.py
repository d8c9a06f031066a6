"""What frontends and their launcher ask each other. Both ends are of one release: they are started together.

A frontend asks the launcher, which asks the other frontends and puts their answers together.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from pagewire.ipc.errors import ErrorInfo

from ..http.figures import Figures

ResponseAction = Literal["get", "delete", "cancel"]


class ProcessSample(msgspec.Struct, frozen=True, array_like=True):
    """One number that a process says of itself, with the labels that it bears beside the process's own."""

    name: str
    labels: dict[str, str]
    value: float


class ProcessFamily(msgspec.Struct, frozen=True, array_like=True):
    """A metric family of a process, as prometheus_client's collectors make it."""

    name: str
    documentation: str
    type: str
    samples: list[ProcessSample]


class FrontendFigures(msgspec.Struct, frozen=True):
    """All that one frontend says for /metrics."""

    figures: Figures
    processes: dict[int, list[ProcessFamily]]


class AskFigures(msgspec.Struct, frozen=True, tag=True):
    """What have the others counted? To the launcher it brings the asker's own, which it remembers beyond its death."""

    own: FrontendFigures | None = None


class AskLoad(msgspec.Struct, frozen=True, tag=True):
    """How many requests are being answered?"""


class AskResponse(msgspec.Struct, frozen=True, tag=True):
    """Is this stored response here? Then do with it what is asked."""

    response_id: str
    action: ResponseAction


class FoundResponse(msgspec.Struct, frozen=True):
    """A stored response.

    Attributes:
        response_json: as it is told to clients.
        items_json: the input that it answered, a JSON list.
    """

    response_json: bytes
    items_json: bytes


class AskEvents(msgspec.Struct, frozen=True, tag=True):
    """Which events of this stored response follow the one of number `after`?"""

    response_id: str
    after: int


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some events of a response's stream.

    Attributes:
        events: as they are sent to clients; none, if there were none for a while.
        last_number: of the last of them; what was asked after, if there are none.
        is_last: whether no others follow.
    """

    events: bytes
    last_number: int
    is_last: bool


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to any of these questions; what was not asked for is left out.

    Attributes:
        figures: to AskFigures.
        load: to AskLoad.
        found: to AskResponse; None if it is not here.
        events: to AskEvents; None if the response is not here.
        error: why what was asked of the response can't be done.
        num_missing: frontends that gave the launcher no answer in time.
        num_ended: frontends that are being replaced.
    """

    figures: FrontendFigures | None = None
    load: int = 0
    found: FoundResponse | None = None
    events: EventPage | None = None
    error: ErrorInfo | None = None
    num_missing: int = 0
    num_ended: int = 0


Question = AskFigures | AskLoad | AskResponse | AskEvents
