"""A whole benchmark against the HTTP frontend over a scripted core."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest

from pagewire.frontend.bench.dataset.config import DatasetConfig
from pagewire.frontend.bench.serving.config import BenchServeConfig
from pagewire.frontend.bench.serving.serve import run
from pagewire.ipc.errors import ConfigError, MachineError, Overloaded, PagewireError
from pagewire.ipc.outputs import StepStats
from pagewire.ipc.requests import AddRequest
from pagewire.ipc.server_config import ServerConfig
from tests.support.http_server import Running, running_server


async def bench(server: Running | str | None, **options: object) -> tuple[int, str]:
    """Run a small benchmark in a thread, as its own event loop; return the exit code and what it printed."""
    url = server.url if isinstance(server, Running) else server
    small = {"num_prompts": 4, "random_input_len": 8, "random_output_len": 16}
    dataset = {name: options.pop(name) for name in DatasetConfig.__struct_fields__ if name in options}
    config = BenchServeConfig(
        base_url=url,
        dataset=DatasetConfig(**{**small, **dataset}),  # type: ignore[arg-type]
        **options,  # type: ignore[arg-type]
    )
    lines: list[str] = []
    return await asyncio.to_thread(run, config, lines.append), "\n".join(lines)


def figure(output: str, label: str) -> float:
    (line,) = [line for line in output.splitlines() if line.startswith(label + ":")]
    return float(line.rpartition(":")[2])


def requests_of(server: Running) -> list[AddRequest]:
    return [message for message in server.core.received if isinstance(message, AddRequest)]


@pytest.mark.parametrize("backend", ["openai", "vllm", "openai-chat"])
async def test_tokens_are_those_that_the_server_reports(backend: str):
    async with running_server("hello") as server:
        exit_code, output = await bench(server, backend=backend)
        assert exit_code == 0
        assert figure(output, "Successful requests") == 4
        assert figure(output, "Total generated tokens") == 4 * len("hello.")  # the end token counts
        measured = requests_of(server)[1:]
        assert figure(output, "Total input tokens") == sum(len(one.inputs.prompt_token_ids) for one in measured)


async def test_the_test_request_and_warm_ups_come_first_and_are_not_measured():
    async with running_server("hello") as server:
        _, output = await bench(server, num_warmups=2)
        prompts = [bytes(one.inputs.prompt_token_ids[1:]) for one in requests_of(server)]
        assert len(prompts) == len(set(prompts)) == 1 + 2 + 4
        assert figure(output, "Successful requests") == 4
        assert "Warm-up: 2 requests sent." in output


async def test_the_concurrency_has_a_limit():
    async with running_server("hello") as server:
        _, output = await bench(server, max_concurrency=1)
        assert figure(output, "Peak concurrent requests") == 1
        assert figure(output, "Maximum request concurrency") == 1


async def test_requests_arrive_at_the_rate_asked_for():
    async with running_server("hello") as server:
        _, output = await bench(server, request_rate=40.0)
        assert figure(output, "Request rate configured (RPS)") == 40
        assert figure(output, "Benchmark duration (s)") >= 0.1


async def test_the_shipped_conversations_are_said_to_be_synthetic():
    async with running_server("hello", info={"max_model_len": 8192}) as server:
        exit_code, output = await bench(server, dataset_name="sharegpt", num_prompts=2)
        assert exit_code == 0
        assert "SYNTHETIC" in output
        assert "by estimate" not in output


async def test_results_are_saved(tmp_path: Path):
    async with running_server("hello") as server:
        folder = tmp_path / "made" / "here"
        _, output = await bench(
            server, save_result=True, save_detailed=True, result_dir=str(folder), goodput=("e2el:60000",)
        )
    (file,) = folder.iterdir()
    assert f"Saved to {file}." in output
    result = json.loads(file.read_text())
    assert (result["model_id"], result["completed"]) == ("fake", 4)
    assert result["generated_texts"] == ["hello"] * 4
    assert result["request_goodput"] == result["request_throughput"]


async def test_all_requests_failing_is_exit_code_1():
    seen: list[AddRequest] = []

    def refuse_all_but_the_first(request: AddRequest) -> PagewireError | None:
        seen.append(request)
        return Overloaded("the queue is full") if len(seen) > 1 else None

    async with running_server("hello", refuses=refuse_all_but_the_first) as server:
        exit_code, output = await bench(server)
    assert exit_code == 1
    assert figure(output, "Failed requests") == 4
    assert "4 failed: HTTP 503" in output
    assert "the queue is full" in output


async def test_a_failed_test_request_ends_the_benchmark():
    async with running_server("hello") as server:
        with pytest.raises(MachineError, match=r"test request.*HTTP 404"):
            await bench(server, model="other")


async def test_a_server_that_wants_a_key_gets_it():
    async with running_server("hello", config=ServerConfig(api_key=("secret",))) as server:
        with pytest.raises(MachineError, match="give its key with --api-key"):
            await bench(server)
        exit_code, _ = await bench(server, api_key="secret")
        assert exit_code == 0


async def test_a_server_that_is_not_there_is_named():
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(MachineError, match=f"{url} can't be reached: Connection refused[.] Does"):
        await bench(url)


async def test_a_place_that_can_not_be_written_is_refused_before_the_run(tmp_path: Path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match=r"--result-dir .* can't be made"):
        await bench("http://127.0.0.1:1", save_result=True, result_dir=str(file))


async def test_servers_are_measured_in_turn_with_the_same_prompts():
    async with running_server("hello") as one, running_server("hello") as other:
        targets = (f"one={one.url}", f"other={other.url}/v1")
        exit_code, output = await bench(None, target=targets, rounds=2)
        prompts = [[bytes(request.inputs.prompt_token_ids) for request in requests_of(it)] for it in (one, other)]
    assert exit_code == 0
    assert sorted(prompts[0]) == sorted(prompts[1]), "in whatever order concurrent requests arrive"
    # A test request and four measured ones a round, all of them new.
    assert len(set(prompts[0])) == 2 * (1 + 4)
    header, first, second, note = output.splitlines()[-4:]
    assert header.split()[:2] == ["server", "output"]
    assert (first.split()[0], second.split()[0]) == ("one", "other")
    assert "medians of 2 rounds" in note


async def test_what_the_servers_say_of_themselves_stands_in_the_table():
    stats = StepStats(num_steps=1, num_running=5, num_blocks=100, num_used_blocks=40, num_filled_slots=600)
    async with running_server("hello") as server:
        # After each step of the fake core, whose figures are of no interest here.
        server.client.add_stats_listener(lambda _: server.serving.metrics.step_done(0, ("", 1), stats))
        _, output = await bench(None, target=(f"it={server.url}",))
    (line,) = [line for line in output.splitlines() if line.startswith("it  ")]
    assert line.split()[-4:] == ["5", "40.0%", "93.8%", "0"]


async def test_a_sweep_is_a_row_a_load_and_saved_with_every_run(tmp_path: Path):
    async with running_server("hello") as server:
        _, output = await bench(
            server, sweep_concurrency="1,2", save_result=True, result_dir=str(tmp_path), result_filename="x.json"
        )
    assert [line for line in output.splitlines() if "1 client " in line][-1].startswith(server.url)
    runs = json.loads((tmp_path / "x.json").read_text())["runs"]
    assert [run["max_concurrency"] for run in runs] == [1, 2]
    assert [run["completed"] for run in runs] == [4, 4]


async def test_a_server_that_fails_is_said_and_the_others_are_measured():
    with socket.create_server(("127.0.0.1", 0)) as free:
        gone = f"http://127.0.0.1:{free.getsockname()[1]}"
    async with running_server("hello") as server:
        exit_code, output = await bench(None, target=(f"gone={gone}", f"here={server.url}"))
    assert exit_code == 1
    assert f"gone: {gone} can't be reached" in output
    assert [line for line in output.splitlines() if line.startswith("here  ")]


@pytest.mark.slow  # imports matplotlib
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_sweep_is_drawn(tmp_path: Path):
    file = tmp_path / "x.png"
    async with running_server("hello") as server:
        _, output = await bench(server, sweep_request_rate="50,inf", plot=str(file))
    assert f"Drawn to {file}." in output
    assert file.read_bytes().startswith(b"\x89PNG")


async def test_the_report_shows_the_run_and_no_key(tmp_path: Path):
    page = tmp_path / "report.html"
    async with running_server("hello") as server:
        exit_code, output = await bench(server, report=str(page), api_key="secret-key", max_concurrency=2)
    assert exit_code == 0
    assert f"Reported in {page}." in output
    text = page.read_text()
    assert text.count("<svg") == 5
    assert "max_concurrency=2" in text
    assert "secret-key" not in text
