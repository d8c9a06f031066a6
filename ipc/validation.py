"""The checks of a request: run in the client for a good text, and again in the core, because anyone may be a client."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from .errors import ContextTooLong, InvalidRequest
from .requests import AddRequest, EmbedTask, GenerateTask, ResumedChild
from .sampling_params import INT64_MAX, INT64_MIN, MAX_BAD_WORDS, MAX_BIAS, MAX_N, MIN_TEMPERATURE, Sampling
from .structured_outputs import check_grammar

MAX_TOKEN_IDS = 4096  # entries of each id list besides the prompt; bounds what one request makes the core hold
MAX_PROMPT_LOGPROBS = 2**20  # entries over the whole prompt, about 14 bytes each on the wire
MAX_SALT_CHARS = 128
MAX_LABEL_CHARS = 512


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds a request on one engine; both sides build it from the same `EngineInfo`."""

    max_model_len: int
    vocab_size: int
    max_logprobs: int
    has_priorities: bool
    max_num_seqs: int


def validate_request(request: AddRequest, limits: RequestLimits) -> None:
    """Check every value of a request against the engine's limits.

    Raises:
        ContextTooLong: the prompt leaves no room for an output token.
        InvalidRequest: any other value is out of its range.
    """
    needs_room = isinstance(request.task, GenerateTask)
    _check_prompt(request.inputs.prompt_token_ids, limits, needs_room=needs_room)
    _require(len(request.label) <= MAX_LABEL_CHARS, "request_id", "its text", f"at most {MAX_LABEL_CHARS} characters")
    salt = request.cache_salt
    _require(len(salt) <= MAX_SALT_CHARS, "cache_salt", f"{len(salt)} characters", f"at most {MAX_SALT_CHARS} long")
    _require(
        request.priority == 0 or limits.has_priorities,
        "priority",
        request.priority,
        "0 unless the engine runs with --scheduling-policy priority",
    )
    _check_int64("priority", [request.priority])
    timeout_s = request.timeout_s
    _require(timeout_s is None or 0 <= timeout_s < math.inf, "timeout", timeout_s, "a number of seconds, at least 0")
    match request.task:
        case GenerateTask() as task:
            _check_task(task, limits)
            _check_prompt_logprobs(len(request.inputs.prompt_token_ids), task.sampling, limits)
            _check_readded(request, task, limits)
        case EmbedTask():
            num_resumed = len(request.resumed_children)
            _require(not num_resumed, "resumed_children", num_resumed, "empty for an EmbedTask, which draws nothing")
            _check_num_deaths(request)


def _check_num_deaths(request: AddRequest) -> None:
    _require(0 <= request.num_deaths <= INT64_MAX, "num_deaths", request.num_deaths, "at least 0")


def _check_readded(request: AddRequest, task: GenerateTask, limits: RequestLimits) -> None:
    _check_num_deaths(request)
    resumed = request.resumed_children
    _require(request.is_readded or not resumed, "resumed_children", len(resumed), "empty unless is_readded is set")
    last = -1
    for item in resumed:
        rule = f"ascending, each from 0 to {task.n - 1}"
        _require(last < item.child < task.n, "resumed_children", f"child {item.child} after {last}", rule)
        last = item.child
        _check_resumed(item, len(request.inputs.prompt_token_ids), task.max_tokens, limits)


def _check_resumed(item: ResumedChild, num_prompt_tokens: int, most_tokens: int | None, limits: RequestLimits) -> None:
    room = limits.max_model_len - num_prompt_tokens
    most = room if most_tokens is None else min(most_tokens, room)
    num_tokens = len(item.output_token_ids)
    what = f"{num_tokens} output tokens of child {item.child}"
    _require(1 <= num_tokens < most, "resumed_children", what, f"unfinished: at least 1 token, and fewer than {most}")
    _check_ids("resumed_children", item.output_token_ids, limits)


def _check_prompt_logprobs(num_prompt_tokens: int, sampling: Sampling, limits: RequestLimits) -> None:
    count = sampling.num_prompt_logprobs
    if count is None:
        return
    num_entries = num_prompt_tokens * (limits.vocab_size if count == -1 else count)
    _require(
        num_entries <= MAX_PROMPT_LOGPROBS,
        "prompt_logprobs",
        f"{count} for {num_prompt_tokens} prompt tokens",
        f"so small that the prompt has at most {MAX_PROMPT_LOGPROBS} entries in all",
    )


def _check_prompt(prompt: list[int], limits: RequestLimits, *, needs_room: bool) -> None:
    if not prompt:
        raise InvalidRequest("The prompt is empty; send at least one token.", param="prompt")
    if len(prompt) + needs_room > limits.max_model_len:
        room = ", which leaves no room for output" if needs_room else ""
        raise ContextTooLong(
            f"This model's maximum context length is {limits.max_model_len} tokens. However, your prompt contains "
            f"{len(prompt)} input tokens{room}. Please shorten the prompt.",
            param="prompt",
        )
    _check_ids("prompt", prompt, limits)


def _check_task(task: GenerateTask, limits: RequestLimits) -> None:
    most = min(MAX_N, limits.max_num_seqs)
    _require(1 <= task.n <= most, "n", task.n, f"from 1 to {most}: children of a request run together")
    most_tokens = task.max_tokens
    _require(most_tokens is None or 1 <= most_tokens <= INT64_MAX, "max_tokens", most_tokens, "at least 1, or null")
    for name, ids in (("eos_token_ids", task.eos_token_ids), ("stop_token_ids", task.stop_token_ids)):
        _check_id_list(name, ids, limits)
    if task.grammar is not None:
        check_grammar(task.grammar)
    _check_sampling(task.sampling, limits)


def _check_sampling(s: Sampling, limits: RequestLimits) -> None:
    _require(
        s.temperature == 0 or MIN_TEMPERATURE <= s.temperature <= 2,
        "temperature",
        s.temperature,
        f"0 (greedy), or from {MIN_TEMPERATURE} to 2",
    )
    _require(0 < s.top_p <= 1, "top_p", s.top_p, "above 0 and at most 1")
    finite = (
        ("min_p", s.min_p, 0.0, 1.0),
        ("presence_penalty", s.presence_penalty, -2.0, 2.0),
        ("frequency_penalty", s.frequency_penalty, -2.0, 2.0),
        ("repetition_penalty", s.repetition_penalty, 1e-4, 1e4),
    )
    for name, value, low, high in finite:
        _require(low <= value <= high, name, value, f"from {low:g} to {high:g}")
    _require(0 <= s.top_k <= INT64_MAX, "top_k", s.top_k, "at least 0")
    _require(0 <= s.min_tokens <= INT64_MAX, "min_tokens", s.min_tokens, "at least 0")
    _check_int64("seed", [s.seed])
    most = limits.vocab_size if limits.max_logprobs == -1 else limits.max_logprobs
    for name, count in (("logprobs", s.num_logprobs), ("prompt_logprobs", s.num_prompt_logprobs)):
        if count is None:
            continue
        asked = limits.vocab_size if count == -1 else count
        _require(0 <= asked <= most, name, count, f"at most {most} (the engine's --max-logprobs)")
    _check_id_list("stop_token_ids", s.end_token_ids, limits)
    _check_ids("logit_bias", s.logit_bias, limits)
    _require(len(s.logit_bias) <= MAX_TOKEN_IDS, "logit_bias", len(s.logit_bias), f"at most {MAX_TOKEN_IDS} entries")
    for token_id, bias in s.logit_bias.items():
        _require(-MAX_BIAS <= bias <= MAX_BIAS, "logit_bias", f"{token_id}: {bias}", f"from -{MAX_BIAS} to {MAX_BIAS}")
    _check_allowed(s, limits)


def _check_allowed(s: Sampling, limits: RequestLimits) -> None:
    _require(
        len(s.bad_words_token_ids) <= 2 * MAX_BAD_WORDS, "bad_words", len(s.bad_words_token_ids), "fewer sequences"
    )
    for ids in s.bad_words_token_ids:
        _require(len(ids) > 0, "bad_words", ids, "non-empty sequences")
        _check_id_list("bad_words", ids, limits)
    if s.allowed_token_ids is None:
        return
    count = len(s.allowed_token_ids)
    _require(0 < count <= limits.vocab_size, "allowed_token_ids", f"{count} ids", f"from 1 to {limits.vocab_size} ids")
    _check_ids("allowed_token_ids", s.allowed_token_ids, limits)
    banned = {ids[0] for ids in s.bad_words_token_ids if len(ids) == 1}
    _require(
        not banned.issuperset(s.allowed_token_ids), "allowed_token_ids", "a list that bad_words bans whole", "drawable"
    )


def _check_id_list(name: str, ids: list[int], limits: RequestLimits) -> None:
    _require(len(ids) <= MAX_TOKEN_IDS, name, f"{len(ids)} ids", f"at most {MAX_TOKEN_IDS} ids")
    _check_ids(name, ids, limits)


def _check_ids(name: str, ids: Iterable[int], limits: RequestLimits) -> None:
    for token_id in ids:
        if not 0 <= token_id < limits.vocab_size:
            raise InvalidRequest(
                f"{name} contains token id {token_id}; this model's ids go from 0 to {limits.vocab_size - 1}.",
                param=name,
            )


def _check_int64(name: str, values: Iterable[int]) -> None:
    for value in values:
        _require(INT64_MIN <= value <= INT64_MAX, name, value, "a signed 64-bit integer")


def _require(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        raise InvalidRequest(f"{name} must be {rule}; got {value}.", param=name)
