"""One chat on its way through the engine, whichever dialect asked: from a valid body to the parts of its answers.

The chat endpoint, the responses endpoint and the messages endpoint are writers of the same thing: they make a
`ChatRequest`, enter `start_chat`, and write what `ChatCall.read` returns for each chunk, or what `ChatCall.collect`
returns at the end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import msgspec
from aiohttp import web
from msgspec import UNSET

from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.outputs import TokenLogprobs
from pagewire.ipc.sampling_params import SamplingParams

from ..answers.answer_formats import Thinking
from ..answers.collector import merge_parts
from ..answers.parts import AnswerPart, ReasoningPart, TextPart, ToolCallPart
from ..answers.plan import AnswerPlan, plan_answer
from ..answers.tools import ToolUse
from ..text.generation import TextChunk
from .bodies.responses import CompletionTokensDetails, Usage
from .bodies.schema import ChatRequest, refuse_unsupported
from .call import Answer, Call, start_call
from .functions import FINISH_REASON as FUNCTION_CALL
from .functions import functions_as_tools
from .messages import render_messages
from .params import check_stream_options, sampling_params
from .serving import Serving
from .tool_use import read_tool_use


class ChatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of an answer that is not streamed.

    Attributes:
        parts: what a stream would have brought, in the same order; neighbours of one kind, and what belongs to one
            call, are one part.
    """

    parts: list[AnswerPart]
    finish_reason: str
    stop_reason: str | int | None
    token_ids: list[int]
    logprobs: list[TokenLogprobs]

    @property
    def text(self) -> str:
        """What is for the user, without reasoning and calls."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def reasoning(self) -> str:
        """Empty if there is none, or it is not to be shown."""
        return "".join(part.text for part in self.parts if isinstance(part, ReasoningPart))

    @property
    def calls(self) -> list[ToolCallPart]:
        """The calls of tools, each whole: its arguments are JSON, as far as the model kept to it."""
        return [part for part in self.parts if isinstance(part, ToolCallPart)]


class ChatCall:
    """A chat that runs. Make it with `start_chat`.

    Attributes:
        call: its generation (one prompt, n children), its figures.
        body: what was asked for.
        params: how it is drawn.
        label: the id of the answer.
        model: the name to report.
        created: Unix time of the answer.
        plan: how its answers are read.
        answers_in_functions: whether it was asked with `functions` rather than tools.
    """

    def __init__(
        self,
        call: Call,
        body: ChatRequest,
        params: SamplingParams,
        *,
        label: str,
        model: str,
        created: int,
        plan: AnswerPlan,
        reasoning_end_id: int | None = None,
        answers_in_functions: bool = False,
    ) -> None:
        self.call = call
        self.body = body
        self.params = params
        self.label = label
        self.model = model
        self.created = created
        self.plan = plan
        self.answers_in_functions = answers_in_functions
        self._readers = [plan.make_reader() for _ in range(params.n)]
        self._has_calls = [False] * params.n
        self._reasoning_end_id = reasoning_end_id
        self._num_reasoning_tokens = 0
        self._num_undecided = [0] * params.n  # tokens of what may become an opening tag

    def read(self, chunk: TextChunk) -> list[AnswerPart]:
        """Return the parts that a chunk decides; with a child's last chunk, all that was held back.

        Every chunk has to be read, in order, once.
        """
        reader = self._readers[chunk.index]
        was_reasoning, had_reasoned = reader.is_reasoning, reader.has_reasoned
        parts = reader.push(chunk.text)
        if was_reasoning or reader.has_reasoned > had_reasoned:
            self._num_reasoning_tokens += self._num_reasoning(chunk.token_ids, goes_on=reader.is_reasoning)
            self._num_reasoning_tokens += self._num_undecided[chunk.index]
            self._num_undecided[chunk.index] = 0
        elif not had_reasoned:
            self._num_undecided[chunk.index] += len(chunk.token_ids)
        if chunk.finish_reason is not None:
            parts += reader.finish()
        if any(isinstance(part, ToolCallPart) for part in parts):
            self._has_calls[chunk.index] = True
        return parts

    def finish_reason(self, index: int, reason: str) -> str:
        """Return why a child's answer ended, once all its chunks are read.

        `reason` is the engine's: stop, length or abort. An answer with calls that came to its own end says
        "tool_calls", or "function_call" where it was asked with functions; one whose tool was named by the request says
        "stop", as OpenAI's service does.
        """
        if reason == "stop" and self._has_calls[index] and self.plan.tools.mode != "named":
            return FUNCTION_CALL if self.answers_in_functions else "tool_calls"
        return reason

    def usage(self) -> Usage:
        """Return what the chat cost so far; where the model reasons, how much of it was reasoning."""
        usage = self.call.usage()
        if self.plan.thinking is Thinking.NONE:
            return usage
        details = (
            CompletionTokensDetails() if usage.completion_tokens_details is UNSET else usage.completion_tokens_details
        )
        return msgspec.structs.replace(
            usage,
            completion_tokens_details=msgspec.structs.replace(details, reasoning_tokens=self._num_reasoning_tokens),
        )

    async def collect(self) -> list[ChatAnswer]:
        """Return the answers of all children, when all have ended.

        Raises:
            PagewireError: why the chat failed.
        """
        parts: list[list[AnswerPart]] = [[] for _ in range(self.params.n)]
        [answers] = await self.call.collect(lambda chunk: parts[chunk.index].extend(self.read(chunk)))
        return [self._whole(index, answer, parts[index]) for index, answer in enumerate(answers)]

    def _whole(self, index: int, answer: Answer, parts: list[AnswerPart]) -> ChatAnswer:
        return ChatAnswer(
            parts=merge_parts(parts),
            finish_reason=self.finish_reason(index, answer.finish_reason),
            stop_reason=answer.stop_reason,
            token_ids=answer.token_ids,
            logprobs=answer.logprobs,
        )

    def _num_reasoning(self, token_ids: list[int], *, goes_on: bool) -> int:
        """Return how many tokens are reasoning: up to the one that closes the block; all, if that takes several."""
        end_id = self._reasoning_end_id
        if goes_on or end_id is None or end_id not in token_ids:
            return len(token_ids)
        return token_ids.index(end_id) + 1


@asynccontextmanager
async def start_chat(serving: Serving, request: web.Request, body: ChatRequest, label: str) -> AsyncIterator[ChatCall]:
    """Check a chat, render its prompt, start it; leaving the context aborts what still runs.

    Args:
        serving: the served model.
        request: for the time of its arrival.
        body: as the chat endpoint takes it; other dialects translate into it.
        label: the id of the answer, like "chatcmpl-...".

    Raises:
        InvalidRequest: the body asks for what can't be served; nothing runs then.
        ModelNotFound: another model is asked for.
        DeadlineExceeded: the time was over before the prompt was tokenized.
        EngineDead: the engine is gone.
    """
    refuse_unsupported(body)
    answers_in_functions, body = bool(body.functions), functions_as_tools(body)
    _check_max_completion_tokens(body)
    model = serving.check_model(body.model)
    deadline = serving.deadline_of(request, body)
    check_stream_options(body)
    params = sampling_params(
        body,
        serving.defaults,
        max_tokens=_first(body.max_completion_tokens, body.max_tokens, serving.defaults.max_tokens),
        logprobs=_num_logprobs(body, serving),
        prompt_logprobs=body.prompt_logprobs,
    )
    tools = read_tool_use(body)
    async with deadline.bound():
        prompt = await render_messages(serving.chats, body)
    plan = _plan(serving, body, tools, params, prompt)
    params = msgspec.structs.replace(
        params,
        structured_outputs=plan.grammar,
        skip_special_tokens=params.skip_special_tokens and not plan.keeps_special_tokens,
    )
    async with start_call(
        serving,
        [prompt],
        params,
        request=body,
        label=label,
        add_special_tokens=bool(body.add_special_tokens),
        deadline=deadline,
    ) as call:
        with _naming_tools(plan.tools):
            yield ChatCall(
                call,
                body,
                params,
                label=label,
                model=model,
                created=int(serving.wall_clock()),
                plan=plan,
                reasoning_end_id=serving.formats.reasoning_end_id,
                answers_in_functions=answers_in_functions,
            )


@contextmanager
def _naming_tools(tools: ToolUse) -> Iterator[None]:
    """Report what the engine finds wrong with a grammar that was made of tools as the tools' own fault."""
    try:
        yield
    except InvalidRequest as error:
        if not tools.is_forced or error.param != "structured_outputs":
            raise
        raise InvalidRequest(f"The parameters of the tools can't be kept to. {error.message}", param="tools") from error


def _plan(serving: Serving, body: ChatRequest, tools: ToolUse, params: SamplingParams, prompt: str) -> AnswerPlan:
    return plan_answer(
        serving.formats,
        tools,
        params.structured_outputs,
        prompt,
        begins_answer=not body.continue_final_message and body.add_generation_prompt is not False,
        shows_reasoning=body.include_reasoning is not False,
    )


def _num_logprobs(body: ChatRequest, serving: Serving) -> int | None:
    if body.top_logprobs is not None:
        most = serving.info.vocab_size if serving.info.max_logprobs == -1 else serving.info.max_logprobs
        if not -1 <= body.top_logprobs <= most:
            raise InvalidRequest(
                f"top_logprobs must be from 0 to {most}, or -1 for all; got {body.top_logprobs}.", param="top_logprobs"
            )
        if body.top_logprobs and not body.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true.", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _check_max_completion_tokens(body: ChatRequest) -> None:
    if body.max_completion_tokens is not None and body.max_completion_tokens < 1:
        raise InvalidRequest(
            f"max_completion_tokens must be at least 1, or null; got {body.max_completion_tokens}.",
            param="max_completion_tokens",
        )


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
