"""POST /v1/embeddings: one vector for each input, made of a decoder's hidden states."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Sequence

from aiohttp import web

from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.requests import EmbedTask

from ..client.embedding import PromptEmbedding
from ..client.gathering import gather_all
from ..http.request_record import RequestRecord
from ..tracing.tracing import GenerationTrace
from .bodies.embeddings import EmbeddingData, EmbeddingRequest, EmbeddingResponse
from .bodies.json_body import JsonBody, json_response
from .bodies.responses import PromptTokensDetails, Usage
from .completions import split_prompts
from .deadline import Deadline
from .serving import SERVING, Serving, request_id, request_label
from .truncation import truncation_of

_BODY = JsonBody(EmbeddingRequest)


async def create_embeddings(request: web.Request) -> web.Response:
    """Embed one text or several."""
    serving = request.app[SERVING]
    body = await _BODY.read(request)
    model = serving.check_model(body.model)
    deadline = serving.deadline_of(request, body)
    inputs = split_prompts(body.input, param="input")
    task = _task(body)
    label = "embd-" + request_label(request, body)
    prompts = await _encode(serving, inputs, body, deadline)
    embeddings = await _embed_all(serving, prompts, task, body, label, deadline)
    _check_dimensions(body, embeddings)
    num_tokens = sum(embedding.num_prompt_tokens for embedding in embeddings)
    num_cached = sum(embedding.num_cached_tokens for embedding in embeddings)
    return json_response(
        EmbeddingResponse(
            id=label,
            created=int(serving.wall_clock()),
            model=model,
            data=[
                EmbeddingData(index=index, embedding=_written(embedding, body))
                for index, embedding in enumerate(embeddings)
            ],
            usage=Usage(
                prompt_tokens=num_tokens,
                completion_tokens=0,
                total_tokens=num_tokens,
                prompt_tokens_details=PromptTokensDetails(cached_tokens=num_cached),
            ),
        ),
        request_id(request),
    )


def _task(body: EmbeddingRequest) -> EmbedTask:
    given = [value for value in (body.normalize, body.use_activation) if value is not None]
    if len(set(given)) > 1:
        raise InvalidRequest("normalize and use_activation contradict each other; send one of them.", param="normalize")
    return EmbedTask(pooling=body.pooling or "last", normalize=given[0] if given else True)


async def _encode(
    serving: Serving, inputs: Sequence[str | list[int]], body: EmbeddingRequest, deadline: Deadline
) -> list[list[int]]:
    """Return each input's token ids, cut as asked for.

    Raises:
        InvalidRequest: an input can't fit, or is malformed.
        DeadlineExceeded: the time was over.
    """
    adds_special = body.add_special_tokens is not False
    truncation = truncation_of(body, most=serving.info.max_model_len, default_side="right")
    prompts: list[list[int]] = []
    async with deadline.bound():
        for each in inputs:
            if isinstance(each, str):
                if truncation is None:
                    token_ids = await serving.encode_prompt(each, add_special_tokens=adds_special)
                else:
                    token_ids = await serving.tokenizer.encode_async(each, add_special_tokens=adds_special)
            else:
                token_ids = each
            prompts.append(token_ids if truncation is None else truncation.cut(token_ids))
            if len(inputs) > 1:
                await asyncio.sleep(0)  # a short text is encoded here and now: others have their turn between
    for prompt in prompts:
        serving.check_prompt_size(prompt, param="input")
    return prompts


async def _embed_all(
    serving: Serving,
    prompts: Sequence[list[int]],
    task: EmbedTask,
    body: EmbeddingRequest,
    label: str,
    deadline: Deadline,
) -> list[PromptEmbedding]:
    """Return the vectors of prompts that share the engine's steps; one that fails ends the others."""
    names = [label] if len(prompts) == 1 else [f"{label}-{index}" for index in range(len(prompts))]
    return await gather_all(
        _embed(serving, prompt, task, body, name, deadline) for prompt, name in zip(prompts, names, strict=True)
    )


async def _embed(
    serving: Serving, prompt: list[int], task: EmbedTask, body: EmbeddingRequest, label: str, deadline: Deadline
) -> PromptEmbedding:
    arrival, reason, num_cached = serving.clock(), "error", 0
    try:
        embedding = await serving.generator.client.embed(
            prompt,
            task,
            label=label,
            priority=body.priority or 0,
            cache_salt=body.cache_salt or "",
            timeout_s=deadline.left_s(),
            adapter=serving.adapter_of(body.model),
        )
        reason, num_cached = "stop", embedding.num_cached_tokens
        return embedding
    except asyncio.CancelledError:
        reason = "abort"
        raise
    finally:
        duration_s = serving.clock() - arrival
        done_s = duration_s if reason == "stop" else None
        record = RequestRecord(
            finish_reasons=(reason,),
            num_prompt_tokens=len(prompt),
            num_cached_tokens=num_cached,
            num_output_tokens=0,
            max_child_output_tokens=0,
            n=1,
            max_tokens=None,
            num_preemptions=0,
            e2e_s=duration_s,
            queue_s=None,
            first_token_s=done_s,
            last_token_s=done_s,
        )
        serving.metrics.request_done(record)
        if serving.tracing is not None:
            serving.tracing.generation_done(
                GenerationTrace(
                    request_id=label,
                    model=serving.check_model(body.model),
                    params=None,
                    record=record,
                    arrived_at_s=serving.wall_clock() - duration_s,
                )
            )


def _check_dimensions(body: EmbeddingRequest, embeddings: Sequence[PromptEmbedding]) -> None:
    asked, size = body.dimensions, len(embeddings[0].vector) // 4
    if asked is not None and asked != size:
        raise InvalidRequest(
            f"This model's embeddings have {size} dimensions; a part of them means nothing by itself, as it was not "
            f"trained for that (Matryoshka). Leave dimensions out; got {asked}.",
            param="dimensions",
        )


def _written(embedding: PromptEmbedding, body: EmbeddingRequest) -> list[float] | str:
    return b64encode(embedding.vector).decode() if body.encoding_format == "base64" else embedding.floats()
