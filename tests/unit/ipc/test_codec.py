from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.ipc.adapters import Adapter
from pagewire.ipc.codec import (
    PROTOCOL_VERSION,
    Codec,
    client_messages,
    core_messages,
    encode,
    from_executor,
    to_executor,
)
from pagewire.ipc.config import EngineConfig
from pagewire.ipc.errors import ErrorInfo, ProtocolError
from pagewire.ipc.hosts import (
    HostBeat,
    HostDismissed,
    HostHello,
    HostRefused,
    HostWelcome,
    KillRank,
    PlacementFailed,
    PlacementPending,
    RankEnded,
    StartRank,
    StopRank,
    WhoAreYou,
    from_host,
    to_host,
)
from pagewire.ipc.outputs import (
    EngineInfo,
    FinishReason,
    Goodbye,
    PrefixCacheChanges,
    Ready,
    RequestEnd,
    RequestStart,
    StepOutputs,
    StepStats,
    TokenDelta,
    TokenLogprobs,
    UtilityResult,
)
from pagewire.ipc.requests import (
    AbortRequests,
    AddRequest,
    CallUtility,
    GenerateTask,
    Hello,
    Message,
    Ping,
    ResumedChild,
    TokenInputs,
    WatchPrefixCache,
)
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import (
    AdapterLoaded,
    ExecuteStep,
    ExecutorBusy,
    ExecutorFailed,
    ExecutorReady,
    LoadAdapter,
    LoadModel,
    NewRow,
    RowMasks,
    RowResult,
    SamplingMasks,
    ScheduledRow,
    Shutdown,
    StepResult,
    UnloadAdapter,
)

SAMPLING = Sampling(temperature=0.5, seed=-5, logit_bias={3: -1.5}, allowed_token_ids=[1], bad_words_token_ids=[[1, 2]])
INFO = EngineInfo(
    model="m", model_path="/m", served_model_names=("m",), max_model_len=8, vocab_size=9, eos_token_ids=(2,),
    bos_token_id=None, max_logprobs=20, block_size=16, num_blocks=4, device="cpu", dtype="float32",
    kv_cache_dtype="float16", scheduling_policy="fcfs", max_num_seqs=2, max_num_batched_tokens=16,
    enable_prefix_caching=True, startup=(("load", 0.5),),
)  # fmt: skip
ERROR = ErrorInfo(kind="InvalidRequest", message="no", param="n")
LOGPROBS = TokenLogprobs(5, -0.25, 1, [5, 6], [-0.25, -1.5])

EXAMPLES: list[tuple[Codec[Any], Message]] = [
    (client_messages, Hello(protocol_version=PROTOCOL_VERSION, client_name="test")),
    (client_messages, AddRequest(
        request_id=7, label="é", inputs=TokenInputs(prompt_token_ids=[1, 2]), priority=-1, cache_salt="s",
        task=GenerateTask(sampling=SAMPLING, n=2, max_tokens=3, eos_token_ids=[2], stop_token_ids=[4]),
    )),
    (client_messages, AddRequest(
        request_id=8, inputs=TokenInputs(prompt_token_ids=[1]), task=GenerateTask(sampling=SAMPLING, n=2),
        timeout_s=2.5, is_readded=True, resumed_children=[ResumedChild(1, [5, 6])], num_deaths=1,
    )),
    (client_messages, AbortRequests(request_ids=[1], children=[(2, 1)])),
    (client_messages, CallUtility(call_id=1, method="m", args=[1, 1.5, "x", True, None])),
    (client_messages, Ping()),
    (client_messages, WatchPrefixCache()),
    (core_messages, Ready(protocol_version=1, core_epoch=3, info=INFO)),
    (core_messages, StepOutputs(
        accepted=[7], starts=[RequestStart(request_id=7, num_cached_tokens=16, prompt_logprobs=[LOGPROBS])],
        deltas=[TokenDelta(request_id=7, child=1, first_index=2, token_ids=[5], logprobs=[LOGPROBS],
                           finish_reason=FinishReason.STOP, stop_reason=5)],
        ends=[RequestEnd(request_id=7, error=ERROR, is_refused=True)], stats=StepStats(num_running=1, step_s=0.5),
    )),
    (core_messages, UtilityResult(call_id=1, result={"a": [1, None]})),
    (core_messages, Ping()),
    (core_messages, PrefixCacheChanges(stored=[1, 2**64 - 1], evicted=[3], is_snapshot=True)),
    (core_messages, Goodbye(error=ERROR)),
    (to_executor, LoadModel(executor_epoch=1, config=EngineConfig(), num_blocks=5)),
    (to_executor, ExecuteStep(
        executor_epoch=1, step_id=2, removed_row_ids=[1], block_copies=[(1, 2)],
        new_rows=[NewRow(row_id=3, child=1, token_ids=[1, 2], num_prompt_tokens=2, num_computed_tokens=0,
                         block_table=[4], sampling=SAMPLING)],
        rows=[ScheduledRow(3, 0, 2, 1, [5], (0, 4))],
    )),
    (to_executor, LoadAdapter(executor_epoch=1, adapter=Adapter(name="a", load_id=2, path="/a"))),
    (to_executor, UnloadAdapter(executor_epoch=1, load_id=2)),
    (to_executor, SamplingMasks(executor_epoch=1, step_id=2, rows=[RowMasks(3, bytes([1, 0, 255, 0]))])),
    (to_executor, CallUtility(call_id=1, method="m")),
    (to_executor, Shutdown()),
    (from_executor, ExecutorReady(executor_epoch=1, num_blocks=5, device="cpu", dtype="f", kv_cache_dtype="f")),
    (from_executor, StepResult(
        executor_epoch=1, step_id=2, step_s=0.25,
        rows=[RowResult(row_id=3, token_ids=[5], logprobs=[LOGPROBS], prompt_logprobs_start=1, error=ERROR)],
    )),
    (from_executor, UtilityResult(call_id=1, error=ERROR)),
    (from_executor, AdapterLoaded(executor_epoch=1, load_id=2)),
    (from_executor, ExecutorBusy(executor_epoch=1, reason="loading", limit_s=2.5)),
    (from_executor, ExecutorFailed(executor_epoch=1, error=ERROR)),
    (from_host, HostHello(
        version="1", index=1, num_hosts=2, name="b", address="10.0.0.2", model_path="/m", model_fingerprint="f",
        num_cpus=2, num_gpus=0, free_port=5000, index_on_host=1, num_on_host=2,
    )),
    (from_host, HostBeat()),
    (from_host, RankEnded(executor_epoch=1, rank=1, exit_code=-9, free_port=5001)),
    (from_host, PlacementPending(reason="full")),
    (from_host, PlacementFailed(error=ERROR)),
    (to_host, HostWelcome()),
    (to_host, HostRefused(error=ERROR)),
    (to_host, WhoAreYou()),
    (to_host, HostBeat()),
    (to_host, StartRank(executor_epoch=1, rank=1, core_epoch=2, port=5002)),
    (to_host, StopRank(executor_epoch=1, rank=1)),
    (to_host, KillRank(executor_epoch=1, rank=1)),
    (to_host, HostDismissed(error=ERROR)),
]  # fmt: skip


@pytest.mark.parametrize(("codec", "message"), EXAMPLES)
def test_a_message_is_received_as_it_was_sent(codec: Codec[Any], message: Message):
    received = codec.decode(encode(message))
    assert type(received) is type(message)
    assert received == message


def test_every_message_of_each_direction_has_an_example():
    tags = {cls.__name__ for cls in Message.__subclasses__()} - {"TokenInputs", "GenerateTask", "EmbedTask"}
    assert {type(message).__name__ for _, message in EXAMPLES} >= tags


@pytest.mark.parametrize(("codec", "message"), EXAMPLES)
def test_a_message_of_another_direction_is_refused(codec: Codec[Any], message: Message):
    other = to_executor if codec is core_messages else core_messages
    if isinstance(message, Ping | UtilityResult | CallUtility):
        return  # they go both ways
    with pytest.raises(ProtocolError, match="unreadable message"):
        other.decode(encode(message))


@pytest.mark.parametrize(
    "frame",
    [
        b"", b"\xc1", b"\x00", msgspec.msgpack.encode({"type": "Hello"}), msgspec.msgpack.encode(["Hello"]),
        msgspec.msgpack.encode(["Hello", "1"]), msgspec.msgpack.encode(["Nothing", 1]), b"\x91\xa1\xff",
        b"\x91" * 2000, msgspec.msgpack.encode(["AddRequest", 2**64 - 1, "", ["TokenInputs", ["x"]]]),
    ],
)  # fmt: skip
def test_a_frame_that_is_no_message_is_a_protocol_error(frame: bytes):
    with pytest.raises(ProtocolError):
        client_messages.decode(frame)


@pytest.mark.parametrize("name", ["a\nERROR all is lost", "\x1b[2J", "\x9b2J", "n" * 129])
def test_a_client_name_that_would_spoil_a_log_is_refused(name: str):
    with pytest.raises(ProtocolError, match="unreadable message"):
        client_messages.decode(encode(Hello(protocol_version=PROTOCOL_VERSION, client_name=name)))


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_a_protocol_error(frame: bytes):
    for codec in (client_messages, core_messages, to_executor, from_executor):
        with contextlib.suppress(ProtocolError):
            codec.decode(frame)


def test_the_number_of_logprobs_keeps_its_bits():
    logprob = -0.1234567890123456789
    delta = TokenDelta(request_id=1, logprobs=[TokenLogprobs(1, logprob, 1)])
    received = core_messages.decode(encode(StepOutputs(deltas=[delta])))
    assert isinstance(received, StepOutputs)
    assert received.deltas[0].logprobs[0].logprob == logprob
