"""The requests of a benchmark: random words, conversations, or shared prefixes. The same seed gives the same ones."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pagewire.ipc.errors import ConfigError

from .config import DatasetConfig
from .synthetic import conversations, random_words

CountTokens = Callable[[str], Awaitable[int]]

# A conversation must be one that any server can take: neither near-empty nor beyond a short context.
_MIN_TOKENS = 4
_MAX_PROMPT_TOKENS = 1024
_MAX_TOTAL_TOKENS = 2048
# The least number of made conversations; some of them break the rules above, like those of the real file.
_MIN_CONVERSATIONS = 1000


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One request to send.

    Attributes:
        num_prompt_tokens: as planned; the server's own count differs by special tokens and the chat template.
        num_output_tokens: how many to ask for at most.
    """

    prompt: str
    num_prompt_tokens: int
    num_output_tokens: int


@dataclass(frozen=True, slots=True)
class Dataset:
    """The requests in the order of sending, and what the user should know of them."""

    requests: Sequence[SampleRequest]
    notes: Sequence[str] = ()


class _Turn(msgspec.Struct):
    role: str = msgspec.field(name="from", default="")
    value: str = ""


class Conversation(msgspec.Struct):
    """An entry of a ShareGPT file; other fields are passed over."""

    conversations: list[_Turn] = []

    def first_exchange(self) -> tuple[str, str] | None:
        """Return the first question with the reply that follows it, or None."""
        for question, reply in zip(self.conversations, self.conversations[1:], strict=False):
            if question.role in ("human", "user") and reply.role in ("gpt", "assistant"):
                return question.value, reply.value
        return None


async def make_dataset(config: DatasetConfig, count_tokens: CountTokens) -> Dataset:
    """Return the requests that the config describes.

    Raises:
        ConfigError: the file of conversations can't be used.
    """
    if config.dataset_name == "random":
        return Dataset(list(_random_requests(config)))
    if config.dataset_name == "prefix_repetition":
        return Dataset(_prefix_requests(config))
    if config.dataset_path is None:
        count = max(_MIN_CONVERSATIONS, 2 * config.num_prompts)
        entries = msgspec.convert(list(conversations(count)), list[Conversation])
        notes = [
            "ShareGPT dataset: SYNTHETIC sample, made-up text with chat-like lengths; --dataset-path takes a real file."
        ]
    else:
        entries = read_sharegpt(config.dataset_path)
        notes = [f"ShareGPT dataset: {config.dataset_path}, {len(entries)} conversations."]
    requests = await _sharegpt_requests(entries, config, count_tokens)
    if len(requests) < config.num_prompts:
        notes.append(f"Only {len(requests)} conversations can be used, so that they repeat (prefix caches will help).")
        requests = [requests[index % len(requests)] for index in range(config.num_prompts)]
    return Dataset(requests, notes)


def warmup_requests(like: Sequence[SampleRequest], count: int, seed: int) -> list[SampleRequest]:
    """Return requests of the same lengths as the measured ones, but of other text.

    A measured prompt sent twice would be in the server's prefix cache the second time.
    """
    rng = _rng("warm-up", seed)
    samples = (like[index % len(like)] for index in range(count))
    return [
        SampleRequest(random_words(rng, max(1, one.num_prompt_tokens)), one.num_prompt_tokens, one.num_output_tokens)
        for one in samples
    ]


def read_sharegpt(path: str) -> list[Conversation]:
    """Return the entries of a ShareGPT file: a JSON list of conversations.

    Raises:
        ConfigError: it can't be read, or is something else.
    """
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=list[Conversation])
    except OSError as exc:
        raise ConfigError(f"--dataset-path {path} can't be read: {exc.strerror}.") from exc
    except msgspec.DecodeError as exc:
        raise ConfigError(f"--dataset-path {path} is no ShareGPT file (a JSON list of conversations): {exc}.") from exc


def _random_requests(config: DatasetConfig) -> Iterator[SampleRequest]:
    rng = _rng("random", config.seed)
    for _ in range(config.num_prompts):
        num_prompt_tokens = _spread(rng, config.random_input_len, config.random_range_ratio)
        num_output_tokens = _spread(rng, config.random_output_len, config.random_range_ratio)
        yield SampleRequest(random_words(rng, num_prompt_tokens), num_prompt_tokens, num_output_tokens)


def _spread(rng: random.Random, length: int, ratio: float) -> int:
    return max(1, rng.randint(int(length * (1 - ratio)), int(length * (1 + ratio))))


def _prefix_requests(config: DatasetConfig) -> list[SampleRequest]:
    """Return requests whose prompts begin alike in a few groups of equal size, shuffled."""
    rng = _rng("prefix_repetition", config.seed)
    prefix_len, suffix_len = config.prefix_repetition_prefix_len, config.prefix_repetition_suffix_len
    prefixes = [random_words(rng, prefix_len) for _ in range(config.prefix_repetition_num_prefixes)]
    requests = [
        SampleRequest(
            f"{prefixes[index % len(prefixes)]} {random_words(rng, suffix_len)}",
            prefix_len + suffix_len,
            config.prefix_repetition_output_len,
        )
        for index in range(config.num_prompts)
    ]
    rng.shuffle(requests)
    return requests


async def _sharegpt_requests(
    entries: Iterable[Conversation], config: DatasetConfig, count_tokens: CountTokens
) -> list[SampleRequest]:
    exchanges = [exchange for entry in entries if (exchange := entry.first_exchange()) is not None]
    _rng("sharegpt", config.seed).shuffle(exchanges)
    requests: list[SampleRequest] = []
    for prompt, reply in exchanges:
        num_prompt_tokens = await count_tokens(prompt)
        num_output_tokens = config.sharegpt_output_len or await count_tokens(reply)
        if is_usable(num_prompt_tokens, num_output_tokens):
            requests.append(SampleRequest(prompt, num_prompt_tokens, num_output_tokens))
        if len(requests) == config.num_prompts:
            break
    if not requests:
        raise ConfigError(
            f"none of the {len(exchanges)} conversations of {config.dataset_path or 'the synthetic sample'} can be "
            f"used: prompts must have {_MIN_TOKENS} to {_MAX_PROMPT_TOKENS} tokens, outputs {_MIN_TOKENS} or more, "
            f"both together at most {_MAX_TOTAL_TOKENS}."
        )
    return requests


def is_usable(num_prompt_tokens: int, num_output_tokens: int) -> bool:
    """Whether a conversation of these lengths keeps the rules of the field's ShareGPT benchmarks."""
    return (
        _MIN_TOKENS <= num_prompt_tokens <= _MAX_PROMPT_TOKENS
        and num_output_tokens >= _MIN_TOKENS
        and num_prompt_tokens + num_output_tokens <= _MAX_TOTAL_TOKENS
    )


def _rng(purpose: str, seed: int) -> random.Random:
    # One stream of chance a purpose: warm-up prompts never equal measured ones.
    return random.Random(f"{purpose} {seed}")  # noqa: S311 - a load pattern, no secret
