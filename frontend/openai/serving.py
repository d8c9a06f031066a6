"""What every handler needs: the engine, the model's text side, defaults and figures, passed as one value."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from aiohttp import web

from pagewire.checkpoint.generation_config import GenerationDefaults
from pagewire.ipc.adapters import Adapter
from pagewire.ipc.errors import ContextTooLong, InvalidRequest
from pagewire.ipc.outputs import EngineInfo

from ..answers.answer_formats import AnswerFormats
from ..http.access.admission import Admission
from ..http.metrics import Metrics
from ..http.sse import StreamTimes
from ..templates.renderer import ChatRenderer
from ..text.generation import TextGenerator
from ..tokenizer.tokenizer import Tokenizer
from ..tracing.tracing import Tracing
from .bodies.embeddings import EmbeddingRequest
from .bodies.schema import GenerationRequest
from .deadline import Deadline
from .errors import ModelNotFound
from .truncation import MAX_TOKEN_CHARS


@dataclass(frozen=True, kw_only=True)
class Serving:
    """One served model.

    Attributes:
        info: the engine's facts; names[0] is reported as `model`, all are answered to.
        generator: prompts -> text.
        tokenizer: the model's.
        chats: makes prompts of chats.
        defaults: sampling values for requests that give none.
        metrics: counts what is done.
        admission: the door for new requests.
        times: the limits of connections.
        request_timeout_s: the most that a request may take, and what one gets that names no time; None for no limit.
        formats: how the model writes calls of tools and reasoning.
        tracing: who is told of each request; None: nobody.
        response_role: the role of answers to chats.
        forces_usage: every stream brings its usage, in each chunk.
        names_ids: name tokens by their ids in logprobs, unless a request says otherwise.
        log_requests: log each request's parameters.
        started_at: Unix time of the start, in seconds.
        clock: seconds, monotonic. wall_clock: Unix time.
    """

    info: EngineInfo
    generator: TextGenerator
    tokenizer: Tokenizer
    chats: ChatRenderer
    defaults: GenerationDefaults
    metrics: Metrics
    admission: Admission = field(default_factory=Admission)
    times: StreamTimes = field(default_factory=StreamTimes)
    request_timeout_s: float | None = None
    forces_usage: bool = False
    names_ids: bool = False
    log_requests: bool = False
    formats: AnswerFormats = field(default_factory=AnswerFormats)
    tracing: Tracing | None = None
    response_role: str = "assistant"
    started_at: int = field(default_factory=lambda: int(time.time()))
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The LoRA adapters that requests may name as their model now."""
        return self.generator.client.adapters

    def check_model(self, model: str | None) -> str:
        """Return the name to report for a request's `model`: the served one's, if none is given, or an adapter's.

        Raises:
            ModelNotFound: another model is asked for.
        """
        names = self.info.served_model_names
        if model and model not in names and not self.adapter_of(model):
            raise ModelNotFound(model)
        return model or names[0]

    def adapter_of(self, model: str | None) -> str:
        """Return the LoRA adapter that a request's `model` names; empty: it names the served model, or nothing."""
        if not model or model in self.info.served_model_names:
            return ""
        return model if any(adapter.name == model for adapter in self.adapters) else ""

    def names_tokens_by_id(self, body: GenerationRequest) -> bool:
        """Whether a request's logprobs name tokens by their ids."""
        asked = body.return_tokens_as_token_ids
        return self.names_ids if asked is None else asked

    def deadline_of(self, request: web.Request, body: GenerationRequest | EmbeddingRequest) -> Deadline:
        """Return when a request's time is over.

        Raises:
            InvalidRequest: its `timeout` is no time.
        """
        timeout_s = body.timeout
        if timeout_s is not None and not 0 < timeout_s < math.inf:
            raise InvalidRequest(f"timeout must be a positive number of seconds; got {timeout_s}.", param="timeout")
        given = [limit_s for limit_s in (timeout_s, self.request_timeout_s) if limit_s is not None]
        return Deadline(request[ARRIVAL] + min(given) if given else None, self.clock)

    def check_prompt_size(self, prompt: str | Sequence[int], *, param: str = "prompt") -> None:
        """Refuse a prompt that can't fit the context whatever its tokens are, before time is spent on it.

        Raises:
            ContextTooLong: it is too long by far; what is too long by little is found when it is tokenized.
        """
        limit = self.info.max_model_len
        most, unit = (limit * MAX_TOKEN_CHARS, "characters") if isinstance(prompt, str) else (limit, "tokens")
        if len(prompt) > most:
            raise ContextTooLong(
                f"This model's maximum context length is {limit} tokens. However, your prompt has {len(prompt)} "
                f"{unit}, which can't fit. Please shorten the prompt.",
                param=param,
            )

    async def encode_prompt(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return a prompt's token ids; of one that can't fit no more is encoded than it takes to know.

        Raises:
            ContextTooLong: it is too long by far; what is too long by little is found later.
            InvalidRequest: the text is no Unicode.
        """
        self.check_prompt_size(text)
        limit = self.info.max_model_len
        num_tokens = await self.tokenizer.count_beyond(text, limit)
        if num_tokens is not None:
            raise ContextTooLong(
                f"This model's maximum context length is {limit} tokens. However, your prompt has {num_tokens} tokens "
                f"and more in its {len(text)} characters. Please shorten the prompt.",
                param="prompt",
            )
        return await self.tokenizer.encode_async(text, add_special_tokens=add_special_tokens)


SERVING = web.AppKey("serving", Serving)
REQUEST_ID = web.RequestKey("request_id", str)
ARRIVAL = web.RequestKey("arrival", float)  # by the serving's clock


def request_id(request: web.Request) -> str:
    """Return the id that the client chose for this HTTP request, or the one made for it. A label, never a key."""
    return request[REQUEST_ID]


def request_label(request: web.Request, body: GenerationRequest | EmbeddingRequest) -> str:
    """Return the id to build the response's id of: the body's `request_id`, else the HTTP request's."""
    if body.request_id is None:
        return request_id(request)
    if not is_safe_id(body.request_id):
        raise InvalidRequest(
            f"request_id must be 1 to {MAX_ID_CHARS} letters, digits or any of '._:-'.", param="request_id"
        )
    return body.request_id


def is_safe_id(text: str) -> bool:
    """Whether a client's id can be logged, and sent back in headers and in every chunk."""
    return _SAFE_ID.fullmatch(text) is not None


MAX_ID_CHARS = 128
_SAFE_ID = re.compile(rf"[A-Za-z0-9._:\-]{{1,{MAX_ID_CHARS}}}")
