"""Requests with one system prompt share its blocks: seen from outside, on real processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pagewire.frontend.client.sync_client import EngineClient
from pagewire.frontend.supervisor.engine_process import EngineProcess, prepare_engine
from pagewire.ipc.config import EngineConfig, ModelOptions
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.tiny_model import tiny_checkpoint

pytestmark = pytest.mark.slow

HEAD_BLOCKS = 3
LONG = 1900  # tokens: nobody ends before all are looked at


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    process = EngineProcess(
        prepare_engine(EngineConfig(model=ModelOptions(model=str(tiny_checkpoint("llama", max_position=2048)))))
    )
    yield process.address
    process.stop()


def watch(client: EngineClient, prompts: list[list[int]], params: SamplingParams) -> tuple[list[Any], dict[str, Any]]:
    """Start the requests together and look at their block tables once each has a token; then end them."""
    streams = [client.generate(prompt, params) for prompt in prompts]
    for stream in streams:
        seen: set[int] = set()
        for delta in stream:
            seen.add(delta.child)
            if len(seen) == params.n:
                break
    tables = client.call_utility("block_tables")
    pool = client.call_utility("pool")
    cached = [stream.start.num_cached_tokens for stream in streams if stream.start is not None]
    for stream in streams:
        stream.close()
    return tables, {**pool, "cached": cached}


def test_three_requests_with_one_system_prompt_share_its_blocks(engine: str) -> None:
    with EngineClient(engine, timeout_s=60) as client:
        size = client.info.block_size
        head = [10 + index for index in range(HEAD_BLOCKS * size)]
        before = client.call_utility("stats")
        params = SamplingParams(max_tokens=LONG, ignore_eos=True)
        tables, pool = watch(client, [[*head, 5, index] for index in range(3)], params)
        after = client.call_utility("stats")
    assert len(tables) == 3
    shared = tables[0]["block_table"][:HEAD_BLOCKS]
    assert all(table["block_table"][:HEAD_BLOCKS] == shared for table in tables)
    assert all(table["ref_counts"][:HEAD_BLOCKS] == [3] * HEAD_BLOCKS for table in tables)
    own = sum(len(table["block_table"]) - HEAD_BLOCKS for table in tables)
    assert pool["num_used_blocks"] == HEAD_BLOCKS + own
    assert pool["cached"] == [0, HEAD_BLOCKS * size, HEAD_BLOCKS * size], "the head is computed once"
    assert after["prefix_cache_hits"] - before["prefix_cache_hits"] == 2 * HEAD_BLOCKS * size


def test_three_children_of_one_prompt_share_its_blocks(engine: str) -> None:
    with EngineClient(engine, timeout_s=60) as client:
        size = client.info.block_size
        prompt = [200 + index for index in range(HEAD_BLOCKS * size)] + [1, 2, 3]
        params = SamplingParams(n=3, seed=4, max_tokens=LONG, ignore_eos=True)
        before = client.call_utility("stats")
        tables, pool = watch(client, [prompt], params)
        after = client.call_utility("stats")
    assert sorted(table["child"] for table in tables) == [0, 1, 2]
    shared = tables[0]["block_table"][:HEAD_BLOCKS]
    assert all(table["block_table"][:HEAD_BLOCKS] == shared for table in tables)
    assert all(table["ref_counts"][:HEAD_BLOCKS] == [3] * HEAD_BLOCKS for table in tables)
    own = {block for table in tables for block in table["block_table"][HEAD_BLOCKS:]}
    assert pool["num_used_blocks"] == HEAD_BLOCKS + len(own)
    assert after["num_prompt_tokens"] - before["num_prompt_tokens"] == len(prompt), "one prefill for all"
