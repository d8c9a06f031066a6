"""`LLM.embed`: prompts to vectors, all at once."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pagewire.ipc.errors import RequestError
from pagewire.ipc.requests import EmbedTask

from ..client.engine_client import AsyncEngineClient
from ..client.gathering import gather_all
from ..tokenizer.tokenizer import Tokenizer
from .lora_request import LoRARequest, load_requested
from .progress import Progress
from .prompts import OfflinePrompt


class EmbeddingOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A vector: the model's hidden size many numbers."""

    embedding: list[float]


class EmbeddingRequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """What one prompt was embedded as.

    Attributes:
        num_cached_tokens: prompt tokens whose keys and values came from the prefix cache.
    """

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool
    num_cached_tokens: int


async def embed_prompts(
    client: AsyncEngineClient,
    tokenizer: Tokenizer,
    prompts: Sequence[OfflinePrompt],
    task: EmbedTask,
    labels: Sequence[str],
    progress: Progress,
    lora_requests: Sequence[LoRARequest | None] = (),
) -> list[EmbeddingRequestOutput]:
    """Return the vector of each prompt, in their order; when one fails, the others are aborted.

    Args:
        client: of the engine.
        tokenizer: of its model.
        prompts: what is embedded.
        task: how a vector is made.
        labels: one a prompt, for outputs and logs.
        progress: told of each prompt that is done.
        lora_requests: one a prompt; empty: none has one.

    Raises:
        RequestError: a prompt can't be served; with several prompts the text says which.
        EngineError: the engine failed.
    """
    # One after the other, before anything runs: prompts may share an adapter that nobody has loaded yet.
    adapters = [await load_requested(client, each) for each in lora_requests] or [""] * len(prompts)

    async def embed(index: int, prompt: OfflinePrompt) -> EmbeddingRequestOutput:
        token_ids = list(prompt.token_ids)
        try:
            if prompt.text is not None:
                token_ids = await tokenizer.encode_async(prompt.text, add_special_tokens=True)
            embedding = await client.embed(
                token_ids, task, label=labels[index], cache_salt=prompt.cache_salt, adapter=adapters[index]
            )
        except RequestError as exc:
            if len(prompts) == 1:
                raise
            raise type(exc)(f"Prompt {index}: {exc.message}", param=exc.param) from exc
        progress.request_done(len(token_ids), 0)
        return EmbeddingRequestOutput(
            request_id=labels[index],
            outputs=EmbeddingOutput(embedding=embedding.floats()),
            prompt_token_ids=token_ids,
            finished=True,
            num_cached_tokens=embedding.num_cached_tokens,
        )

    return await gather_all(embed(index, prompt) for index, prompt in enumerate(prompts))
