"""Prompts -> token ids -> requests -> text: the one place that every endpoint and `LLM` go through.

`TextGenerator` renders prompts to ids and starts requests; `Generation` is one request's answer as text.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from types import TracebackType

import msgspec

from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.outputs import TokenDelta, TokenLogprobs
from pagewire.ipc.requests import AddRequest
from pagewire.ipc.sampling_params import SamplingParams

from ..client.engine_client import AsyncEngineClient
from ..client.token_stream import TokenStream
from ..offline.outputs import RequestMetrics
from ..tokenizer.tokenizer import Tokenizer
from .beam_search import BeamSearchParams
from .output import TextChunk as TextChunk  # exported: readers of a Generation get them
from .output import TextOutput


class TextRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is valid and ready to be sent, once.

    Attributes:
        prompt: the text; None if token ids were given.
        params: as the user gave them.
        add_request: the same in the engine's terms.
    """

    prompt: str | None
    params: SamplingParams
    add_request: AddRequest


class TextGenerator:
    """Asks an engine for text.

    Args:
        client: attached to the engine.
        tokenizer: of the engine's model.
    """

    def __init__(self, client: AsyncEngineClient, tokenizer: Tokenizer) -> None:
        self.client = client
        self.tokenizer = tokenizer

    async def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        label: str = "",
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
        add_special_tokens: bool = True,
        adapter: str = "",
    ) -> Generation:
        """Start a request; the answer comes by iterating over what is returned.

        Args:
            prompt: text or token ids.
            params: how to draw, and the text options.
            label: the user's own id for the request, for logs alone.
            priority: lower runs first, under the priority policy.
            cache_salt: requests of different salts share no cached blocks.
            timeout_s: seconds after which the request fails with `DeadlineExceeded`, from when its prompt is tokenized;
                None for no limit.
            add_special_tokens: put the begin-of-text token in front of a text, if the model wants one. False for what
                a chat template rendered.
            adapter: name of the LoRA adapter that changes the weights; empty: none.

        Raises:
            InvalidRequest: a value is out of range, or the prompt does not fit. Nothing was sent.
            EngineDead: the engine is gone.
        """
        arrival = Arrival()
        text: str | None = None
        if isinstance(prompt, str):
            text = prompt
            prompt = await self.tokenizer.encode_async(prompt, add_special_tokens=add_special_tokens)
        request = self.prepare(
            prompt,
            params,
            bad_words_token_ids=await self.spell_bad_words(params.bad_words),
            prompt_text=text,
            label=label,
            priority=priority,
            cache_salt=cache_salt,
            timeout_s=timeout_s,
            adapter=adapter,
        )
        return self.submit(request, arrival)

    def prepare(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        bad_words_token_ids: Sequence[Sequence[int]] = (),
        prompt_text: str | None = None,
        label: str = "",
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
        adapter: str = "",
    ) -> TextRequest:
        """Check a request and turn it into the engine's terms, without sending it; errors as `generate`.

        `bad_words_token_ids` is what `spell_bad_words` makes of those of `params`, once for many prompts.
        """
        task = self.client.resolve(params, bad_words_token_ids=bad_words_token_ids)
        return TextRequest(
            prompt=prompt_text,
            params=params,
            add_request=self.client.make_request(
                prompt_token_ids,
                task,
                label=label,
                priority=priority,
                cache_salt=cache_salt,
                timeout_s=timeout_s,
                adapter=adapter,
            ),
        )

    def submit(
        self, request: TextRequest, arrival: Arrival | None = None, *, beams: BeamSearchParams | None = None
    ) -> Generation:
        """Send a prepared request, once; with `beams`, to be answered by a beam search of `params.n` beams."""
        arrival = arrival or Arrival()
        if beams is not None:
            from .beam_generation import BeamGeneration  # which is a Generation

            return BeamGeneration(self.client, self.tokenizer, request, beams, arrival)
        return Generation(request, self.client.submit(request.add_request), self.tokenizer, arrival)

    async def spell_bad_words(self, bad_words: Sequence[str]) -> list[list[int]]:
        """Return the token sequences that spell the words, with and without a space in front.

        Raises:
            InvalidRequest: a word has no tokens.
        """
        if not bad_words:
            return []
        return await self.tokenizer.in_thread(lambda: _spell_bad_words(self.tokenizer, bad_words))


def _spell_bad_words(tokenizer: Tokenizer, bad_words: Sequence[str]) -> list[list[int]]:
    newline = tokenizer.encode("\n", add_special_tokens=False)

    def spell_within_text(text: str) -> list[int]:
        # SentencePiece puts a space of its own in front of a text and can't spell a word without one there; after a
        # line break, whose tokens are taken off again, words are spelled as anywhere else.
        token_ids = tokenizer.encode(f"\n{text}", add_special_tokens=False)
        if token_ids[: len(newline)] == newline:
            return token_ids[len(newline) :]
        return tokenizer.encode(text, add_special_tokens=False)

    sequences: dict[tuple[int, ...], None] = {}
    for word in bad_words:
        bare = word.lstrip(" ") or word
        for token_ids in (spell_within_text(bare), spell_within_text(f" {bare}")):
            if not token_ids:
                raise InvalidRequest(f"bad_words contains {word!r}, which has no tokens.", param="bad_words")
            sequences[tuple(token_ids)] = None
    return [list(token_ids) for token_ids in sequences]


class Generation:
    """One request's answer: an async iterator of `TextChunk`s, those of several children mixed.

    Iteration ends after the last child's last chunk, or raises what the request failed of. Leaving it early aborts the
    request: by `close`, at the end of `async with`, or when it is dropped. A cancelled `__anext__` loses nothing.

    Attributes:
        prompt: the text; None if token ids were given.
        params: as the user gave them.
    """

    def __init__(self, request: TextRequest, stream: TokenStream, tokenizer: Tokenizer, arrival: Arrival) -> None:
        self.prompt = request.prompt
        self.params = request.params
        self._stream = stream
        self._arrival = arrival
        self._outputs = [
            TextOutput(tokenizer, self.prompt_token_ids, request.params, index=index)
            for index in range(request.params.n)
        ]

    @property
    def request_id(self) -> int:
        """The request's id within this client."""
        return self._stream.request.request_id

    @property
    def prompt_token_ids(self) -> list[int]:
        """The prompt as it was sent."""
        return self._stream.request.inputs.prompt_token_ids

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache; known from the first chunk on, 0 before."""
        return 0 if self._stream.start is None else self._stream.start.num_cached_tokens

    @property
    def prompt_logprobs(self) -> list[TokenLogprobs] | None:
        """One entry a prompt token but the first, known from the first chunk on; None if they were not asked for."""
        if self.params.prompt_logprobs is None or self._stream.start is None:
            return None
        return self._stream.start.prompt_logprobs

    @property
    def queue_s(self) -> float | None:
        """Seconds from the engine's receipt to the first schedule, known from the first chunk on."""
        return None if self._stream.start is None else self._stream.start.queue_s

    @property
    def num_preemptions(self) -> int:
        """How often the request's blocks were taken and recomputed, known at its end."""
        return 0 if self._stream.end is None else self._stream.end.num_preemptions

    @property
    def num_draft_tokens(self) -> int:
        """Tokens that were guessed ahead and checked, known at the end."""
        return 0 if self._stream.end is None else self._stream.end.num_draft_tokens

    @property
    def num_accepted_tokens(self) -> int:
        """Of those, the ones that were right."""
        return 0 if self._stream.end is None else self._stream.end.num_accepted_tokens

    @property
    def metrics(self) -> RequestMetrics:
        """When things happened to the request, as far as it got."""
        stream, arrival = self._stream, self._arrival
        first_token_s = arrival.seconds_until(stream.first_token_at)
        scheduled_s: float | None = None
        if stream.start is not None:
            scheduled_s = stream.submitted_at - arrival.monotonic_s + stream.start.queue_s
            if first_token_s is not None:
                scheduled_s = min(scheduled_s, first_token_s)
        return RequestMetrics(
            arrival_timestamp=arrival.timestamp_s,
            first_scheduled_time=scheduled_s,
            time_in_queue=scheduled_s,
            first_token_time=first_token_s,
            last_token_time=arrival.seconds_until(stream.last_token_at),
            finished_time=arrival.seconds_until(stream.ended_at),
            num_preemptions=self.num_preemptions,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
        )

    async def accepted(self) -> None:
        """Wait until the engine took the request.

        Raises:
            PagewireError: it was refused, or failed before it was taken.
        """
        await self._stream.accepted()

    async def ended(self) -> None:
        """Wait for the engine's end without reading: the text is then made in one go.

        Not for requests with stop strings: nobody would see them, and the engine would go on.
        """
        assert not self.params.stop_strings
        await self._stream.ended()

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> TextChunk:
        return self._to_text(await self._stream.__anext__())

    def take(self) -> TextChunk | None:
        """Return the chunk that waits longest, as iteration does; None if none waits now."""
        delta = self._stream.take()
        return None if delta is None else self._to_text(delta)

    def listen(self, listener: Callable[[bool], None] | None) -> None:
        """Have `listener` called whenever there may be something to `take`; see `TokenStream.listen`."""
        self._stream.listen(listener)

    @property
    def has_begun(self) -> bool:
        """Whether the prompt is computed and the first output there."""
        return self._stream.start is not None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes; what waits can still be taken."""
        return self._stream.end is not None

    def raise_error(self) -> None:
        """Raise what the request failed of, if it did."""
        self._stream.raise_error()

    def _to_text(self, delta: TokenDelta) -> TextChunk:
        chunk = self._outputs[delta.child].push(delta)
        if chunk.finish_reason is not None and delta.finish_reason is None:
            self._stream.end_child(delta.child)  # by a stop string, which the engine does not see
        return chunk

    def close(self) -> None:
        """Abort the request if it still runs. Call it on the event loop's thread."""
        self._stream.close()

    async def aclose(self) -> None:
        """The same, for `contextlib.aclosing`."""
        self.close()

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Arrival:
    """When a request came in: the zero of its metrics."""

    def __init__(self) -> None:
        self.monotonic_s = asyncio.get_running_loop().time()
        self.timestamp_s = time.time()

    def seconds_until(self, monotonic_s: float | None) -> float | None:
        """Return the time from the arrival to another instant of the loop's clock."""
        return None if monotonic_s is None else monotonic_s - self.monotonic_s
