"""The chat itself: read a message, answer it, again; or one answer, where nobody types."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from pagewire.ipc.config import EngineConfig
from pagewire.ipc.errors import EngineError, MachineError, PagewireError, RequestError

from ..connection import ServerConnection
from ..open_connection import open_connection
from ..plain_console import plain_console
from ..safe_text import safe_text
from .answer import AnswerReader, answer_plainly
from .commands import ChatCommands, Outcome
from .config import ChatConfig
from .conversation import Conversation
from .markdown_stream import MarkdownStream
from .typed_lines import default_history_file, keeping_history, read_message

_PATH = "/v1/chat/completions"


def run(config: ChatConfig, engine_config: EngineConfig | None) -> int:
    """Chat until the user ends it; return the exit code.

    Args:
        config: of the chat.
        engine_config: of the engine to start, if a model was named.

    Raises:
        StartError: there is no server, no such model, or one answer was asked for and there is none.
    """
    notes = plain_console(stderr=True)
    is_single = config.quick is not None or not sys.stdin.isatty()
    with open_connection(
        config.answer.url,
        config.answer.api_key,
        engine_config,
        lambda line: notes.print(line, style="dim", soft_wrap=True),
    ) as connection:
        conversation = Conversation(
            model=connection.choose_model(config.answer.model_name),
            system_prompt=config.system_prompt,
            settings=config.answer.settings,
        )
        if is_single:
            return _answer_once(connection, conversation, config.quick)
        return Chat(connection, conversation, config).run()


def _answer_once(connection: ServerConnection, conversation: Conversation, quick: str | None) -> int:
    piped = "" if sys.stdin.isatty() else sys.stdin.read()
    message = "\n\n".join(part for part in (quick or "", piped.strip()) if part)
    if not message:
        raise MachineError("there is nothing to answer: the standard input is empty.")
    conversation.say(message)
    is_terminal = sys.stdout.isatty()

    def write(text: str) -> None:
        sys.stdout.write(safe_text(text) if is_terminal else text)
        sys.stdout.flush()

    try:
        answer_plainly(connection, _PATH, conversation.body(), write)
    except (RequestError, EngineError) as exc:
        raise MachineError(exc.message) from exc
    finally:
        write("\n")
    return 0


class Chat:
    """A chat of a person at a terminal.

    Args:
        connection: to the server.
        conversation: how it begins.
        config: how it is shown.
        console: where; the standard output by default.
        read: returns the next message; typed lines by default.
    """

    def __init__(
        self,
        connection: ServerConnection,
        conversation: Conversation,
        config: ChatConfig,
        console: Console | None = None,
        read: Callable[[], str] = read_message,
    ) -> None:
        self._connection = connection
        self._conversation = conversation
        self._config = config
        self._console = console or plain_console(no_color=config.plain or None)
        self._read = read
        self._was_interrupted = False  # at the prompt, since the last message: then the next Ctrl-C is the end
        self._commands = ChatCommands(conversation, connection.model_names)

    def run(self) -> int:
        """Go on until the user ends it; return the exit code."""
        where = "" if self._connection.url == "http://localhost" else f" at {self._connection.url}"
        self._note(f"{self._conversation.model}{where}. /help shows the commands, Ctrl-D ends.")
        history = Path(self._config.history_file).expanduser() if self._config.history_file else default_history_file()
        with keeping_history(history, self._commands.names):
            self._converse()
        return 0

    def _converse(self) -> None:
        while True:
            try:
                message = self._read()
                if message:
                    self._was_interrupted = False
                    self._take(message)
            except EOFError:
                self._console.print()
                return
            except KeyboardInterrupt:
                if self._was_interrupted:
                    self._console.print()
                    return
                self._was_interrupted = True
                self._note("\nCtrl-C once more, or Ctrl-D, ends the chat.")
            except _Ended:
                return

    def _take(self, message: str) -> None:
        """Answer a message or run a command.

        Raises:
            _Ended: the user asked for the end.
        """
        try:
            if message.startswith("/"):
                outcome = self._commands.run(message)
                self._show(outcome)
                if outcome.asks_again:
                    self._answer()
            else:
                self._conversation.say(message)
                self._answer()
        except PagewireError as exc:
            self._console.print(f"error: {safe_text(exc.message)}", style="red")

    def _show(self, outcome: Outcome) -> None:
        if outcome.clears:
            self._console.clear()
        for line in outcome.lines:
            self._console.print(safe_text(line))
        if outcome.ends:
            raise _Ended

    def _answer(self) -> None:
        """Answer what was asked last, until Ctrl-C stops it."""
        reader, is_whole = AnswerReader(_ignore), False
        try:
            # Without a cursor to move, what grows can only be shown by writing on.
            if self._config.plain or not self._console.is_terminal or self._console.is_dumb_terminal:
                reader = AnswerReader(self._write)
                self._connection.stream(_PATH, self._conversation.body(), reader.take)
                self._console.print()
            else:
                with MarkdownStream(self._console) as stream:
                    reader = AnswerReader(stream.add)
                    self._connection.stream(_PATH, self._conversation.body(), reader.take)
            is_whole = True
        except KeyboardInterrupt:
            pass  # what came until now is the answer; a second one by the same hand costs no conversation
        finally:
            stats = reader.stats()
            if reader.text or is_whole:
                self._conversation.answered(reader.text, stats)
        self._note(stats.describe())

    def _write(self, text: str, is_reasoning: bool) -> None:
        self._console.print(safe_text(text), end="", style="dim" if is_reasoning else "", soft_wrap=True)

    def _note(self, line: str) -> None:
        self._console.print(safe_text(line), style="dim", soft_wrap=True)


class _Ended(Exception):
    """The user asked for the end."""


def _ignore(_text: str, _is_reasoning: bool) -> None:
    """Take the text of an answer that has not begun."""
