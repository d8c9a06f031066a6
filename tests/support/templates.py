"""Chats rendered without a helper process: the same jobs, coded and answered by the same code, in this process."""

from __future__ import annotations

from pagewire.frontend.templates.job_runner import JobRunner
from pagewire.frontend.templates.jobs import (
    HEADER,
    Job,
    Loaded,
    LoadTemplate,
    MessageDecoder,
    Refused,
    RenderChat,
    Rendered,
    Reply,
    encode_message,
)
from pagewire.ipc.errors import PagewireError

SPECIAL_TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}

_jobs: MessageDecoder[Job] = MessageDecoder(Job)
_replies: MessageDecoder[Reply] = MessageDecoder(Reply)


class InProcessRenderer:
    """Renders with one template, or with those that chats bring."""

    def __init__(self, source: str | None) -> None:
        self._runner = JobRunner()
        assert isinstance(self._ask(LoadTemplate(source=source, special_tokens=SPECIAL_TOKENS)), Loaded)

    async def render(self, chat: RenderChat) -> str:
        """See `ChatRenderer`."""
        reply = self._ask(chat)
        if isinstance(reply, Refused):
            raise PagewireError.from_info(reply.error)
        assert isinstance(reply, Rendered)
        return reply.text

    def _ask(self, job: Job) -> Reply:
        return _replies.decode(self._runner.answer(_jobs.decode(encode_message(job)[HEADER.size :]))[HEADER.size :])
