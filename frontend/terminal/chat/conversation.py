"""A conversation: what was said, how requests shall be answered, and what its answers took. No terminal, no server."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from pagewire.ipc.errors import InvalidRequest

from ..address import JsonObject

Message = dict[str, str]

# Fields of requests that may be set, to what they do.
SETTINGS = {
    "temperature": "0: the likeliest token each time; higher: more variety",
    "top_p": "draw from the likeliest tokens of this share together",
    "top_k": "draw from so many likeliest tokens",
    "min_p": "leave out tokens less likely than this share of the likeliest",
    "max_tokens": "longest answer",
    "min_tokens": "shortest answer",
    "seed": "the same answer each time",
    "stop": "text that ends the answer",
    "presence_penalty": "above 0: new words",
    "frequency_penalty": "above 0: fewer repetitions",
    "repetition_penalty": "above 1: fewer repetitions",
    "reasoning_effort": "how long to think: low, medium or high",
    "chat_template_kwargs": 'variables of the template, like {"enable_thinking": false}',
    "ignore_eos": "true: go on to max_tokens",
    "priority": "lower runs first",
}


@dataclass(frozen=True, slots=True)
class AnswerStats:
    """What one answer took.

    Attributes:
        num_prompt_tokens: of the conversation before it.
        num_cached_tokens: of those, found in the prefix cache.
        num_output_tokens: of the answer.
        first_token_s: from the request to its first text.
        total_s: to its end.
        finish_reason: stop, length, ...; None if it was stopped here.
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    first_token_s: float
    total_s: float
    finish_reason: str | None

    def describe(self) -> str:
        """Return one line."""
        decode_s = self.total_s - self.first_token_s
        speed = (
            f", {(self.num_output_tokens - 1) / decode_s:.1f} tok/s"
            if decode_s > 0 and self.num_output_tokens > 1
            else ""
        )
        cached = f" ({self.num_cached_tokens} cached)" if self.num_cached_tokens else ""
        end = {"stop": "", None: ", stopped", "length": ", cut at its longest"}.get(
            self.finish_reason, f", {self.finish_reason}"
        )
        # A server tells of the prompt at the end, which an answer that was stopped has not.
        prompt = f", prompt of {self.num_prompt_tokens}{cached}" if self.num_prompt_tokens else ""
        return f"{self.num_output_tokens} tokens{speed}, first after {self.first_token_s:.2f} s{prompt}{end}"


@dataclass
class Conversation:
    """See the module.

    Attributes:
        model: the name to ask for.
        system_prompt: what the model is told first; None: nothing.
        messages: what was said since, user and assistant in turn.
        settings: fields of requests.
        stats: of each answer, since the start.
    """

    model: str
    system_prompt: str | None = None
    messages: list[Message] = field(default_factory=list)
    settings: JsonObject = field(default_factory=dict)
    stats: list[AnswerStats] = field(default_factory=list)

    def body(self) -> JsonObject:
        """Return the request for the next answer."""
        system = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        return {
            "model": self.model,
            "messages": [*system, *self.messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.settings,
        }

    def say(self, text: str) -> None:
        """Add the user's next message; an open question, whose answer failed or was stopped at once, is dropped."""
        if self.messages and self.messages[-1]["role"] == "user":
            self.messages.pop()
        self.messages.append({"role": "user", "content": text})

    def answered(self, text: str, stats: AnswerStats) -> None:
        """Add an answer, whole or stopped; one without text leaves the question open, for a retry."""
        self.stats.append(stats)
        if text:
            self.messages.append({"role": "assistant", "content": text})

    def take_back_answer(self) -> str:
        """Drop the last answer and return the question that is to be answered anew.

        Raises:
            InvalidRequest: nothing was asked.
        """
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if not self.messages:
            raise InvalidRequest("nothing was asked yet.")
        return self.messages[-1]["content"]

    def take_back_question(self) -> None:
        """Drop the last question with its answer, if there is one."""
        while self.messages and self.messages.pop()["role"] != "user":
            pass

    def set(self, name: str, text: str) -> None:
        """Set a field of requests from its text; "default" leaves it to the model again.

        Raises:
            InvalidRequest: there is no such field.
        """
        if name not in SETTINGS:
            raise InvalidRequest(f"{name} is no setting; there are {', '.join(SETTINGS)}.")
        if text == "default":
            self.settings.pop(name, None)
            return
        try:
            value: Any = msgspec.json.decode(text)  # Any: each field has its own type, which the server checks
        except msgspec.DecodeError:
            value = text
        self.settings[name] = value

    def save(self, path: Path) -> None:
        """Write the conversation: as Markdown to read if the file ends in .md, else as JSON to load.

        Raises:
            InvalidRequest: the file can't be written.
        """
        document = {
            "model": self.model,
            "system_prompt": self.system_prompt,
            "settings": self.settings,
            "messages": self.messages,
        }
        text = self._markdown() if path.suffix == ".md" else msgspec.json.format(msgspec.json.encode(document)).decode()
        try:
            path.write_text(text + "\n", encoding="utf-8")
        except OSError as exc:
            raise InvalidRequest(f"{path} can't be written: {exc.strerror}.") from exc

    def load(self, path: Path) -> None:
        """Go on with a saved conversation; the model stays the one that is asked now.

        Raises:
            InvalidRequest: the file can't be read, or is none of a conversation.
        """
        try:
            saved = msgspec.json.decode(path.read_bytes(), type=_Saved)
        except OSError as exc:
            raise InvalidRequest(f"{path} can't be read: {exc.strerror}.") from exc
        except msgspec.DecodeError as exc:
            raise InvalidRequest(f"{path} is no saved conversation: {exc}.") from exc
        unknown = (saved.settings or {}).keys() - SETTINGS.keys()
        if unknown:
            raise InvalidRequest(f"{path} is no saved conversation: {min(unknown)} is no setting.")
        self.system_prompt = saved.system_prompt
        if saved.settings is not None:  # another program's file says nothing of them
            self.settings = saved.settings
        self.messages = [{"role": each.role, "content": each.content} for each in saved.messages]

    def _markdown(self) -> str:
        system = [f"> {self.system_prompt}"] if self.system_prompt else []
        parts = [f"**{each['role'].capitalize()}:** {each['content']}" for each in self.messages]
        return "\n\n".join([f"# Conversation with {self.model}", *system, *parts])


class _SavedMessage(msgspec.Struct):
    role: Literal["user", "assistant"]
    content: str


class _Saved(msgspec.Struct):
    messages: list[_SavedMessage]
    system_prompt: str | None = None
    settings: JsonObject | None = None
