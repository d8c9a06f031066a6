from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from pagewire.frontend.bench.dataset.config import DatasetConfig
from pagewire.frontend.bench.dataset.datasets import (
    Conversation,
    Dataset,
    is_usable,
    make_dataset,
    read_sharegpt,
    warmup_requests,
)
from pagewire.ipc.errors import ConfigError


async def count_words(text: str) -> int:
    return len(text.split())


async def made(**options: object) -> Dataset:
    return await make_dataset(DatasetConfig(**options), count_words)  # type: ignore[arg-type]


def write(tmp_path: Path, *exchanges: tuple[int, int]) -> str:
    """Write a ShareGPT file of questions and replies with so many words."""
    file = tmp_path / "sharegpt.json"
    turns = [
        [{"from": "human", "value": f"q{i} " * question}, {"from": "gpt", "value": "a " * reply}]
        for i, (question, reply) in enumerate(exchanges)
    ]
    file.write_text(json.dumps([{"id": str(i), "conversations": pair} for i, pair in enumerate(turns)]))
    return str(file)


async def test_random_prompts_have_the_length_asked_for():
    requests = (await made(num_prompts=5, random_input_len=40, random_output_len=7)).requests
    assert [len(request.prompt.split()) for request in requests] == [40] * 5
    assert {(request.num_prompt_tokens, request.num_output_tokens) for request in requests} == {(40, 7)}
    assert len({request.prompt for request in requests}) == 5


async def test_random_lengths_spread_around_the_length_asked_for():
    requests = (await made(num_prompts=300, random_input_len=40, random_output_len=1, random_range_ratio=0.5)).requests
    lengths = {request.num_prompt_tokens for request in requests}
    assert (min(lengths), max(lengths)) == (20, 60)
    assert all(request.num_output_tokens == 1 for request in requests)


@pytest.mark.parametrize("name", ["random", "sharegpt", "prefix_repetition"])
async def test_the_seed_decides(name: str):
    first, again, other = [(await made(dataset_name=name, num_prompts=6, seed=seed)).requests for seed in (1, 1, 2)]
    assert list(first) == list(again)
    assert list(first) != list(other)


async def test_prefix_repetition_shares_each_prefix_in_equal_parts():
    dataset = await made(
        dataset_name="prefix_repetition", num_prompts=12, prefix_repetition_prefix_len=8,
        prefix_repetition_suffix_len=5, prefix_repetition_num_prefixes=3, prefix_repetition_output_len=9,
    )  # fmt: skip
    prefixes = [tuple(request.prompt.split()[:8]) for request in dataset.requests]
    assert sorted(prefixes.count(prefix) for prefix in set(prefixes)) == [4, 4, 4]
    assert len({request.prompt for request in dataset.requests}) == 12
    assert {(request.num_prompt_tokens, request.num_output_tokens) for request in dataset.requests} == {(13, 9)}
    assert any(a != b for a, b in pairwise(prefixes))


async def test_without_a_file_the_conversations_are_synthetic_and_said_to_be():
    dataset = await made(dataset_name="sharegpt", num_prompts=50)
    assert "SYNTHETIC" in dataset.notes[0]
    assert len({request.prompt for request in dataset.requests}) == 50
    assert all(is_usable(request.num_prompt_tokens, request.num_output_tokens) for request in dataset.requests)


@pytest.mark.parametrize(
    ("prompt", "output", "usable"),
    [
        (4, 4, True), (3, 4, False), (4, 3, False), (1024, 1024, True), (1025, 4, False), (1024, 1025, False),
        (4, 2044, True), (4, 2045, False),
    ],
)  # fmt: skip
def test_a_conversation_is_usable_within_the_fields_limits(prompt: int, output: int, usable: bool):
    assert is_usable(prompt, output) is usable


async def test_a_file_is_filtered_and_replies_give_the_output_length(tmp_path: Path):
    path = write(tmp_path, (10, 20), (3, 20), (10, 2), (1025, 4), (30, 40))
    dataset = await made(dataset_name="sharegpt", dataset_path=path, num_prompts=2)
    assert {(request.num_prompt_tokens, request.num_output_tokens) for request in dataset.requests} == {
        (10, 20),
        (30, 40),
    }
    assert "5 conversations" in dataset.notes[0]


async def test_the_output_length_may_be_fixed(tmp_path: Path):
    path = write(tmp_path, (10, 2), (10, 3))
    dataset = await made(dataset_name="sharegpt", dataset_path=path, num_prompts=2, sharegpt_output_len=6)
    assert [request.num_output_tokens for request in dataset.requests] == [6, 6]


async def test_too_few_conversations_repeat_and_it_is_said(tmp_path: Path):
    path = write(tmp_path, (10, 20), (11, 20))
    dataset = await made(dataset_name="sharegpt", dataset_path=path, num_prompts=5)
    assert [request.num_prompt_tokens for request in dataset.requests][:2] * 2 == [
        request.num_prompt_tokens for request in dataset.requests
    ][:4]
    assert any("Only 2 conversations" in note for note in dataset.notes)


async def test_a_file_without_a_usable_conversation_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="none of the 1 conversations"):
        await made(dataset_name="sharegpt", dataset_path=write(tmp_path, (1, 1)))


@pytest.mark.parametrize(
    ("turns", "exchange"),
    [
        ([("human", "q"), ("gpt", "a"), ("human", "q2"), ("gpt", "a2")], ("q", "a")),
        ([("system", "s"), ("human", "q"), ("gpt", "a")], ("q", "a")),
        ([("gpt", "a"), ("human", "q")], None),
        ([("human", "q")], None),
        ([], None),
    ],
)
def test_the_first_question_with_its_reply_counts(turns: list[tuple[str, str]], exchange: tuple[str, str] | None):
    document = [{"conversations": [{"from": role, "value": text} for role, text in turns]}]
    (conversation,) = _decoded(document)
    assert conversation.first_exchange() == exchange


def _decoded(document: object) -> list[Conversation]:
    return msgspec.json.decode(json.dumps(document), type=list[Conversation])


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"conversations": 3}]'])
def test_a_file_that_is_no_sharegpt_is_refused(tmp_path: Path, text: str):
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match="is no ShareGPT file"):
        read_sharegpt(str(file))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="can't be read: No such file"):
        read_sharegpt(str(tmp_path / "x.json"))


async def test_warm_up_prompts_are_like_the_measured_ones_but_none_of_them():
    measured = (await made(num_prompts=3, random_input_len=40, random_output_len=7)).requests
    warmups = warmup_requests(measured, 4, seed=0)
    assert [len(request.prompt.split()) for request in warmups] == [40] * 4
    assert {request.prompt for request in warmups}.isdisjoint(request.prompt for request in measured)
