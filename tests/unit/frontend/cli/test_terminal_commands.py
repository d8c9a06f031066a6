"""The commands of the terminal as they are typed: what they start, and what they refuse."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from pagewire.frontend.cli.chat import chat_command, complete_command
from pagewire.frontend.cli.collect_env import collect_env_command
from pagewire.frontend.cli.main import main, program, run
from pagewire.frontend.cli.run_batch import run_batch_command
from pagewire.frontend.cli.stored_names import complete_model, complete_model_or_path
from pagewire.frontend.cli.top import top_command
from pagewire.ipc.errors import ConfigError, InvalidRequest

NAME = "SmolLM2-135M-Instruct"


@pytest.fixture(autouse=True)
def _no_keys_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAGEWIRE_API_KEY", "VLLM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


class Recorder:
    """Keeps what a command was to run with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *arguments: Any) -> int:
        self.calls.append(arguments)
        return 0


def started(make: Any, *args: str) -> tuple[Any, ...]:
    recorder = Recorder()
    result = CliRunner().invoke(make(recorder), list(args), standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    (call,) = recorder.calls
    return call


def test_what_a_server_answers_is_one_line_without_orders_to_the_terminal(capsys: pytest.CaptureFixture[str]):
    class Launcher:
        def serve(self, *_: Any) -> int:
            raise InvalidRequest("HTTP 404:\n<html>\x1b[2J</html>")

    assert run(["serve"], Launcher()) == 1
    assert capsys.readouterr().err == "pagewire: error: HTTP 404: <html>\ufffd[2J</html>\n"


def test_text_in_another_encoding_ends_no_command(monkeypatch: pytest.MonkeyPatch):
    for name in ("stdin", "stdout"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="ascii"))
    monkeypatch.setattr(sys, "argv", ["pagewire", "--version"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert sys.stdin.read() == "caf\ufffd"
    sys.stdout.write("\u03c0")


def test_a_chat_asks_a_server_or_starts_a_model():
    config, engine = started(chat_command, "--url", "http://h:1/v1", "--temperature", "0", "--system-prompt", "Hm.")
    assert engine is None
    assert (config.answer.url, config.answer.settings, config.system_prompt) == (
        "http://h:1/v1",
        {"temperature": 0},
        "Hm.",
    )
    config, engine = started(chat_command, "a/b", "--max-model-len", "4k")
    assert (engine.model.model, engine.model.max_model_len, engine.log_level) == ("a/b", 4000, "warning")
    assert started(chat_command)[1] is None


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["a/b", "--url", "http://h"], "--model is decided by the server at http://h"),
        (["--url", "http://h", "--dtype", "float32"], "--dtype is decided by the server"),
        (["--url", "h:1"], "must start with http"),
        (["http://h:1"], "give it as --url http://h:1"),
        (["Tell me a joke."], "--quick"),
        (["--max-tokens", "0"], "--max-tokens 0 must be at least 1"),
        (["--temperature", "-1"], "--temperature -1"),
        (["--top-p", "2"], "--top-p 2"),
    ],
)
def test_a_chat_that_can_t_be_is_refused(args: list[str], part: str):
    with pytest.raises(ConfigError, match=part):
        started(chat_command, *args)


def test_flags_of_other_programs_and_slips_are_answered():
    for flag, part in (("--n-predict", "use --max-tokens"), ("--temperatur", "did you mean --temperature")):
        with pytest.raises(click.UsageError, match=part):
            started(chat_command, flag, "1")


@pytest.mark.parametrize(
    ("args", "model", "prompt"),
    [
        (["--url", "http://h", "a text"], None, "a text"),
        (["Once upon a time"], None, "Once upon a time"),
        (["/my models/absent"], "/my models/absent", None),
        (["a/b", "a text"], "a/b", "a text"),
        (["--model", "a/b", "a text"], "a/b", "a text"),
        (["a/b"], "a/b", None),
        ([], None, None),
    ],
)
def test_a_completion_has_a_prompt_and_who_answers_it(args: list[str], model: str | None, prompt: str | None):
    found, _config, engine = started(complete_command, *args)
    assert found == prompt
    assert (None if engine is None else engine.model.model) == model


def test_a_prompt_without_quotes_is_noticed():
    with pytest.raises(ConfigError, match="put the prompt in quotes"):
        started(complete_command, "--url", "http://h", "a", "text")


def test_a_batch_takes_vllms_flags():
    config, engine = started(run_batch_command, "-i", "in", "-o", "out", "--model", "m", "--max-num-seqs", "4")
    assert (config.input_file, config.output_file, engine.scheduler.max_num_seqs) == ("in", "out", 4)
    with pytest.raises(click.UsageError, match="output"):
        started(run_batch_command, "-i", "in")


def test_top_looks_at_port_8000_unless_told():
    assert started(top_command)[0].url == "http://127.0.0.1:8000"
    assert started(top_command, "--url", "http://h:1", "--once")[0].once


def test_helps_end_in_examples_and_fit_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    for command in ("chat", "complete", "run-batch", "top"):
        assert run([command, "--help"]) == 0
        text = capsys.readouterr().out
        assert f"Examples:\n  pagewire {command}" in text
        assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(shell: str, capsys: pytest.CaptureFixture[str]):
    assert run(["completion", shell]) == 0
    assert "_PAGEWIRE_COMPLETE" in capsys.readouterr().out
    assert run(["completion", "csh"]) == 2


def test_a_shell_completes_commands_flags_and_words():
    code = "import sys; sys.argv = ['pagewire']; from pagewire.frontend.cli.main import main; main()"
    for words, completed in (("pagewire cha", "chat"), ("pagewire serve --max-model", "--max-model-len"),
                             ("pagewire serve --dtype bf", "bfloat16"), ("pagewire serve --model smol", NAME),
                             ("pagewire run-batch -i ./requests", "./requests")):  # fmt: skip
        environment = {"_PAGEWIRE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        result = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, check=True
        )
        assert [line.partition(",")[2] for line in result.stdout.splitlines()] == [completed]


def test_fetched_models_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "models--acme--tiny").mkdir()
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    ctx, param = click.Context(click.Command("x")), click.Argument(["model"])
    assert complete_model(ctx, param, "AC") == ["acme/tiny"]
    assert complete_model(ctx, param, "smol") == [NAME]
    assert [(item.type, item.value) for item in complete_model_or_path(ctx, param, "acme/")] == [("plain", "acme/tiny")]
    assert [(item.type, item.value) for item in complete_model_or_path(ctx, param, "./t")] == [("file", "./t")]


def test_a_bug_report_holds_no_secret(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("PAGEWIRE_CACHE", "/some/where")
    monkeypatch.setenv("HF_ENDPOINT", "https://me:hf_secret@mirror.example")
    result = CliRunner().invoke(collect_env_command(), standalone_mode=False)
    assert "HF_TOKEN" in result.output
    assert "hf_secret" not in result.output
    assert "/some/where" in result.output
    assert "https://(set)@mirror.example" in result.output
    assert "pagewire  " in result.output


def test_the_help_names_every_command_once(capsys: pytest.CaptureFixture[str]):
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    for name in program().commands:
        assert text.count(f"\n  {name}  ") == 1, name
