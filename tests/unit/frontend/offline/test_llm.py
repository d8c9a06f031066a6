"""`LLM` on a tiny random checkpoint with its real processes; what needs none of them is tested first."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from pagewire.frontend.offline.llm import LLM
from pagewire.frontend.offline.options import engine_config_of
from pagewire.ipc.errors import ConfigError, ContextTooLong, EngineDead, InvalidRequest, StartError
from pagewire.ipc.outputs import StepStats
from pagewire.ipc.sampling_params import SamplingParams
from tests.support.tiny_model import tiny_checkpoint

OPTIONS = {"max_model_len": 128, "max_num_seqs": 8, "kv_cache_memory_bytes": 2**22, "log_level": "warning"}
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_modl_len": 5}, "LLM does not take max_modl_len.*did you mean --max-model-len"),
        ({"hf_overrides": {"a": 1}}, "not supported yet"),
        ({"task": "score"}, "not supported yet"),
        ({"dtype": "int3"}, "dtype"),
        ({"max_model_len": "long"}, "max-model-len"),
        ({"tensor_parallel_size": 0}, "at least 1"),
        ({"gpu_memory_utilization": 90}, "fraction"),
        ({"host": "::"}, "does not take host"),
    ],
)
def test_options_that_cannot_be_met_are_refused_before_anything_starts(options, text):
    with pytest.raises(ConfigError, match=text):
        LLM("no/such-model", **options)


@pytest.mark.parametrize(("options", "most"), [({}, 0), ({"max_waiting_requests": 5}, 5)])
def test_any_number_of_prompts_may_wait_unless_a_bound_is_given(options, most):
    scheduler = engine_config_of(None, options).scheduler
    assert (scheduler.max_waiting_requests, scheduler.max_waiting_tokens) == (most, 0)


@pytest.mark.parametrize(("options", "target"), [({}, 0.0), ({"target_itl_ms": 20.0}, 20.0)])
def test_prefills_are_not_held_back_unless_a_target_is_given(options, target):
    assert engine_config_of(None, options).scheduler.target_itl_ms == target


def test_options_without_a_meaning_are_taken_with_a_line_each(caplog):
    options = {
        "trust_remote_code": True, "swap_space": 4, "task": "generate", "compilation_config": {"level": 3},
        "tokenizer": "m",
    }  # fmt: skip
    assert engine_config_of("m", options) == engine_config_of("m", {})
    assert [record.getMessage().partition(" ")[2].partition(" ")[0] for record in caplog.records] == [
        "--trust_remote_code", "--swap_space", "--task", "--compilation_config", "--tokenizer",
    ]  # fmt: skip


def test_options_may_be_spelled_as_on_the_command_line():
    model = engine_config_of(
        None, {"dtype": "half", "quantization": "awq_marlin", "override_generation_config": {}}
    ).model
    assert (model.dtype, model.quantization) == ("float16", "awq")


def test_unknown_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        LLM(str(tmp_path / "nowhere"))


@pytest.fixture(scope="module")
def model() -> Path:
    return tiny_checkpoint("llama")


@pytest.fixture(scope="module")
def llm(model):
    with LLM(str(model), **OPTIONS) as llm:
        yield llm


@pytest.mark.slow
def test_outputs_come_in_the_order_of_the_prompts(llm):
    prompts = ["a", "the longer prompt", [5, 6, 7], {"prompt": "b"}, {"prompt_token_ids": [9]}]
    params = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in (9, 1, 5, 3, 7)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [9, 1, 5, 3, 7]
    assert [output.prompt for output in outputs] == ["a", "the longer prompt", None, "b", None]
    assert outputs[2].prompt_token_ids == [5, 6, 7]
    assert {output.outputs[0].finish_reason for output in outputs} == {"length"}
    assert all(output.finished for output in outputs)
    ids = [int(output.request_id) for output in outputs]
    assert ids == list(range(ids[0], ids[0] + 5))


@pytest.mark.slow
def test_text_is_the_tokens_text(llm):
    [output] = llm.generate("hello", GREEDY, use_tqdm=False)
    tokenizer = llm.get_tokenizer()
    assert output.prompt_token_ids == tokenizer.encode("hello", add_special_tokens=True)
    assert output.outputs[0].text == tokenizer.decode(output.outputs[0].token_ids)


@pytest.mark.slow
def test_children_are_listed_by_index(llm):
    params = SamplingParams(n=3, seed=5, max_tokens=6, ignore_eos=True, logprobs=2)
    [output] = llm.generate("hello", params, use_tqdm=False)
    assert [child.index for child in output.outputs] == [0, 1, 2]
    for child in output.outputs:
        assert [next(iter(candidates)) for candidates in child.logprobs] == child.token_ids
        drawn = [candidates[token].logprob for candidates, token in zip(child.logprobs, child.token_ids, strict=True)]
        assert child.cumulative_logprob == pytest.approx(sum(drawn))
    [alone] = llm.generate("hello", SamplingParams(seed=5, max_tokens=6, ignore_eos=True), use_tqdm=False)
    assert alone.outputs[0].token_ids == output.outputs[0].token_ids


@pytest.mark.slow
def test_prompt_logprobs_have_one_entry_a_prompt_token(llm):
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    [output] = llm.generate([[5, 6, 7]], params, use_tqdm=False)
    assert output.prompt_logprobs[0] is None
    assert [next(iter(candidates)) for candidates in output.prompt_logprobs[1:]] == [6, 7]


@pytest.mark.slow
def test_stop_string_cuts_text_and_count(llm):
    [whole] = llm.generate("hello", GREEDY, use_tqdm=False)
    text = whole.outputs[0].text
    stop = text[2:4]
    [cut] = llm.generate(
        "hello", SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, stop=stop), use_tqdm=False
    )
    assert cut.outputs[0].text == text[: text.index(stop)]
    assert (cut.outputs[0].finish_reason, cut.outputs[0].stop_reason) == ("stop", stop)
    assert len(cut.outputs[0].token_ids) <= 8


@pytest.mark.slow
def test_metrics_are_filled_and_count_from_the_arrival(llm):
    [output] = llm.generate("hello", GREEDY, use_tqdm=False)
    metrics = output.metrics
    assert metrics.arrival_time == 0.0
    assert metrics.arrival_timestamp > 1e9
    assert 0 <= metrics.time_in_queue == metrics.first_scheduled_time
    assert metrics.first_scheduled_time <= metrics.first_token_time <= metrics.finished_time
    assert len(output.outputs[0].token_ids) / metrics.finished_time > 0


@pytest.mark.slow
def test_repeated_prompt_comes_from_the_prefix_cache(llm):
    prompt = list(range(10, 60))
    [first] = llm.generate(prompt, GREEDY, use_tqdm=False)
    [second] = llm.generate(prompt, GREEDY, use_tqdm=False)
    assert second.num_cached_tokens == 48
    assert second.outputs == first.outputs
    [salted] = llm.generate({"prompt_token_ids": prompt, "cache_salt": "other"}, GREEDY, use_tqdm=False)
    assert salted.num_cached_tokens == 0


@pytest.mark.slow
def test_everything_is_checked_before_anything_runs(llm):
    steps = llm.generate("hello", GREEDY, use_tqdm=False) and llm._generator.client.stats.num_steps
    with pytest.raises(InvalidRequest, match=r"Prompt 1: prompt contains token id 99999") as caught:
        llm.generate([[5], [99999], [6]], GREEDY, use_tqdm=False)
    assert caught.value.param == "prompt"
    with pytest.raises(ContextTooLong, match="Prompt 2: "):
        llm.generate([[5], [6], [7] * 128], GREEDY, use_tqdm=False)
    with pytest.raises(InvalidRequest, match=r"^The prompt is empty"):
        llm.generate([[]], GREEDY, use_tqdm=False)
    with pytest.raises(InvalidRequest, match="2 entries for 1"):
        llm.generate("a", [GREEDY, GREEDY], use_tqdm=False)
    llm.generate("hello", GREEDY, use_tqdm=False)
    assert llm._generator.client.stats.num_steps <= steps + len("hello") + GREEDY.max_tokens + 2


@pytest.mark.slow
def test_no_prompts_give_no_outputs(llm):
    assert llm.generate([], use_tqdm=False) == []
    assert llm.chat([], use_tqdm=False) == []


@pytest.mark.slow
def test_chat_renders_the_models_template(llm):
    messages = [{"role": "user", "content": "Hi"}]
    [output] = llm.chat(messages, GREEDY, use_tqdm=False)
    assert "Hi" in output.prompt
    assert output.prompt_token_ids == llm.get_tokenizer().encode(output.prompt, add_special_tokens=False)
    both = llm.chat([messages, messages], GREEDY, use_tqdm=False)
    assert [each.outputs for each in both] == [output.outputs] * 2
    [other] = llm.chat(messages, GREEDY, use_tqdm=False, chat_template="{{ messages[0].content }}!")
    assert other.prompt == "Hi!"
    begun = [*messages, {"role": "assistant", "content": "Well"}]
    [continued] = llm.chat(begun, GREEDY, use_tqdm=False, add_generation_prompt=False, continue_final_message=True)
    assert continued.prompt.endswith("Well")


@pytest.mark.slow
def test_chat_renders_tools_and_earlier_calls(llm):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    template = (
        "{{ tools[0].function.name }}{% for m in messages %}:{{ m.content }}{% for c in m.tool_calls %}"
        "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    tools = [{"type": "function", "function": {"name": "f"}}]
    [output] = llm.chat(messages, GREEDY, use_tqdm=False, chat_template=template, tools=tools)
    assert output.prompt == 'f:Hi:{"a": 1}'


@pytest.mark.slow
def test_default_parameters_are_the_models(llm):
    assert llm.get_default_sampling_params() == SamplingParams()


@pytest.mark.slow
def test_progress_bar_shows_speeds(llm, capsys):
    llm.generate(["a", "b"], GREEDY)
    shown = capsys.readouterr().err
    assert "Processed prompts: 100%" in shown
    assert "est. speed input: " in shown
    assert " toks/s, output: " in shown


@pytest.mark.slow
def test_ctrl_c_aborts_the_requests_and_leaves_the_llm_usable(llm):
    client = llm._generator.client
    main_thread = threading.get_ident()
    interrupted = threading.Event()

    def interrupt(stats: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            signal.pthread_kill(main_thread, signal.SIGINT)

    client.add_stats_listener(interrupt)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[5]] * 20, SamplingParams(max_tokens=None, ignore_eos=True), use_tqdm=False)
    assert client.num_live_requests == 0
    [output] = llm.generate("hello", GREEDY, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 8


SCRIPT = """
    import os, signal, sys
    from pagewire import LLM, SamplingParams
    llm = LLM(sys.argv[1], max_model_len=128, kv_cache_memory_bytes=2**22, log_level="warning")
    core = llm._engine._cores[0].process.pid
    print(core, *open(f"/proc/{core}/task/{core}/children").read().split(), llm._engine._cores[0].address, flush=True)
    [output] = llm.generate("hello", SamplingParams(max_tokens=2, ignore_eos=True), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 2
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "exit_code"),
    [
        ("", 0),
        ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_no_process_outlives_the_script(model, end, exit_code):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT) + end, str(model)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == exit_code, done.stderr
    *pids, address = done.stdout.split()
    assert len(pids) == 2
    for pid in map(int, pids):
        _wait_until_gone(pid)
    if exit_code != -signal.SIGKILL:
        assert not Path(address.removeprefix("ipc://")).parent.exists()


def _wait_until_gone(pid: int) -> None:
    """What a killed script leaves behind ends by itself, shortly after it."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(10_000), f"process {pid} still runs"
    finally:
        os.close(descriptor)


@pytest.mark.slow
def test_a_start_that_fails_says_why_and_leaves_nothing(model):
    threads = threading.active_count()
    with pytest.raises(StartError, match="kv-cache-memory-bytes"):
        LLM(str(model), log_level="error", kv_cache_memory_bytes=1)
    assert threading.active_count() == threads


@pytest.mark.slow
def test_an_llm_is_of_one_process(llm, monkeypatch):
    with pytest.raises(TypeError, match="can't be sent to another process"):
        pickle.dumps(llm)
    pid = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: pid + 1)  # as in a fork
        with pytest.raises(EngineDead, match="was forked from"):
            llm.generate("hello", GREEDY, use_tqdm=False)
    assert llm.generate("hello", GREEDY, use_tqdm=False)


@pytest.mark.slow
def test_shutdown_ends_the_engine_for_good(model):
    llm = LLM(str(model), **OPTIONS)
    pid = llm._engine._cores[0].process.pid
    llm.shutdown()
    llm.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(EngineDead, match="shut down"):
        llm.generate("hello", GREEDY)


@pytest.mark.slow
def test_several_cores_answer_as_one():
    prompts = [f"The {word} of" for word in ("capital", "colour", "sound", "end")] * 2
    with LLM(str(tiny_checkpoint()), **OPTIONS, data_parallel_size=2) as several:
        texts = [output.outputs[0].token_ids for output in several.generate(prompts, GREEDY, use_tqdm=False)]
        seen: list[StepStats] = []
        several.add_stats_listener(seen.append)
        several.generate(prompts, GREEDY, use_tqdm=False)
        assert seen[-1].num_generation_tokens == 2 * len(prompts) * 8, "of both cores"
    with LLM(str(tiny_checkpoint()), **OPTIONS) as one:
        assert texts == [output.outputs[0].token_ids for output in one.generate(prompts, GREEDY, use_tqdm=False)]
