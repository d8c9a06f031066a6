"""Jobs -> replies, in the process that renders chat templates: whatever a template does wrong is a refusal."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from pagewire.ipc.errors import InvalidRequest, PagewireError

from ..text.chat_template import ChatTemplate
from .jobs import Job, Loaded, LoadTemplate, Refused, RenderChat, Rendered, Reply, encode_message
from .limits import MEMORY_LIMIT_BYTES

_MAX_COMPILED = 16  # templates of requests; clients that send their own mostly send the same one
_REFUSAL_CHARS = 2000  # a template's own words may be as long as its messages


class JobRunner:
    """Answers jobs with one loaded template, and with those that jobs bring."""

    def __init__(self) -> None:
        self._special_tokens: Mapping[str, str] = {}
        self._loaded = ChatTemplate(None)
        self._compiled: OrderedDict[str, ChatTemplate] = OrderedDict()

    def answer(self, job: Job) -> bytes:
        """Return the encoded reply to a job; whatever a template does wrong is a refusal."""
        try:
            return encode_message(self._do(job))
        except PagewireError as exc:
            return _refusal(exc)
        except MemoryError:
            self._compiled.clear()  # what others have brought may be what fills it
            return _refusal(
                InvalidRequest(
                    f"the chat template needs more than {MEMORY_LIMIT_BYTES >> 20} MiB of memory for these messages",
                    param="messages",
                )
            )

    def _do(self, job: Job) -> Reply:
        match job:
            case LoadTemplate():
                self._special_tokens = job.special_tokens
                self._loaded = ChatTemplate(
                    job.source, special_tokens=job.special_tokens, content_format=job.content_format
                )
                return Loaded()
            case RenderChat():
                template = self._loaded if job.source is None else self._compile(job.source)
                return Rendered(
                    text=template.render(
                        job.messages,
                        add_generation_prompt=job.add_generation_prompt,
                        continue_final_message=job.continue_final_message,
                        tools=job.tools,
                        documents=job.documents,
                        template_arguments=job.template_arguments,
                    )
                )

    def _compile(self, source: str) -> ChatTemplate:
        template = self._compiled.pop(source, None)
        if template is None:
            template = ChatTemplate(source, special_tokens=self._special_tokens, is_optimized=False)
        self._compiled[source] = template
        if len(self._compiled) > _MAX_COMPILED:
            self._compiled.popitem(last=False)
        return template


def _refusal(error: PagewireError) -> bytes:
    message = error.message[:_REFUSAL_CHARS].encode("utf-8", "replace").decode()
    return encode_message(Refused(error=msgspec.structs.replace(error.to_info(), message=message)))
