"""`pagewire serve` from the command line to the last socket: exit codes, one clear line, nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pagewire.frontend.client.sync_client import EngineClient
from pagewire.ipc.errors import EngineDead, Overloaded
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.children import descendants_of, is_alive, wait_until
from tests.support.running_server import RunningServer, running_server
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf
from tools.processes import processes_below

pytestmark = pytest.mark.slow

LONG_CHECKPOINT = str(tiny_checkpoint("llama", max_position=2048))
SERVE = ["serve", str(tiny_checkpoint()), "--host", "127.0.0.1", "--port", "0"]
SERVE_LONG = ["serve", LONG_CHECKPOINT, "--host", "127.0.0.1", "--port", "0"]
SHORT_REQUEST: dict[str, Any] = {"prompt": [1], "max_tokens": 1}
LONG_REQUEST: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 1500, "temperature": 0, "ignore_eos": True}


def run(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pagewire", *arguments], capture_output=True, text=True, timeout=timeout, check=False
    )


def is_refused(answer: Any) -> bool:
    return isinstance(answer, tuple) and answer[0] == 503


def ask_until_refused(client: EngineClient) -> None:
    """Ask on and on: what was sent just before the refusal is still taken."""
    while True:
        list(client.generate([1], SamplingParams(max_tokens=1)))


def error_lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("pagewire: error:")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_in_order_with_exit_code_0(tmp_path: Path, number: signal.Signals) -> None:
    server = RunningServer(["serve", str(tiny_checkpoint()), "--host", "127.0.0.1", "--port", "0"], tmp_path)
    assert len(server.descendants()) == 3, "an engine core, an executor, and what renders chats"
    assert server.stop(number) == 0
    assert not list(server.runtime_parent.iterdir())


class Starting:
    """`pagewire ARGUMENTS` from its start on; sockets lie below `directory`."""

    def __init__(self, arguments: list[str], directory: Path) -> None:
        self.runtime_parent = Path(tempfile.mkdtemp(prefix="pw-"))
        self._log_path = directory / "log"
        with self._log_path.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pagewire", *arguments], stderr=log, stdout=subprocess.DEVNULL,
                env={**os.environ, "TMPDIR": str(self.runtime_parent)},
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    def below(self, module: str) -> list[int]:
        return [process.pid for process in processes_below(self.process.pid) if process.module == module]

    def wait_for(self, module: str) -> int:
        wait_until(lambda: bool(self.below(module)) or self.process.poll() is not None, 60, f"the start of {module}")
        return self.below(module)[0]

    def check_stop(self, number: signal.Signals) -> None:
        """Signal it: it ends within 5 s, says so by its exit code, and leaves nothing behind."""
        below = descendants_of(self.process.pid)
        try:
            self.process.send_signal(number)
            assert self.process.wait(timeout=5) in (128 + number, -number), self.log
        finally:
            self.process.kill()
            self.process.wait()
        for pid in below:
            wait_until(lambda pid=pid: not is_alive(pid), 5, f"the end of process {pid}")
        assert not list(self.runtime_parent.iterdir())
        assert "Traceback" not in self.log
        assert "ready: " not in self.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("command", "module"),
    [("serve", "pagewire.engine_core"), ("serve", "pagewire.gpu_executor"), ("engine", "pagewire.gpu_executor")],
)
def test_signal_while_the_engine_starts_ends_the_start(
    tmp_path: Path, number: signal.Signals, command: str, module: str
) -> None:
    listen = [f"ipc://{tmp_path}/engine.sock"] if command == "engine" else []
    arguments = ["engine", str(tiny_checkpoint()), "--listen", *listen] if listen else SERVE
    starting = Starting(arguments, tmp_path)
    starting.wait_for(module)  # from there to its readiness it takes seconds
    starting.check_stop(number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_while_the_text_side_loads_ends_the_start(tmp_path: Path, number: signal.Signals) -> None:
    template = tmp_path / "template"
    os.mkfifo(template)  # whoever reads it waits for ever
    starting = Starting([*SERVE, "--chat-template", str(template)], tmp_path)
    with template.open("wb", buffering=0):  # it reads now
        starting.check_stop(number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_while_the_template_process_starts_ends_the_start(tmp_path: Path, number: signal.Signals) -> None:
    starting = Starting(SERVE, tmp_path)
    os.kill(starting.wait_for("pagewire.frontend.templates"), signal.SIGSTOP)
    starting.check_stop(number)


def test_signal_while_an_engine_is_waited_for_ends_the_start(tmp_path: Path) -> None:
    starting = Starting(["serve", "--engine", f"ipc://{tmp_path}/none.sock", "--port", "0"], tmp_path)
    wait_until(lambda: "waiting for the engine" in starting.log, 30, "the attempt to attach")
    starting.check_stop(signal.SIGTERM)


def test_terminal_interrupt_of_the_whole_group_stops_in_order(tmp_path: Path) -> None:
    server = RunningServer(["serve", str(tiny_checkpoint()), "--host", "127.0.0.1", "--port", "0"], tmp_path)
    for pid in server.descendants():
        os.kill(pid, signal.SIGINT)
    assert server.stop(signal.SIGINT) == 0


def test_killed_frontend_leaves_no_process_and_no_socket(tmp_path: Path) -> None:
    server = RunningServer(["serve", str(tiny_checkpoint()), "--host", "127.0.0.1", "--port", "0"], tmp_path)
    below = server.descendants()
    assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    assert not any(is_alive(pid) for pid in below)


def test_engine_that_may_not_be_started_again_ends_the_server(tmp_path: Path) -> None:
    server = RunningServer([*SERVE, "--max-restarts", "0"], tmp_path)
    os.kill(server.descendants()[0], signal.SIGKILL)
    wait_until(lambda: server.exit_code is not None, 20, "the end of the server")
    assert server.exit_code == 1
    assert "killed by signal 9" in server.log
    assert "--max-restarts 0" in server.log
    server.stop()


def test_clients_of_an_engine_that_gives_up_hear_why(tmp_path: Path) -> None:
    path = Path("/tmp") / f"pw-gone-{os.getpid()}.sock"
    engine = RunningServer(["engine", LONG_CHECKPOINT, "--listen", f"ipc://{path}", "--max-restarts", "0"], tmp_path)
    with EngineClient(f"ipc://{path}") as client:
        stream = client.generate(LONG_REQUEST["prompt"], SamplingParams(max_tokens=1500, ignore_eos=True))
        next(stream)
        os.kill(engine.descendants()[0], signal.SIGKILL)
        with pytest.raises(EngineDead, match="--max-restarts 0"):
            list(stream)
    wait_until(lambda: engine.exit_code is not None, 20, "the end of the engine")
    assert engine.exit_code == 1
    engine.stop()


def test_first_signal_lets_accepted_requests_finish(tmp_path: Path) -> None:
    server = RunningServer(SERVE_LONG, tmp_path)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.post, "/v1/completions", LONG_REQUEST)
        wait_until(lambda: server.gauge("vllm:num_requests_running") == 1, 20, "the request's first step")
        os.kill(server.pid, signal.SIGTERM)
        wait_until(lambda: is_refused(server.post("/v1/completions", SHORT_REQUEST)), 5, "the refusal of new requests")
        assert answer.result()["usage"]["completion_tokens"] == LONG_REQUEST["max_tokens"]
    wait_until(lambda: server.exit_code is not None, 10, "the end of the server")
    assert server.exit_code == 0
    server.stop()


@pytest.mark.parametrize("how", ["second signal", "timeout"])
def test_drain_ends_with_a_second_signal_or_its_time(tmp_path: Path, how: str) -> None:
    limit_s = "0.1" if how == "timeout" else "600"
    server = RunningServer([*SERVE_LONG, "--shutdown-timeout", limit_s], tmp_path)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.post, "/v1/completions", LONG_REQUEST)
        wait_until(lambda: server.gauge("vllm:num_requests_running") == 1, 20, "the request's first step")
        os.kill(server.pid, signal.SIGTERM)
        if how == "second signal":
            wait_until(lambda: "a second signal" in server.log, 5, "the first signal's effect")
            os.kill(server.pid, signal.SIGTERM)
        status, error = answer.result()
        assert status == 503, error
    wait_until(lambda: server.exit_code is not None, 10, "the end of the server")
    assert server.exit_code == 0
    server.stop()


def test_second_signal_ends_a_core_that_does_not(tmp_path: Path) -> None:
    server = RunningServer(SERVE, tmp_path)
    core, executor = server.descendants()[:2]
    os.kill(core, signal.SIGSTOP)
    os.kill(server.pid, signal.SIGTERM)
    wait_until(lambda: "a second signal" in server.log, 5, "the first signal's effect")
    os.kill(server.pid, signal.SIGTERM)
    wait_until(lambda: server.exit_code is not None, 5, "the end of the server")
    assert server.exit_code == 0
    wait_until(lambda: not is_alive(core) and not is_alive(executor), 2, "the end of its processes")
    server.stop()


def test_engine_without_http_drains_for_its_clients(tmp_path: Path) -> None:
    path = Path("/tmp") / f"pw-drain-{os.getpid()}.sock"
    engine = RunningServer(["engine", LONG_CHECKPOINT, "--listen", f"ipc://{path}"], tmp_path)
    with EngineClient(f"ipc://{path}") as client:
        params = SamplingParams(temperature=0, max_tokens=LONG_REQUEST["max_tokens"], ignore_eos=True)
        stream = client.generate(LONG_REQUEST["prompt"], params)
        num_tokens = len(next(stream).token_ids)
        os.kill(engine.pid, signal.SIGTERM)
        wait_until(lambda: "a second signal" in engine.log, 5, "the first signal's effect")
        with pytest.raises((Overloaded, EngineDead)):
            ask_until_refused(client)
        num_tokens += sum(len(delta.token_ids) for delta in stream)
        assert num_tokens == LONG_REQUEST["max_tokens"]
    wait_until(lambda: engine.exit_code is not None, 10, "the end of the engine")
    assert engine.exit_code == 0
    engine.stop()


def test_taken_port_is_one_line_and_exit_code_1() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = run("serve", str(tiny_checkpoint()), "--host", "127.0.0.1", "--port", str(port))
    assert done.returncode == 1
    assert len(error_lines(done)) == 1
    assert str(port) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--no-such-flag"], "no-such-flag"),
        (["/no/such/model"], "/no/such/model"),
        (["--max-model-len", "1000000"], "1000000"),
        (["--tensor-parallel-size", "3"], "--tp 3"),
        (["--quantization", "awq"], "--quantization awq"),
        (["--block-size", "7"], "block-size"),
        (["--num-gpu-blocks-override", "2", "--max-model-len", "100"], "max-model-len"),
    ],
)
def test_what_the_command_line_asks_and_cannot_be_met_is_exit_code_2(arguments: list[str], named: str) -> None:
    model = [] if arguments[0].startswith("/") else [str(tiny_checkpoint())]
    done = run("serve", *model, "--host", "127.0.0.1", "--port", "0", *arguments)
    assert done.returncode == 2, done.stderr
    (line,) = error_lines(done)
    assert named in line
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_missing_or_truncated_shard_is_one_line_and_exit_code_2(tmp_path: Path, form: str) -> None:
    if form == "gguf":
        source = tiny_gguf("llama", "Q8_0", num_shards=2).path
        model = shutil.copytree(source.parent, tmp_path / "model") / source.name
    else:
        model = shutil.copytree(tiny_checkpoint("llama", num_shards=2), tmp_path / "model")
    (shard,) = (tmp_path / "model").glob("*-00002-of-00002.*")
    whole = shard.read_bytes()
    for content in (whole[: len(whole) // 2], None):
        shard.unlink()
        if content is not None:
            shard.write_bytes(content)
        done = run("serve", str(model), "--host", "127.0.0.1", "--port", "0")
        assert done.returncode == 2, done.stderr
        (line,) = error_lines(done)
        assert shard.name in line
        assert "Traceback" not in done.stderr


def test_too_little_memory_is_one_line_and_exit_code_1() -> None:
    done = run(
        "serve", str(tiny_checkpoint()), "--host", "127.0.0.1", "--port", "0", "--gpu-memory-utilization", "0.0001"
    )
    assert done.returncode == 1, done.stderr
    assert len(error_lines(done)) == 1


def test_frontend_and_core_never_load_torch(tmp_path: Path) -> None:
    with running_server(tmp_path, str(tiny_checkpoint())) as server:
        core, executor = server.process_of("pagewire.engine_core"), server.process_of("pagewire.gpu_executor")
        assert "libtorch" not in Path(f"/proc/{server.pid}/maps").read_text()
        assert "libtorch" not in Path(f"/proc/{core}/maps").read_text()
        assert "libtorch" in Path(f"/proc/{executor}/maps").read_text()


def test_unix_socket_is_served_and_removed(tmp_path: Path) -> None:
    path = Path("/tmp") / f"pw-{os.getpid()}.sock"
    server = RunningServer(["serve", str(tiny_checkpoint()), "--uds", str(path)], tmp_path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert client.recv(64).startswith(b"HTTP/1.1 200")
    assert server.stop() == 0
    assert not path.exists()
