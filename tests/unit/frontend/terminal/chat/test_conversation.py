from __future__ import annotations

from pathlib import Path

import pytest

from pagewire.frontend.terminal.chat.answer import AnswerReader
from pagewire.frontend.terminal.chat.commands import ChatCommands
from pagewire.frontend.terminal.chat.conversation import AnswerStats, Conversation
from pagewire.ipc.errors import InvalidRequest

STATS = AnswerStats(10, 4, 21, 0.5, 2.5, "stop")


def talked() -> Conversation:
    conversation = Conversation("m", system_prompt="Be brief.")
    conversation.say("hi")
    conversation.answered("hello", STATS)
    return conversation


def commands(conversation: Conversation) -> ChatCommands:
    return ChatCommands(conversation, lambda: ["m", "other-model"])


def test_a_request_holds_what_was_said_and_set():
    conversation = talked()
    conversation.set("temperature", "0.5")
    conversation.set("stop", "END")
    body = conversation.body()
    assert [each["role"] for each in body["messages"]] == ["system", "user", "assistant"]
    assert (body["temperature"], body["stop"], body["model"]) == (0.5, "END", "m")
    conversation.set("stop", "default")
    assert "stop" not in conversation.body()


def test_a_question_without_an_answer_gives_way_to_the_next():
    conversation = talked()
    conversation.say("lost")
    conversation.answered("", STATS)
    conversation.say("next")
    assert [each["content"] for each in conversation.messages] == ["hi", "hello", "next"]


def test_retry_drops_the_answer_and_undo_the_question_too():
    conversation = talked()
    assert commands(conversation).run("/retry").asks_again
    assert conversation.messages == [{"role": "user", "content": "hi"}]
    commands(conversation).run("/undo")
    assert conversation.messages == []
    with pytest.raises(InvalidRequest, match="nothing was asked"):
        commands(conversation).run("/retry")


def test_what_is_saved_can_be_loaded_and_read(tmp_path: Path):
    conversation = talked()
    run = commands(conversation).run
    run("/set seed 7")
    run(f"/save {tmp_path / 'a.json'}")
    run(f"/save {tmp_path / 'a.md'}")
    other = Conversation("another")
    commands(other).run(f"/load {tmp_path / 'a.json'}")
    assert (other.messages, other.settings, other.system_prompt) == (conversation.messages, {"seed": 7}, "Be brief.")
    assert other.model == "another"
    assert "**Assistant:** hello" in (tmp_path / "a.md").read_text()
    for bad in ("[]", '{"messages": [{"text": "x"}]}', '{"messages": [], "settings": {"stream": false}}'):
        (tmp_path / "bad").write_text(bad)
        with pytest.raises(InvalidRequest, match="no saved conversation"):
            commands(other).run(f"/load {tmp_path / 'bad'}")
    assert other.messages == conversation.messages
    (tmp_path / "messages").write_text('{"messages": [{"role": "user", "content": "hi"}]}')
    commands(other).run(f"/load {tmp_path / 'messages'}")
    assert (other.messages, other.settings) == ([{"role": "user", "content": "hi"}], {"seed": 7})


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("/hlep", "did you mean /help?"),
        ("/set temperatur 1", "did you mean temperature?"),
        ("/set temperature", "give a value"),
        ("/model other-modle", "did you mean other-model?"),
        ("/save", "name a file"),
        ("/load /nowhere/at/all", "can't be read"),
    ],
)
def test_a_command_that_can_t_be_done_says_why(line: str, part: str):
    with pytest.raises(InvalidRequest, match=part.replace("?", r"\?")):
        commands(talked()).run(line)


def test_commands_show_and_change_the_chat():
    conversation = talked()
    run = commands(conversation).run
    assert run("/model").lines == ["* m", "  other-model"]
    run("/model other-model")
    assert conversation.model == "other-model"
    run("/system none")
    assert conversation.system_prompt is None
    assert any(line.startswith("/retry") for line in run("/help").lines)
    assert "10.0 tok/s" in run("/stats").lines[0]
    assert run("/clear").clears
    assert conversation.messages == []
    assert run("/exit").ends


def test_an_answer_is_put_together_with_its_times():
    pieces: list[tuple[str, bool]] = []
    times = iter([0.0, 0.25, 1.0])
    reader = AnswerReader(lambda text, is_reasoning: pieces.append((text, is_reasoning)), clock=lambda: next(times))
    reader.take({"choices": [{"delta": {"role": "assistant"}}]})
    reader.take({"choices": [{"delta": {"reasoning_content": "hm"}}]})
    reader.take({"choices": [{"delta": {"content": "yes"}, "finish_reason": "stop"}]})
    reader.take({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 9,
                                          "prompt_tokens_details": {"cached_tokens": 4}}})  # fmt: skip
    assert pieces == [("hm", True), ("yes", False)]
    assert reader.stats() == AnswerStats(5, 4, 9, 0.25, 1.0, "stop")
