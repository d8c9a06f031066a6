"""A beam search in the engine: every step asks for one token behind each beam, whose prompt the prefix cache has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import msgspec

from pagewire.ipc.errors import DeadlineExceeded, InvalidRequest, RequestError
from pagewire.ipc.outputs import FinishReason, TokenDelta, TokenLogprobs
from pagewire.ipc.requests import AddRequest, GenerateTask
from pagewire.ipc.sampling_params import SamplingParams

from ..client.engine_client import AsyncEngineClient
from ..client.token_stream import TokenStream
from ..offline.outputs import RequestMetrics
from ..tokenizer.tokenizer import Tokenizer
from .beam_search import Beam, BeamSearch, BeamSearchParams
from .generation import Arrival, Generation, TextRequest
from .output import TextChunk


class BeamGeneration(Generation):
    """The answers of a beam search, each as one chunk when all are found; the best answer is child 0.

    It is read like any generation, but can't be streamed: which beam wins is known at the end.

    Args:
        client: attached to the engine.
        tokenizer: of the engine's model.
        request: a prepared request with `beam_width` children; its text options and its logprobs count.
        beams: how to search.
        arrival: when the request came in.

    Raises:
        InvalidRequest: the engine gives fewer logprobs than the search needs.
        EngineDead: the engine is gone.
    """

    def __init__(
        self,
        client: AsyncEngineClient,
        tokenizer: Tokenizer,
        request: TextRequest,
        beams: BeamSearchParams,
        arrival: Arrival | None = None,
    ) -> None:
        arrival = arrival or Arrival()
        self._client = client
        self._origin = request.add_request
        self._beam_params = beams
        self._task = _step_task(client, request.params, beams)
        self._clock = asyncio.get_running_loop().time
        self._deadline = None if self._origin.timeout_s is None else self._clock() + self._origin.timeout_s
        self._streams: list[TokenStream] = []
        self._chunks: Iterator[TextChunk] | None = None
        self._done_at: float | None = None
        first = self._step_request([], is_first=True)
        super().__init__(msgspec.structs.replace(request, add_request=first), client.submit(first), tokenizer, arrival)

    @property
    def metrics(self) -> RequestMetrics:
        """When things happened; answers come all at once at the end."""
        times = super().metrics
        if self._done_at is None:
            return msgspec.structs.replace(times, finished_time=None)
        done_s = self._arrival.seconds_until(self._done_at)
        return msgspec.structs.replace(times, last_token_time=done_s, finished_time=done_s)

    async def search(self) -> list[Beam]:
        """Return the answers, best first. Once.

        Raises:
            PagewireError: what a step failed of.
        """
        info = self._client.info
        num_prompt_tokens = len(self.prompt_token_ids)
        assert isinstance(self._origin.task, GenerateTask)
        search = BeamSearch(
            self._beam_params,
            num_prompt_tokens=num_prompt_tokens,
            max_tokens=min(self._beam_params.max_tokens, info.max_model_len - num_prompt_tokens),
            end_token_ids=(*self._origin.task.eos_token_ids, *self._origin.task.stop_token_ids),
        )
        try:
            search.advance([await self._read(self._stream)])
            while not search.is_done:
                search.advance(await self._step(search.beams))
        finally:
            self._close_streams()
        self._done_at = self._clock()
        return search.best()

    async def ended(self) -> None:
        """Search, for readers that wait for the end first."""
        if self._chunks is None:
            self._chunks = iter([self._to_chunk(index, beam) for index, beam in enumerate(await self.search())])

    async def __anext__(self) -> TextChunk:
        await self.ended()
        assert self._chunks is not None
        chunk = next(self._chunks, None)
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    def close(self) -> None:
        """Abort what runs."""
        self._close_streams()
        super().close()

    def _close_streams(self) -> None:
        for stream in self._streams:
            stream.close()
        self._streams = []

    async def _step(self, beams: Sequence[Beam]) -> list[TokenLogprobs]:
        # All at once: they share the engine's step.
        requests = [self._step_request(beam.token_ids) for beam in beams]
        self._streams = [self._client.submit(request) for request in requests]
        return [await self._read(stream) for stream in self._streams]

    async def _read(self, stream: TokenStream) -> TokenLogprobs:
        entries = [entry async for delta in stream for entry in delta.logprobs]
        if not entries:
            raise RequestError("The request was aborted before its beam search was over.")
        assert len(entries) == 1, "a step draws one token"
        return entries[0]

    def _step_request(self, token_ids: Sequence[int], *, is_first: bool = False) -> AddRequest:
        origin = self._origin
        left_s = None if self._deadline is None else self._deadline - self._clock()
        if left_s is not None and left_s <= 0:
            raise DeadlineExceeded("The request's time was over before its beam search was.")
        task = self._task
        if not is_first:
            task = msgspec.structs.replace(
                task, sampling=msgspec.structs.replace(task.sampling, num_prompt_logprobs=None)
            )
        return self._client.make_request(
            [*origin.inputs.prompt_token_ids, *token_ids],
            task,
            label=origin.label,
            priority=origin.priority,
            cache_salt=origin.cache_salt,
            timeout_s=left_s,
            adapter=origin.adapter,
        )

    def _to_chunk(self, index: int, beam: Beam) -> TextChunk:
        has_logprobs = self.params.logprobs is not None
        is_stopped = beam.end_token_id is not None
        assert isinstance(self._origin.task, GenerateTask)
        by_user = beam.end_token_id if beam.end_token_id in self._origin.task.stop_token_ids else None
        return self._outputs[index].push(
            TokenDelta(
                request_id=self.request_id,
                child=index,
                token_ids=beam.token_ids,
                logprobs=beam.logprobs if has_logprobs else [],
                finish_reason=FinishReason.STOP if is_stopped else FinishReason.LENGTH,
                stop_reason=by_user,
            )
        )


def _step_task(client: AsyncEngineClient, params: SamplingParams, beams: BeamSearchParams) -> GenerateTask:
    """Return what a step asks for: the likeliest next tokens; and the prompt's logprobs, if those were asked for."""
    num_logprobs = beams.num_candidates
    most = client.info.max_logprobs
    if most != -1 and num_logprobs > most:
        raise InvalidRequest(
            f"a beam search of width {beams.beam_width} needs {num_logprobs} logprobs a token, of at most {most} that "
            f"this engine gives; search with n={max(most // 2, 1)} or less, or start the engine with --max-logprobs "
            f"{num_logprobs}.",
            param="n",
        )
    if params.logprobs is not None:
        num_logprobs = -1 if params.logprobs == -1 else max(num_logprobs, params.logprobs)
    step = SamplingParams(temperature=0.0, max_tokens=1, logprobs=num_logprobs, prompt_logprobs=params.prompt_logprobs)
    return client.resolve(step)
