"""Requests and engines with few words: every test names only what it is about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from pagewire.engine_core.engine import Engine
from pagewire.ipc.config import CacheConfig, EngineConfig, SchedulerConfig
from pagewire.ipc.errors import ErrorInfo
from pagewire.ipc.parallel_config import ParallelConfig
from pagewire.ipc.requests import AddRequest, EmbedTask, GenerateTask, TokenInputs
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.speculative_config import SpeculativeConfig
from pagewire.ipc.steps import NewRow
from pagewire.ipc.structured_outputs import Grammar
from pagewire.ipc.validation import RequestLimits
from tests.support.engine_driver import EngineDriver
from tests.support.fake_executor import FakeExecutor

VOCAB_SIZE = 1000


def build_request(
    request_id: int,
    prompt: Sequence[int],
    *,
    n: int = 1,
    max_tokens: int | None = 4,
    seed: int = 0,
    priority: int = 0,
    salt: str = "",
    eos: Sequence[int] = (),
    stop: Sequence[int] = (),
    min_tokens: int = 0,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    timeout_s: float | None = None,
    is_readded: bool = False,
    num_deaths: int = 0,
    grammar: Grammar | None = None,
) -> AddRequest:
    """Return a request; one with `min_tokens` masks its end tokens as a client would ask."""
    sampling = Sampling(
        seed=seed,
        min_tokens=min_tokens,
        end_token_ids=sorted({*eos, *stop}) if min_tokens else [],
        num_logprobs=logprobs,
        num_prompt_logprobs=prompt_logprobs,
    )
    task = GenerateTask(
        sampling=sampling,
        n=n,
        max_tokens=max_tokens,
        eos_token_ids=list(eos),
        stop_token_ids=list(stop),
        grammar=grammar,
    )
    return AddRequest(
        request_id=request_id,
        inputs=TokenInputs(prompt_token_ids=list(prompt)),
        task=task,
        priority=priority,
        cache_salt=salt,
        timeout_s=timeout_s,
        is_readded=is_readded,
        num_deaths=num_deaths,
    )


def build_embedding(
    request_id: int,
    prompt: Sequence[int],
    *,
    pooling: Literal["last", "mean"] = "last",
    normalize: bool = True,
    priority: int = 0,
    salt: str = "",
) -> AddRequest:
    """Return a request for a prompt's vector."""
    return AddRequest(
        request_id=request_id,
        inputs=TokenInputs(prompt_token_ids=list(prompt)),
        task=EmbedTask(pooling=pooling, normalize=normalize),
        priority=priority,
        cache_salt=salt,
    )


def build_driver(
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    max_model_len: int = 64,
    max_num_seqs: int = 8,
    budget: int = 64,
    is_async: bool = False,
    policy: str = "fcfs",
    caching: bool = True,
    vocab_size: int = VOCAB_SIZE,
    target_itl_ms: float = 0,
    max_waiting_requests: int = 0,
    max_waiting_tokens: int = 0,
    fails: Callable[[NewRow], ErrorInfo | None] = lambda row: None,
    pp: int = 1,
    max_drafts: int = 0,
    has_draft_model: bool = False,
) -> EngineDriver:
    """Return an engine over a fake executor, whose steps take 1 ms a token; prefills are not limited."""
    speculative = SpeculativeConfig()
    if max_drafts:
        speculative = (
            SpeculativeConfig(speculative_model="small", num_speculative_tokens=max_drafts)
            if has_draft_model
            else SpeculativeConfig(speculative_method="ngram", num_speculative_tokens=max_drafts)
        )
    config = EngineConfig(
        cache=CacheConfig(block_size=block_size, enable_prefix_caching=caching),
        scheduler=SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            target_itl_ms=target_itl_ms,
            async_scheduling=is_async,
            scheduling_policy="priority" if policy == "priority" else "fcfs",
            max_waiting_requests=max_waiting_requests,
            max_waiting_tokens=max_waiting_tokens,
        ),
        parallel=ParallelConfig(pipeline_parallel_size=pp),
        speculative=speculative,
    )
    limits = RequestLimits(
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        max_logprobs=5,
        has_priorities=policy == "priority",
        max_num_seqs=max_num_seqs,
    )
    engine = Engine(
        config,
        num_blocks=num_blocks,
        step_limits=config.scheduler.step_limits("cpu"),
        limits=limits,
        executor_epoch=1,
    )
    executor = FakeExecutor(
        num_blocks=num_blocks,
        block_size=block_size,
        vocab_size=vocab_size,
        fails=fails,
        num_stages=pp,
        max_drafts=max_drafts,
        writes_ahead=has_draft_model,
    )
    return EngineDriver(engine, executor, max_model_len=max_model_len, pp=pp)
