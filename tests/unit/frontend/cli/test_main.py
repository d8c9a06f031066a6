"""The command line as its users meet it: what it starts, and what it says when it can't."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pagewire.frontend.cli.main import run
from pagewire.ipc.config import EngineConfig
from pagewire.ipc.errors import MachineError
from pagewire.ipc.logs import setup_logging
from pagewire.ipc.server_config import ListenConfig, ServerConfig


class RecordingLauncher:
    """Starts nothing; keeps what it was asked to start."""

    def __init__(self, exit_code: int = 0, error: Exception | None = None) -> None:
        self.calls: list[tuple[object, ...]] = []
        self._exit_code = exit_code
        self._error = error

    def serve(self, engine_config: EngineConfig, server_config: ServerConfig) -> int:
        return self._record(engine_config, server_config)

    def run_engine(self, engine_config: EngineConfig, listen_config: ListenConfig) -> int:
        return self._record(engine_config, listen_config)

    def _record(self, *call: object) -> int:
        self.calls.append(call)
        if self._error is not None:
            raise self._error
        return self._exit_code


@pytest.fixture(autouse=True)
def _no_keys_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAGEWIRE_API_KEY", raising=False)
    monkeypatch.delenv("VLLM_API_KEY", raising=False)


def serve(*args: str) -> tuple[EngineConfig, ServerConfig]:
    """Run `pagewire serve ARGS` and return the configs that it would start with."""
    launcher = RecordingLauncher()
    assert run(["serve", *args], launcher) == 0
    ((engine_config, server_config),) = launcher.calls
    assert isinstance(engine_config, EngineConfig)
    assert isinstance(server_config, ServerConfig)
    return engine_config, server_config


def refuse(capsys: pytest.CaptureFixture[str], *args: str, exit_code: int = 2) -> str:
    """Run a command line that must fail without starting anything, and return its one line."""
    launcher = RecordingLauncher()
    assert run(list(args), launcher) == exit_code
    assert launcher.calls == []
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("pagewire: error: ")
    assert err.count("\n") == 1
    return err.removeprefix("pagewire: error: ").rstrip()


def test_no_flag_means_the_defaults_of_the_configs():
    assert serve() == (EngineConfig(), ServerConfig())


def test_the_model_may_be_positional_or_a_flag():
    assert serve("a/b")[0].model.model == "a/b"
    assert serve("--model", "a/b")[0].model.model == "a/b"
    assert serve("a/b", "--model", "a/b")[0].model.model == "a/b"


def test_flags_reach_their_configs_wherever_they_stand():
    engine, server = serve(
        "--port", "81", "a/b", "--max-num-seqs", "4", "--no-enable-prefix-caching", "--dtype", "bfloat16",
        "-tp", "1", "-pp=1", "--log-level", "DEBUG", "--gpu-memory-utilization", "0.5", "--enable-log-requests",
    )  # fmt: skip
    assert engine.model.model == "a/b"
    assert engine.model.dtype == "bfloat16"
    assert engine.scheduler.max_num_seqs == 4
    assert engine.cache.gpu_memory_utilization == 0.5
    assert not engine.cache.enable_prefix_caching
    assert engine.log_level == "debug"
    assert (server.port, server.enable_log_requests) == (81, True)


def test_underscores_are_dashes():
    assert serve("--max_num_seqs", "4", "--no-enable_prefix_caching") == serve(
        "--max-num-seqs=4", "--no-enable-prefix-caching"
    )


@pytest.mark.parametrize("word", ["cuda", "GPU", "rocm"])
def test_gpus_of_either_maker_are_one_device(word: str):
    assert serve("--device", word)[0].model.device == "cuda"


@pytest.mark.parametrize("text", ["auto", "-1", "AUTO"])
def test_an_automatic_model_length_is_the_default(text: str):
    assert serve("--max-model-len", text)[0].model.max_model_len is None


def test_served_model_name_takes_many_names_up_to_the_next_flag():
    names = serve("m", "--served-model-name", "a", "b", "--served-model-name=c", "--port", "1")[0].model
    assert names.served_model_name == ("a", "b", "c")
    assert names.model == "m"


def test_a_model_swallowed_by_served_model_name_is_noticed(capsys: pytest.CaptureFixture[str]):
    assert "give it as --model MODEL" in refuse(capsys, "serve", "--served-model-name", "a", "m")


def test_api_keys_are_repeated_and_win_over_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VLLM_API_KEY", "from vllm")
    assert serve()[1].api_key == ("from vllm",)
    monkeypatch.setenv("PAGEWIRE_API_KEY", "a key")
    assert serve()[1].api_key == ("a key",)
    assert serve("--api-key", "x", "--api-key", "y")[1].api_key == ("x", "y")
    monkeypatch.setenv("PAGEWIRE_API_KEY", "")  # as compose files pass on a variable that is not set
    assert serve()[1].api_key == ("from vllm",)


def test_the_exit_code_is_the_launchers():
    assert run(["serve"], RecordingLauncher(exit_code=3)) == 3


@pytest.mark.parametrize(
    "args", [("--task", "generate"), ("--task=Generate",), ("--runner", "auto"), ("--convert=none",)]
)
def test_flag_that_asks_for_what_is_done_anyway_is_taken_and_named(
    args: tuple[str, ...], capsys: pytest.CaptureFixture[str]
):
    engine_config, _ = serve(*args, "--max-num-seqs", "4", "m")
    assert (engine_config.model.model, engine_config.scheduler.max_num_seqs) == ("m", 4)
    flag, _, value = " ".join(args).replace("=", " ").partition(" ")
    assert capsys.readouterr().err == f"pagewire: {flag} {value} is what it does anyway; the flag can be left out.\n"


def test_such_a_flag_with_another_value_or_none_is_refused(capsys: pytest.CaptureFixture[str]):
    for args in (("--task", "classify"), ("--runner=pooling",), ("--task",)):
        assert "one engine generates text and embeds" in refuse(capsys, "serve", *args)


@pytest.mark.parametrize("arg", ["-ngl", "-ngl=99"])
def test_unknown_flag_of_one_dash_and_several_letters_is_named_whole(arg: str, capsys: pytest.CaptureFixture[str]):
    assert "-ngl is not taken: all layers are on the device" in refuse(capsys, "serve", arg, "99")


def test_what_the_machine_lacks_is_exit_code_1_and_one_line(capsys: pytest.CaptureFixture[str]):
    assert run(["serve"], RecordingLauncher(error=MachineError("port 8000\nis taken"))) == 1
    assert capsys.readouterr().err == "pagewire: error: port 8000 is taken\n"


def test_it_is_json_where_the_log_is(capsys: pytest.CaptureFixture[str]):
    setup_logging("frontend", "info", "json")
    assert run(["serve"], RecordingLauncher(error=MachineError("port 8000\nis taken"))) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert (json.loads(line)["level"], json.loads(line)["message"]) == ("error", "port 8000 is taken")


def test_ctrl_c_before_the_start_ends_like_a_shell_command():
    assert run(["serve"], RecordingLauncher(error=KeyboardInterrupt())) == 130  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["serve", "--max-model-lenn", "4"], "did you mean --max-model-len?"),
        (["serve", "\u2014port", "80"], "type --port"),
        (["srve"], "did you mean serve?"),
        (["xyz"], "There are: bench, chat, collect-env, complete, "),
        (["--port", "1"], "--port is a flag of `pagewire serve`."),
        (["serve", "--listen", "ipc:///x"], "--listen is a flag of `pagewire engine`."),
        (["engine", "--listen", "ipc:///x", "--port", "1"], "--port is a flag of `pagewire serve`."),
        (["serve", "a", "b"], "unexpected extra argument (b)"),
        (["serve", "a", "--model", "b"], "differ"),
        (["serve", ""], "MODEL is empty"),
        (["serve", "--model", ""], "empty"),
        (["serve", "--host", "--port", "1"], "--port follows"),
        (["serve", "--port"], "requires an argument"),
        (["serve", "--port", "70000"], "--port 70000 must be from 0 to 65535."),
        (["serve", "--max-num-seqs", "0"], "--max-num-seqs 0 must be at least 1."),
        (["serve", "--max-logprobs", "-2"], "--max-logprobs"),
        (["serve", "--gpu-memory-utilization", "nan"], "must be above 0"),
        (["serve", "--tensor-parallel-size", "0"], "must be at least 1"),
        (["serve", "-dp", "0"], "must be at least 1"),
        (["serve", "--api-server-count", "0"], "must be at least 1"),
        (["serve", "--kv-cache-dtype", "int8"], "int8 is not supported yet"),
        (["serve", "--device", "mps"], "mps is not supported yet"),
        (["serve", "--load-format", "pt"], "pt is not supported yet: weights are safetensors or GGUF"),
        (["serve", "--attention-backend", "FLASHMLA"], "flashmla is not supported yet: triton serves every device"),
        (["serve", "--hf-token", "auto"], "--hf-token is not supported yet"),
        (["bench", "sweep"], "the command bench sweep is not supported yet"),
        (["bench", "srve"], "did you mean serve?"),
        (["bench", "--port", "1"], "--port is a flag of `pagewire bench serve`."),
        (["launch"], "launch is not supported yet"),
        (["engine"], "--listen"),
        (["engine", "--listen", "tcp://h:1", "--curve-key", "k"], "name the clients' public keys by --allow-clients"),
        (["engine", "--listen", "tcp://h:1", "--allow-clients", "k"], "give --curve-key FILE"),
        (["engine", "--listen", "tcp://h:1", "--allow-clients", "k", "--curve-key", "k", "--insecure"], "contradict"),
        (["engine", "--listen", "tcp://h:1", "--engine-key", "k"], "--engine-key is a flag of `pagewire serve`."),
        (["serve", "--engine", "tcp://h:1", "--engine-key", "k"], "--engine-key and --curve-key go together"),
        (["serve", "--engine", "tcp://h:1", "--curve-key", "k"], "--engine-key and --curve-key go together"),
        (["serve", "--engine-key", "k", "--curve-key", "k"], "give its address by --engine"),
        (["serve", "--allow-clients", "k"], "--allow-clients is a flag of `pagewire engine`."),
    ],
)
def test_what_the_command_line_asks_and_is_not_there_is_one_line_and_exit_code_2(
    args: list[str], part: str, capsys: pytest.CaptureFixture[str]
):
    assert part in refuse(capsys, *args)


def test_engine_listens_where_it_is_told():
    launcher = RecordingLauncher()
    assert run(["engine", "a/b", "--listen", "ipc:///tmp/x.sock"], launcher) == 0
    assert run(["engine", "--listen", "tcp://127.0.0.1:5555", "--insecure"], launcher) == 0
    (first, second) = launcher.calls
    assert first[1:] == (ListenConfig(listen="ipc:///tmp/x.sock"),)
    assert second[1:] == (ListenConfig(listen="tcp://127.0.0.1:5555", insecure=True),)


def test_engine_takes_all_keys_up_to_the_next_flag():
    launcher = RecordingLauncher()
    args = ["--allow-clients", "a.key", "b.key", "--curve-key", "e.key_secret", "--listen", "tcp://h:1"]
    assert run(["engine", *args], launcher) == 0
    ((_, listen),) = launcher.calls
    assert listen == ListenConfig(listen="tcp://h:1", curve_key="e.key_secret", allow_clients=("a.key", "b.key"))


def test_an_attached_frontend_takes_no_flags_of_the_engine(capsys: pytest.CaptureFixture[str]):
    assert serve("--engine", "ipc:///x", "--log-level", "debug", "--port", "1")[1].engine == "ipc:///x"
    assert "--max-model-len is decided by the engine" in refuse(
        capsys, "serve", "--engine", "ipc:///x", "--max-model-len", "5"
    )
    assert "--model is decided by the engine" in refuse(capsys, "serve", "m", "--engine", "ipc:///x")
    assert "--stall-limit is decided" in refuse(capsys, "serve", "--engine", "ipc:///x", "--stall-limit", "5")


def test_an_attached_frontend_decides_how_long_its_own_drain_may_take():
    assert serve("--engine", "ipc:///x", "--shutdown-timeout", "5")[0].supervision.shutdown_timeout == 5


def test_a_config_file_gives_flags_and_the_command_line_wins(tmp_path: Path):
    file = tmp_path / "c.yaml"
    file.write_text("model: a/b\nmax-model-len: 4k\nmax_num_seqs: 8\nserved-model-name: [x, y]\nport: 81\n")
    engine, server = serve("--config", str(file), "--port", "82", "--max-num-seqs", "9")
    assert engine.model.model == "a/b"
    assert engine.model.max_model_len == 4000
    assert engine.model.served_model_name == ("x", "y")
    assert engine.scheduler.max_num_seqs == 9
    assert server.port == 82
    assert serve("c/d", "--config", str(file))[0].model.model == "c/d"


def test_help_shows_every_flag_and_its_default(capsys: pytest.CaptureFixture[str]):
    assert run(["serve", "--help"]) == 0
    text = capsys.readouterr().out
    for part in ("--max-model-len", "--no-enable-prefix-caching", "[default: 16]", "-tp", "--config", "-h, --help"):
        assert part in text
    assert "--model-path" not in text


@pytest.mark.parametrize("args", [["--version"], ["serve", "--version"], ["-v"]])
def test_version_is_one_line(args: list[str], capsys: pytest.CaptureFixture[str]):
    assert run(args) == 0
    assert capsys.readouterr().out.startswith("pagewire ")


def test_no_command_shows_the_help_and_fails(capsys: pytest.CaptureFixture[str]):
    assert run([]) == 2
    assert "serve" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["['serve', '--help']", "['bench', 'serve', '--help']"])
def test_help_loads_nothing_that_only_running_needs(command: str):
    code = (
        f"import sys; from pagewire.frontend.cli.main import run; run({command});"
        "heavy = {'aiohttp', 'tokenizers', 'torch', 'numpy', 'zmq', 'yaml', 'jinja2', 'rich', 'tqdm'};"
        "heavy &= set(sys.modules);"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_allowed_origins_come_one_by_one_or_as_a_json_list(capsys: pytest.CaptureFixture[str]):
    expected = ("https://a.example", "https://b.example")
    for args in (
        ["--allowed-origins", *expected],
        ["--allowed-origins", expected[0], "--allowed-origins", expected[1]],
        ["--allowed-origins", '["https://a.example", "https://b.example"]'],
        ['--allowed-origins=["https://a.example","https://b.example"]'],
    ):
        assert serve(*args)[1].allowed_origins == expected
    assert serve()[1].allowed_origins == ()
    assert "no JSON list of texts" in refuse(capsys, "serve", "--allowed-origins", "[https://a.example]")
    assert "is no origin" in refuse(capsys, "serve", "--allowed-origins", "a.example")
