from __future__ import annotations

import pytest

from pagewire.frontend.offline.prompts import OfflinePrompt, read_conversations, read_each, read_prompts
from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a", [OfflinePrompt(text="a")]),
        (["a", "b"], [OfflinePrompt(text="a"), OfflinePrompt(text="b")]),
        ([1, 2], [OfflinePrompt(token_ids=[1, 2])]),
        ((1, 2), [OfflinePrompt(token_ids=(1, 2))]),
        ([[1, 2], [3]], [OfflinePrompt(token_ids=[1, 2]), OfflinePrompt(token_ids=[3])]),
        ({"prompt": "a"}, [OfflinePrompt(text="a")]),
        (
            [{"prompt_token_ids": [1], "cache_salt": "s"}, "b"],
            [OfflinePrompt(token_ids=[1], cache_salt="s"), OfflinePrompt(text="b")],
        ),
        ([], []),
        ([[]], [OfflinePrompt(token_ids=[])]),
        ("", [OfflinePrompt(text="")]),
    ],
)
def test_every_form_of_prompts_is_read(given, expected):
    assert read_prompts(given) == expected


@pytest.mark.parametrize(
    "given",
    [
        None,
        5,
        [None],
        b"ab",
        [b"ab"],
        {"prompt_token_ids": b"ab"},
        {"text": "a"},
        {"prompt": "a", "images": []},
        {"prompt": 3},
        {"prompt": "a", "cache_salt": 1},
    ],
)
def test_other_forms_are_refused(given):
    with pytest.raises(InvalidRequest, match=r"[Aa] prompt"):
        read_prompts(given)


def test_one_conversation_or_many_are_read():
    message = {"role": "user", "content": "a"}
    assert read_conversations([message]) == [[message]]
    assert read_conversations(((message,), [message, message])) == [(message,), [message, message]]
    assert read_conversations([]) == []


@pytest.mark.parametrize("given", [None, "a", b"a", {"role": "user"}, ["a"], [[]], [[{}], []], [{}, "a"], [[{}], {}]])
def test_what_is_no_conversation_is_refused(given):
    with pytest.raises(InvalidRequest, match="A conversation is"):
        read_conversations(given)


def test_one_value_holds_for_all_and_a_list_for_each():
    assert read_each(3, int, 2, "priority") == [3, 3]
    assert read_each([1, 2], int, 2, "priority") == [1, 2]
    params = SamplingParams()
    assert read_each(params, SamplingParams, 2, "sampling_params") == [params, params]


@pytest.mark.parametrize(
    ("given", "text"),
    [([1], "1 entries for 2"), ("ab", "must be int"), ([1, "b"], "must be int"), (None, "must be int")],
)
def test_values_that_do_not_fit_the_prompts_are_refused(given, text):
    with pytest.raises(InvalidRequest, match=text):
        read_each(given, int, 2, "priority")
