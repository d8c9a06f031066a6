"""Start, watch and stop child processes: every actor but the first is started by module name with a `Bootstrap`.

A child learns of its parent's end in two ways: a pidfd of the parent (Linux), and the end of its standard input,
a pipe whose other end the parent holds. Whatever comes there behind the bootstrap, its end too, is also the parent's
order to stop. The parent learns of a child's end by a pidfd, elsewhere by a pipe that the child holds. All these are
file descriptors, so that one poll waits for messages, deaths and orders alike.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from .cluster_keys import CLUSTER_KEY_VARIABLE, ClusterKeys
from .config import EngineConfig
from .curve import ClientKeys, ServerKeys
from .errors import ProtocolError
from .hosts import HostSeat
from .logs import LogFormat, current_log_format
from .server_config import ServerConfig

_PR_SET_PDEATHSIG = 1
_SECRET_ENDINGS = ("_API_KEY",)
_SECRETS = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", CLUSTER_KEY_VARIABLE})
_LENGTH = struct.Struct("<I")
_TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STOP = b"\0"  # behind the bootstrap; nobody reads it, and a poll tells of it


class Bootstrap(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is told before it can be sent messages.

    Attributes:
        name: the process's tag in the logs.
        address: the socket it serves; fd:N for an open descriptor.
        parent_pid: who started it; the child ends with it.
        runtime_dir: the engine's directory of sockets.
        started_by_main_thread: the kernel's parent-death signal fires when the starting *thread* ends, so it is
            asked for only if that thread lives as long as its process.
        core_epoch: counts the cores that the supervisor has started; an executor's is its core's.
        num_blocks: the pool size that the first core's executors settled; None to measure it.
        config: the engine core's configuration; executors get theirs by `LoadModel`.
        server_keys: of `address`, if it is on tcp:// with keys. They come this way because nobody else can read a
            pipe, as one can arguments and environments.
        client_keys: with which it connects to `address`, if that is a core's door on another host.
        cluster_keys: of an engine on several hosts; the core's.
        host: which host it stands for; an agent's.
        engine_id: the supervisor's own, made anew in each of its lives: an engine that takes another one's place at an
            address counts its cores from 1 too.
        server_config: a frontend's; its API keys come this way for the same reason.
        listener_fds: descriptors of the sockets that it shares with other frontends.
        ready_fd: where a frontend writes a byte once it serves; -1: nobody waits for it.
        frontend_index: which of several frontends it is.
        exchange_fd: descriptor of the socket on which a frontend asks for what the others know.
    """

    name: str
    address: str
    parent_pid: int
    runtime_dir: str
    log_level: str = "info"
    log_format: LogFormat = "text"
    started_by_main_thread: bool = False
    core_epoch: int = 1
    num_blocks: int | None = None
    config: EngineConfig | None = None
    server_keys: ServerKeys | None = None
    client_keys: ClientKeys | None = None
    cluster_keys: ClusterKeys | None = None
    host: HostSeat | None = None
    engine_id: str = ""
    server_config: ServerConfig | None = None
    listener_fds: tuple[int, ...] = ()
    ready_fd: int = -1
    frontend_index: int = 0
    exchange_fd: int = -1


class ChildProcess:
    """A running child and its death notice."""

    def __init__(self, module: str, *, name: str, address: str, runtime_dir: Path, log_level: str,
                 core_epoch: int = 1, num_blocks: int | None = None, config: EngineConfig | None = None,
                 server_keys: ServerKeys | None = None, client_keys: ClientKeys | None = None,
                 cluster_keys: ClusterKeys | None = None, host: HostSeat | None = None, engine_id: str = "",
                 server_config: ServerConfig | None = None, listener_fds: Sequence[int] = (), ready_fd: int = -1,
                 frontend_index: int = 0, exchange_fd: int = -1,
                 pass_fds: Sequence[int] = (), log_format: LogFormat | None = None) -> None:  # fmt: skip
        """Start `python -m module` and hand it its bootstrap; `pass_fds` stay open in it, under the same numbers.

        Without a `log_format` it logs as this process does.
        """
        self.name = name
        bootstrap = Bootstrap(
            name=name,
            address=address,
            parent_pid=os.getpid(),
            runtime_dir=str(runtime_dir),
            log_level=log_level,
            log_format=log_format or current_log_format(),
            started_by_main_thread=threading.current_thread() is threading.main_thread(),
            core_epoch=core_epoch,
            num_blocks=num_blocks,
            config=config,
            server_keys=server_keys,
            client_keys=client_keys,
            cluster_keys=cluster_keys,
            host=host,
            engine_id=engine_id,
            server_config=server_config,
            listener_fds=tuple(listener_fds),
            ready_fd=ready_fd,
            frontend_index=frontend_index,
            exchange_fd=exchange_fd,
        )
        # A pipe that only the child holds is its death notice where there are no pidfds.
        self._notice_fd, child_fd = (-1, -1) if hasattr(os, "pidfd_open") else os.pipe()
        # -P: the user's working directory is no place to import from.
        with _terminal_signals_held():
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module],
                stdin=subprocess.PIPE,
                env=environment_of_children(),
                pass_fds=pass_fds if child_fd < 0 else (*pass_fds, child_fd),
            )
        if child_fd < 0:
            self._notice_fd = os.pidfd_open(self._process.pid)
        else:
            os.close(child_fd)
        self._send(msgspec.msgpack.encode(bootstrap))

    def _send(self, payload: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is dead already: the death notice tells
            self._process.stdin.write(_LENGTH.pack(len(payload)) + payload)
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def death_fd(self) -> int:
        """A descriptor that becomes readable when the child is dead."""
        return self._notice_fd

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def ask_to_finish(self) -> None:
        """Tell a child that may have work in hand to end when that is done; `ask_to_stop` then means at once."""
        stdin = self._process.stdin
        assert stdin is not None
        if not stdin.closed:
            with contextlib.suppress(BrokenPipeError):  # it has ended already
                os.write(stdin.fileno(), _STOP)

    def describe_end(self) -> str:
        """Return how it ended, for a text; it must be dead."""
        code = self.exit_code
        assert code is not None, "it runs"
        return describe_exit(code)

    def ask_to_stop(self) -> None:
        """Order the child to stop: say so on its standard input, and close it."""
        stdin = self._process.stdin
        assert stdin is not None
        if stdin.closed:
            return
        # A fork of this process may hold the pipe as well: then its end does not come with the closing.
        self.ask_to_finish()
        with contextlib.suppress(BrokenPipeError):  # it stopped before it read all
            stdin.close()

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end; return the exit code, None if it still runs after `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, timeout_s: float) -> int:
        """Ask, wait, then kill; reap it and return its exit code."""
        self.ask_to_stop()
        if self.wait(timeout_s) is None:
            self._process.kill()
        code = self._process.wait()
        self.close()
        return code

    def kill(self) -> None:
        """Kill it now and reap it."""
        self.begin_kill()
        self._process.wait()
        self.close()

    def begin_kill(self) -> None:
        """Kill it without waiting for its end, which its death notice tells; one that has ended is left alone."""
        self._process.kill()

    def close(self) -> None:
        """Release both pipes' ends; the process must be dead."""
        self.ask_to_stop()
        if self._notice_fd >= 0:
            os.close(self._notice_fd)
            self._notice_fd = -1


def describe_exit(code: int) -> str:
    """Return what an exit code says, for a text: "was killed by signal 9"; it is negative for a signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    hint = " (out of memory?)" if code == -signal.SIGKILL else ""
    return f"was killed by signal {-code}{hint}"


def environment_of_children() -> dict[str, str]:
    """Return this process's environment without its secrets: no child asks for keys of callers, or fetches a model."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.upper().endswith(_SECRET_ENDINGS) and name.upper() not in _SECRETS
    }


class ParentWatch:
    """A child's view of its parent: descriptors that become readable when the parent ends or orders a stop."""

    def __init__(self, parent_pid: int) -> None:
        self.stdin_fd = sys.stdin.fileno()
        self.pid_fd: int | None = None
        if hasattr(os, "pidfd_open"):
            try:
                self.pid_fd = os.pidfd_open(parent_pid)
            except ProcessLookupError:
                os._exit(1)  # the parent ended before the child could look
        self._parent_pid = parent_pid

    @property
    def fds(self) -> list[int]:
        """The descriptors to poll."""
        return [self.stdin_fd] if self.pid_fd is None else [self.stdin_fd, self.pid_fd]

    @property
    def parent_is_dead(self) -> bool:
        """Whether the parent has ended (another process has adopted this one)."""
        return os.getppid() != self._parent_pid

    def exit_when_it_ends(self) -> None:
        """End this process at once when the parent ends or orders it, whatever the main thread is doing."""

        def watch() -> None:
            poll = select.poll()
            for fd in self.fds:
                poll.register(fd, select.POLLIN | select.POLLHUP)
            poll.poll()
            os._exit(0)

        threading.Thread(target=watch, name="parent-watch", daemon=True).start()


@contextlib.contextmanager
def _terminal_signals_held() -> Iterator[None]:
    """Have a child be born with these signals held: one in its first moments would end it, with a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _TERMINAL_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def read_bootstrap() -> Bootstrap:
    """Read what the parent sent; from here on the process ignores terminal signals, which go to the whole group.

    Raises:
        ProtocolError: standard input holds no bootstrap; the module was started by hand.
    """
    for number in _TERMINAL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TERMINAL_SIGNALS)  # as a child is born; its own children need them
    header = _read_exactly(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise ProtocolError("this module is started by pagewire itself; run `pagewire serve` instead")
    try:
        return msgspec.msgpack.decode(_read_exactly(*_LENGTH.unpack(header)), type=Bootstrap)
    except msgspec.DecodeError as exc:
        raise ProtocolError(f"unreadable bootstrap: {exc}; run `pagewire serve` instead") from exc


def _read_exactly(num_bytes: int) -> bytes:
    """Read from standard input, and not a byte more: what comes next is the order to stop, which a poll has to find."""
    data = b""
    while len(data) < num_bytes and (part := os.read(sys.stdin.fileno(), num_bytes - len(data))):
        data += part
    return data


def wake_when_parent_ends() -> None:
    """Have the kernel let this process go on when its parent ends, if it was stopped (SIGSTOP) until then.

    Without it a stopped process could not notice, and would be left behind with all its children.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


def die_with_parent(bootstrap: Bootstrap) -> ParentWatch:
    """Make sure that this process does not outlive its parent, even while a kernel holds the interpreter."""
    if bootstrap.started_by_main_thread and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    watch = ParentWatch(bootstrap.parent_pid)
    if watch.parent_is_dead:
        os._exit(1)
    watch.exit_when_it_ends()
    return watch
