"""`pagewire bench serve`: checks that the server answers, sends the load, prints and saves the figures."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import aiohttp
import msgspec
import uvloop
from tqdm import tqdm

from pagewire.ipc.errors import ConfigError, MachineError

from .arrivals import arrival_times_s
from .client import BenchClient
from .config import BenchServeConfig
from .datasets import SampleRequest, make_dataset, warmup_requests
from .metrics import RequestOutcome, summarize
from .report import result_filename, result_json, result_table
from .token_counter import TokenCounter

Say = Callable[[str], None]

_ALL_FAILED = 1
_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_TIMEOUT_S = 6 * 3600.0
# Below the 5 s after which common servers close an idle connection: a request must not meet the closing one.
_KEEPALIVE_S = 2.0
_MAX_ERRORS_SHOWN = 5


@dataclass
class _Run:
    """What is known of a run so far: an interrupted one is reported from here.

    Attributes:
        outcomes: by the request's place in the dataset; None while it is not over.
        duration_s: of the whole run, once it is over.
    """

    model: str = ""
    began_s: float = 0.0
    duration_s: float = 0.0
    outcomes: list[RequestOutcome | None] = field(default_factory=list)

    @property
    def ended(self) -> list[RequestOutcome]:
        """The outcomes that there are."""
        return [outcome for outcome in self.outcomes if outcome is not None]


class _ModelCard(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_ModelCard]


def run(config: BenchServeConfig, say: Say) -> int:
    """Run the benchmark.

    Args:
        config: what to send, where to, and what to show.
        say: prints a line.

    Returns:
        The exit code: 0, or 1 if every request failed, or 130 after Ctrl-C.

    Raises:
        ConfigError: the dataset, or the place for the result, can't be used.
        MachineError: the server can't be reached, or its answer to the test request is no stream of tokens.
    """
    folder = _result_folder(config)
    _allow_many_connections()
    current = _Run()
    try:
        uvloop.run(_benchmark(config, current, say))
    except KeyboardInterrupt:
        return _report_interrupted(config, current, say)
    metrics = summarize(
        current.ended, duration_s=current.duration_s, percentiles=config.percentiles, limits_ms=config.limits_ms
    )
    say(result_table(metrics, config))
    _say_errors(current.ended, say)
    if folder is not None:
        now = datetime.now().astimezone()
        document = result_json(metrics, config, model=current.model, outcomes=current.ended, now=now)
        path = folder / result_filename(config, model=current.model, now=now)
        _save(path, msgspec.json.encode(document))
        say(f"Saved to {path}.")
    return 0 if metrics.completed else _ALL_FAILED


async def _benchmark(config: BenchServeConfig, current: _Run, say: Say) -> None:
    headers = {} if config.api_key is None else {"Authorization": f"Bearer {config.api_key}"}
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
        timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
        headers=headers,
    ) as session:
        try:
            current.model = config.model or await _first_model(session, config.server_url)
            say(f"Target: {config.request_url}, model {current.model}.")
            requests = await _requests(session, config, current.model, say)
        except (aiohttp.ClientError, OSError) as exc:
            raise MachineError(f"{config.server_url} can't be reached: {exc}. Does the server run there?") from exc
        client = BenchClient(session, config, current.model, time.perf_counter)
        await _check_ready(client, config, requests, say)
        await _warm_up(client, config, requests, say)
        say(_load_line(config))
        await _send_all(client, config, requests, current)


async def _first_model(session: aiohttp.ClientSession, server_url: str) -> str:
    async with session.get(f"{server_url}/v1/models") as response:
        content = await response.read()
    if response.status != 200:
        remedy = "give its key with --api-key" if response.status in (401, 403) else "name the model with --model"
        raise MachineError(f"{server_url}/v1/models answers HTTP {response.status}; {remedy}.")
    try:
        return msgspec.json.decode(content, type=_Models).data[0].id
    except (msgspec.DecodeError, IndexError) as exc:
        raise MachineError(f"{server_url}/v1/models lists no model; name it with --model.") from exc


async def _requests(
    session: aiohttp.ClientSession, config: BenchServeConfig, model: str, say: Say
) -> Sequence[SampleRequest]:
    counter = await TokenCounter.connect(session, config.server_url, model)
    dataset = await make_dataset(config, counter.count)
    for note in dataset.notes:
        say(note)
    if config.dataset_name == "sharegpt" and not counter.is_exact:
        say("Lengths are chosen by estimate: the server has no /tokenize. The figures count what the server reports.")
    return dataset.requests


async def _check_ready(
    client: BenchClient, config: BenchServeConfig, requests: Sequence[SampleRequest], say: Say
) -> None:
    (request,) = warmup_requests(requests, 1, config.seed)
    outcome = await client.measure(request, began_s=time.perf_counter())
    if outcome.error:
        raise MachineError(f"the test request to {config.request_url} failed: {outcome.error}")
    say("Test request answered.")


async def _warm_up(client: BenchClient, config: BenchServeConfig, requests: Sequence[SampleRequest], say: Say) -> None:
    if not config.num_warmups:
        return
    # The first of them was the test request.
    _, *warmups = warmup_requests(requests, config.num_warmups + 1, config.seed)
    slots = asyncio.Semaphore(config.max_concurrency or len(warmups))
    began_s = time.perf_counter()

    async def warm(request: SampleRequest) -> None:
        async with slots:
            await client.measure(request, began_s=began_s)

    async with asyncio.TaskGroup() as tasks:
        for request in warmups:
            tasks.create_task(warm(request))
    say(f"Warm-up: {len(warmups)} requests sent.")


def _load_line(config: BenchServeConfig) -> str:
    process = "Poisson process" if config.burstiness == 1 else f"burstiness {config.burstiness:g}"
    rate = "at once" if math.isinf(config.request_rate) else f"at {config.request_rate:g} req/s ({process})"
    concurrency = "" if config.max_concurrency is None else f", at most {config.max_concurrency} under way"
    return f"Sending {config.num_prompts} requests {rate}{concurrency}, seed {config.seed}."


async def _send_all(
    client: BenchClient, config: BenchServeConfig, requests: Sequence[SampleRequest], current: _Run
) -> None:
    arrivals = arrival_times_s(len(requests), rate=config.request_rate, burstiness=config.burstiness, seed=config.seed)
    slots = None if config.max_concurrency is None else asyncio.Semaphore(config.max_concurrency)
    current.outcomes = [None] * len(requests)
    current.began_s = time.perf_counter()
    # None: no bar where standard error is a file.
    with tqdm(total=len(requests), unit="req", dynamic_ncols=True, disable=config.disable_tqdm or None) as bar:

        async def send(index: int) -> None:
            async with slots or contextlib.nullcontext():
                current.outcomes[index] = await client.measure(requests[index], began_s=current.began_s)
            bar.update()

        async with asyncio.TaskGroup() as tasks:
            for index, arrival_s in enumerate(arrivals):
                wait_s = current.began_s + arrival_s - time.perf_counter()
                if wait_s > 0:
                    await asyncio.sleep(wait_s)
                tasks.create_task(send(index))
        current.duration_s = time.perf_counter() - current.began_s


def _report_interrupted(config: BenchServeConfig, current: _Run, say: Say) -> int:
    """Show what an interrupted run measured; it is no result, so it is not saved."""
    if current.ended:
        duration_s = max(outcome.start_s + outcome.latency_s for outcome in current.ended)
        metrics = summarize(
            current.ended,
            duration_s=duration_s or time.perf_counter() - current.began_s,
            percentiles=config.percentiles,
            limits_ms=config.limits_ms,
        )
        say(result_table(metrics, config))
        _say_errors(current.ended, say)
    say(f"Interrupted: {len(current.ended)} of {config.num_prompts} requests had ended. Nothing was saved.")
    return _INTERRUPTED


def _say_errors(outcomes: Sequence[RequestOutcome], say: Say) -> None:
    counts = Counter(outcome.error for outcome in outcomes if outcome.error)
    for error, count in counts.most_common(_MAX_ERRORS_SHOWN):
        say(f"{count} failed: {error}")
    if len(counts) > _MAX_ERRORS_SHOWN:
        say(f"and {len(counts) - _MAX_ERRORS_SHOWN} other errors; --save-result --save-detailed keeps them all.")


def _result_folder(config: BenchServeConfig) -> Path | None:
    """Return where the result goes, made before the run: an hour's figures must not be lost to a wrong name."""
    if not config.save_result:
        return None
    folder = Path(config.result_dir or ".")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigError(f"--result-dir {folder} can't be made: {exc.strerror}.") from exc
    return folder


def _save(path: Path, document: bytes) -> None:
    try:
        path.write_bytes(document + b"\n")
    except OSError as exc:
        raise MachineError(f"{path} can't be written: {exc.strerror}.") from exc


def _allow_many_connections() -> None:
    """Raise the soft limit of open files to the hard one: each request under way is a connection."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS calls the hard limit infinite and refuses it; then the soft one has to do.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
