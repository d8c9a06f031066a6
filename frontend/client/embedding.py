"""The answer to an `EmbedTask`, as its caller sees it."""

from __future__ import annotations

import sys
from array import array

import msgspec

from pagewire.ipc.errors import EngineError, RequestError

from .token_stream import TokenStream


class PromptEmbedding(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt's vector.

    Attributes:
        vector: [hidden_size] float32, little-endian.
        num_prompt_tokens: tokens that it is made of.
        num_cached_tokens: of those, the ones whose keys and values came from the prefix cache.
    """

    vector: bytes
    num_prompt_tokens: int
    num_cached_tokens: int

    def floats(self) -> list[float]:
        """Return the vector's numbers."""
        return read_floats(self.vector)


def read_floats(vector: bytes) -> list[float]:
    """Return the numbers of a little-endian float32 vector."""
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


async def receive_embedding(stream: TokenStream) -> PromptEmbedding:
    """Wait for the vector of an `EmbedTask` that was submitted; one that nobody waits for any more is aborted.

    Raises:
        EngineError: the engine failed.
        RequestError: it was aborted, or can't be served.
    """
    async with stream:
        await stream.ended()
        stream.raise_error()
        embedding = stream.embedding
        if embedding is None:
            raise RequestError("The request was aborted before its embedding was there.")
    request = stream.request
    if not embedding.vector:
        raise EngineError("The engine sent an empty embedding.")
    return PromptEmbedding(
        vector=embedding.vector,
        num_prompt_tokens=len(request.inputs.prompt_token_ids),
        num_cached_tokens=embedding.num_cached_tokens,
    )
