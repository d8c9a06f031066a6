"""The /commands of a chat: what begins with a slash is said to the program, not to the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from pagewire.ipc.errors import InvalidRequest

from ..connection import explain_unknown_model
from .conversation import SETTINGS, Conversation


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows from a command.

    Attributes:
        lines: to print.
        asks_again: the last message shall be answered.
        ends: the chat is over.
        clears: the screen shall be, too.
    """

    lines: Sequence[str] = ()
    asks_again: bool = False
    ends: bool = False
    clears: bool = False


@dataclass(frozen=True, slots=True)
class _Command:
    arguments: str
    summary: str
    run: Callable[[str], Outcome]


class ChatCommands:
    """Runs commands on a conversation.

    Args:
        conversation: what they change.
        model_names: returns the server's models.
    """

    def __init__(self, conversation: Conversation, model_names: Callable[[], list[str]]) -> None:
        self._conversation = conversation
        self._model_names = model_names
        self._commands = {
            "help": _Command("", "show this", self._help),
            "system": _Command("[TEXT|none]", "show or set what the model is told first", self._system),
            "model": _Command("[NAME]", "show the server's models, or ask another one", self._model),
            "set": _Command("[NAME VALUE]", "set how to answer: /set temperature 0.7 (or default)", self._set),
            "retry": _Command("", "answer the last message anew", self._retry),
            "undo": _Command("", "take the last message and its answer back", self._undo),
            "clear": _Command("", "forget the conversation", self._clear),
            "save": _Command("FILE", "write the conversation: .md to read, else JSON", self._save),
            "load": _Command("FILE", "go on with a saved one", self._load),
            "stats": _Command("", "show what the answers took", self._stats),
            "quit": _Command("", "end; so does Ctrl-D", self._quit),
        }
        self._aliases = {"exit": "quit", "bye": "quit", "?": "help", "regenerate": "retry", "params": "set"}

    @property
    def names(self) -> list[str]:
        """Every command with its slash."""
        return [f"/{name}" for name in self._commands]

    def run(self, line: str) -> Outcome:
        """Run one line that begins with a slash.

        Raises:
            InvalidRequest: there is no such command, or it can't be done.
        """
        word, _, argument = line[1:].strip().partition(" ")
        name = self._aliases.get(word.lower(), word.lower())
        command = self._commands.get(name)
        if command is None:
            matches = get_close_matches(name, self._commands, n=1)
            raise InvalidRequest(
                f"there is no command /{word}" + (f"; did you mean /{matches[0]}?" if matches else "; see /help.")
            )
        return command.run(argument.strip())

    def _help(self, _argument: str) -> Outcome:
        rows = [(f"/{name} {each.arguments}".rstrip(), each.summary) for name, each in self._commands.items()]
        width = max(len(left) for left, _ in rows)
        return Outcome(
            [
                *(f"{left:<{width}}  {right}" for left, right in rows),
                'A line that ends in \\ goes on in the next one; """ begins and ends a text of several lines.',
                "Ctrl-C stops an answer; pressed twice at the prompt, it ends the chat.",
            ]
        )

    def _system(self, argument: str) -> Outcome:
        if argument:
            self._conversation.system_prompt = None if argument == "none" else argument
        return Outcome([f"system: {self._conversation.system_prompt or 'nothing'}"])

    def _model(self, argument: str) -> Outcome:
        names = self._model_names()
        if not argument:
            return Outcome([f"{'*' if name == self._conversation.model else ' '} {name}" for name in names])
        if argument not in names:
            raise InvalidRequest(explain_unknown_model(argument, names))
        self._conversation.model = argument
        return Outcome([f"model: {argument}"])

    def _set(self, argument: str) -> Outcome:
        settings = self._conversation.settings
        if not argument:
            width = max(map(len, SETTINGS))
            return Outcome(
                [f"{name:<{width}}  {settings.get(name, 'default')!s:<8} {what}" for name, what in SETTINGS.items()]
            )
        name, _, value = argument.partition(" ")
        if not value.strip():
            raise InvalidRequest(f"give a value: /set {name} VALUE")
        matches = get_close_matches(name, SETTINGS, n=1)
        if name not in SETTINGS and matches:
            raise InvalidRequest(f"{name} is no setting; did you mean {matches[0]}?")
        self._conversation.set(name, value.strip())
        return Outcome([f"{name}: {settings.get(name, 'default')}"])

    def _retry(self, _argument: str) -> Outcome:
        self._conversation.take_back_answer()
        return Outcome(asks_again=True)

    def _undo(self, _argument: str) -> Outcome:
        self._conversation.take_back_question()
        return Outcome([f"{len(self._conversation.messages)} messages are left."])

    def _clear(self, _argument: str) -> Outcome:
        self._conversation.messages.clear()
        return Outcome(["The conversation is forgotten."], clears=True)

    def _save(self, argument: str) -> Outcome:
        path = _file(argument)
        self._conversation.save(path)
        return Outcome([f"Saved to {path}."])

    def _load(self, argument: str) -> Outcome:
        path = _file(argument)
        self._conversation.load(path)
        return Outcome([f"Loaded {len(self._conversation.messages)} messages from {path}."])

    def _stats(self, _argument: str) -> Outcome:
        stats = self._conversation.stats
        if not stats:
            return Outcome(["Nothing was answered yet."])
        total = sum(each.num_output_tokens for each in stats)
        seconds = sum(each.total_s for each in stats)
        return Outcome(
            [
                f"last:  {stats[-1].describe()}",
                f"total: {len(stats)} {'answer' if len(stats) == 1 else 'answers'}, {total} tokens in {seconds:.1f} s"
                + (f", {total / seconds:.1f} tok/s" if seconds > 0 else ""),
            ]
        )

    def _quit(self, _argument: str) -> Outcome:
        return Outcome(ends=True)


def _file(argument: str) -> Path:
    if not argument:
        raise InvalidRequest("name a file.")
    return Path(argument).expanduser()
