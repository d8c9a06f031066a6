"""One run of load against one server: the test request, the warm-ups, then every request at its time."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import aiohttp
import msgspec
from tqdm import tqdm

from pagewire.ipc.errors import MachineError

from ..dataset.datasets import SampleRequest, make_dataset, warmup_requests
from ..dataset.token_counter import TokenCounter
from .arrivals import arrival_times_s
from .client import BenchClient, describe_failure
from .config import BenchServeConfig
from .metrics import RequestOutcome
from .server_metrics import ServerState, watching_server

Say = Callable[[str], None]

_TIMEOUT_S = 6 * 3600.0
# Below the 5 s after which common servers close an idle connection: a request must not meet the closing one.
_KEEPALIVE_S = 2.0


@dataclass
class LoadRun:
    """What is known of a run so far: an interrupted one is reported from here.

    Attributes:
        requests: what is sent; made of the config's dataset if empty.
        outcomes: by the request's place in the dataset; None while it is not over.
        duration_s: of the whole run, once it is over.
        server: what the server said of itself meanwhile, if it was asked.
    """

    requests: Sequence[SampleRequest] = ()
    model: str = ""
    began_s: float = 0.0
    duration_s: float = 0.0
    outcomes: list[RequestOutcome | None] = field(default_factory=list)
    server: ServerState = field(default_factory=ServerState)

    @property
    def ended(self) -> list[RequestOutcome]:
        """The outcomes that there are."""
        return [outcome for outcome in self.outcomes if outcome is not None]


async def run_load(config: BenchServeConfig, current: LoadRun, say: Say, *, watches_server: bool = False) -> None:
    """Send a load and measure it.

    Args:
        config: of a single run.
        current: filled in as the run goes on.
        say: prints a line.
        watches_server: read the server's /metrics while the load runs.

    Raises:
        ConfigError: the dataset can't be used.
        MachineError: the server can't be reached, or its answer to the test request is no stream of tokens.
    """
    headers = {} if config.api_key is None else {"Authorization": f"Bearer {config.api_key}"}
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
        timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
        headers=headers,
    ) as session:
        try:
            current.model = config.model or await _first_model(session, config.server_url)
            say(f"Target: {config.request_url}, model {current.model}.")
            if not current.requests:
                current.requests = await _requests(session, config, current.model, say)
        except (aiohttp.ClientError, OSError) as exc:
            raise MachineError(
                f"{config.server_url} can't be reached: {describe_failure(exc)}. Does the server run there?"
            ) from exc
        client = BenchClient(session, config, current.model, time.perf_counter)
        await _check_ready(client, config, current.requests, say)
        await _warm_up(client, config, current.requests, say)
        say(_load_line(config))
        if not watches_server:
            await _send_all(client, config, current)
            return
        async with watching_server(session, config.server_url, current.server):
            await _send_all(client, config, current)


class _ModelCard(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_ModelCard]


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
    dataset = await make_dataset(config.dataset, counter.count)
    for note in dataset.notes:
        say(note)
    if config.dataset.dataset_name == "sharegpt" and not counter.is_exact:
        say("Lengths are chosen by estimate: the server has no /tokenize. The figures count what the server reports.")
    return dataset.requests


async def _check_ready(
    client: BenchClient, config: BenchServeConfig, requests: Sequence[SampleRequest], say: Say
) -> None:
    (request,) = warmup_requests(requests, 1, config.dataset.seed)
    outcome = await client.measure(request, began_s=time.perf_counter())
    if outcome.error:
        raise MachineError(f"the test request to {config.request_url} failed: {outcome.error}")
    say("Test request answered.")


async def _warm_up(client: BenchClient, config: BenchServeConfig, requests: Sequence[SampleRequest], say: Say) -> None:
    if not config.num_warmups:
        return
    # The first of them was the test request.
    _, *warmups = warmup_requests(requests, config.num_warmups + 1, config.dataset.seed)
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
    return f"Sending {config.dataset.num_prompts} requests {rate}{concurrency}, seed {config.dataset.seed}."


async def _send_all(client: BenchClient, config: BenchServeConfig, current: LoadRun) -> None:
    requests, seed = current.requests, config.dataset.seed
    arrivals = arrival_times_s(len(requests), rate=config.request_rate, burstiness=config.burstiness, seed=seed)
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
