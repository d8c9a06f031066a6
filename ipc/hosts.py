"""What the engine core and the agents of other hosts say to each other.

An agent starts, kills and watches the executors of its host; what these compute, they tell the core themselves. Each
end takes the other for dead when it has been silent for `SILENCE_LIMIT_S`: the core starts the executors elsewhere or
again, the agent kills its own and looks for the next core.
"""

from __future__ import annotations

import msgspec

from .codec import Codec
from .errors import ErrorInfo
from .requests import Message

BEAT_INTERVAL_S = 0.5
SILENCE_LIMIT_S = 3.0
AGENT_CRASH_EXIT_CODE = 70
"""Of an agent that a bug ended: another one is started, as after a kill. Any other is its last word."""
ARRIVAL_LIMIT_S = 600.0
"""How long the core waits for hosts, and hosts for their core: a host may be set up, or its container be fetched."""


class HostSeat(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is told of its place by whoever starts it; attributes as in `HostHello`."""

    index: int
    num_hosts: int
    index_on_host: int = 0
    num_on_host: int = 0


class HostHello(Message, frozen=True, kw_only=True):
    """An agent's first message on a connection. Answered by `HostWelcome` or `HostRefused`.

    Attributes:
        version: of pagewire; all hosts run the same.
        index: which host it is (--node-rank; of those that Ray places, the number of the bundle).
        num_hosts: how many there are, by its command line.
        name: the host's own, for logs.
        address: as the other hosts reach it.
        model_path: where the model's files are there.
        model_fingerprint: of what the model is; all hosts read the same.
        num_cpus: that the executors there may use.
        num_gpus: that the system there shows.
        free_port: a port of that host that nobody uses.
        index_on_host: of the first executor that it starts, among those of the same host.
        num_on_host: executors of the same host; 0: as many as it starts itself.
    """

    version: str
    index: int
    num_hosts: int
    name: str
    address: str
    model_path: str
    model_fingerprint: str
    num_cpus: int
    num_gpus: int
    free_port: int
    index_on_host: int = 0
    num_on_host: int = 0


class HostBeat(Message, frozen=True, kw_only=True):
    """A sign of life, from an agent every `BEAT_INTERVAL_S`; the core gives it back."""


class RankEnded(Message, frozen=True, kw_only=True):
    """An executor's process is dead and reaped.

    Attributes:
        executor_epoch: of its group.
        rank: which one.
        exit_code: negative for a signal.
        free_port: a port of the host that nobody uses, where the next ranks may meet.
    """

    executor_epoch: int
    rank: int
    exit_code: int
    free_port: int


class PlacementPending(Message, frozen=True, kw_only=True):
    """Whoever places the hosts can't place all of them yet.

    Attributes:
        reason: what it waits for.
    """

    reason: str


class PlacementFailed(Message, frozen=True, kw_only=True):
    """Whoever places the hosts can't do so, now or later."""

    error: ErrorInfo


class HostWelcome(Message, frozen=True, kw_only=True):
    """The agent is one of the engine's hosts from now on."""


class HostRefused(Message, frozen=True, kw_only=True):
    """The agent can't be one of the engine's hosts; it ends."""

    error: ErrorInfo


class WhoAreYou(Message, frozen=True, kw_only=True):
    """The core does not know the agent on this connection: it was lost, or the core is another one."""


class StartRank(Message, frozen=True, kw_only=True):
    """Start an executor, which says the rest to the core itself. Its end is told by `RankEnded`.

    Attributes:
        executor_epoch: of its group.
        rank: which one.
        core_epoch: of the core.
        port: of the core's host, where it listens for this executor alone.
    """

    executor_epoch: int
    rank: int
    core_epoch: int
    port: int


class StopRank(Message, frozen=True, kw_only=True):
    """Order an executor to end by itself."""

    executor_epoch: int
    rank: int


class KillRank(Message, frozen=True, kw_only=True):
    """Kill an executor; one that has ended is left alone."""

    executor_epoch: int
    rank: int


class HostDismissed(Message, frozen=True, kw_only=True):
    """The engine has ended, and the agent ends as well.

    Attributes:
        error: why, None after an order to stop.
    """

    error: ErrorInfo | None = None


FromHost = HostHello | HostBeat | RankEnded | PlacementPending | PlacementFailed
ToHost = HostWelcome | HostRefused | WhoAreYou | HostBeat | StartRank | StopRank | KillRank | HostDismissed

from_host: Codec[FromHost] = Codec(FromHost)
to_host: Codec[ToHost] = Codec(ToHost)
