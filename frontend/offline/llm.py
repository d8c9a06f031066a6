"""`LLM`: generate text from a script or a notebook, without a server.

    llm = LLM("SmolLM2-135M-Instruct")
    for output in llm.generate(["The capital of France is"], SamplingParams(temperature=0)):
        print(output.outputs[0].text)

The engine core and its executor run as processes of their own, the client on an event loop in a thread. They end with
`shutdown`, with the `with` statement, with the interpreter, or with this process, whatever ends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pagewire.ipc.errors import RequestError
from pagewire.ipc.outputs import EngineInfo, TokenLogprobs
from pagewire.ipc.sampling_params import SamplingParams

from ..supervisor.engine_process import prepare_engine
from ..text.beam_search import BeamSearchParams
from ..text.chat_template import Message
from ..text.generation import Generation, TextChunk, TextGenerator, TextRequest
from ..text.template_source import compile_template, template_source
from ..text.text_side import load_text_side
from ..tokenizer.tokenizer import Tokenizer
from .beam_search import BeamSearchOutput, search_prompts
from .control import EngineControl
from .engine import OfflineEngine
from .lora_request import LoRARequest, load_requested, read_lora_requests
from .options import engine_config_of
from .outputs import CompletionOutput, RequestOutput, to_logprob_dicts, to_prompt_logprob_dicts
from .progress import Progress
from .prompts import OfflinePrompt, Prompt, read_conversations, read_each, read_prompts


class LLM(EngineControl):
    """A model and an engine of its own.

    Args:
        model: hub id, directory, GGUF file or org/repo:QUANT; by default the packaged SmolLM2.
        chat_template: a Jinja chat template, a file or the text itself, instead of the model's.
        options: any flag of `pagewire serve` that is about the engine, spelled as in Python: dtype, max_model_len,
            gpu_memory_utilization, tensor_parallel_size, max_num_seqs, enable_prefix_caching, seed, ...

    Raises:
        ConfigError: the model is not found, or an option is unknown or can't be met.
        MachineError: the machine lacks what the model needs.
    """

    def __init__(self, model: str | None = None, *, chat_template: str | None = None, **options: object) -> None:
        config = prepare_engine(engine_config_of(model, options))
        self._engine = OfflineEngine(config)
        # Also when the object is dropped, and at the end of the interpreter.
        self._close = weakref.finalize(self, self._engine.close)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self._close)
            client, self._text = self._engine.attach(
                lambda: load_text_side(Path(config.model.model_path), config.model, chat_template=chat_template)
            )
            self._chat_template = compile_template(self._text.template)
            on_failure.pop_all()
        self._generator = TextGenerator(client, self._text.tokenizer)
        self._request_ids = itertools.count()

    @property
    def info(self) -> EngineInfo:
        """What the engine serves, and its limits."""
        return self._generator.client.info

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: int | Sequence[int] = 0,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts; all are checked before the first one starts.

        Args:
            prompts: a text, a list of token ids, `{"prompt": text}`, `{"prompt_token_ids": ids}`, or a list of those.
            sampling_params: one for all prompts, or one each; by default `get_default_sampling_params()`.
            use_tqdm: show a progress bar with speeds on standard error.
            priority: lower runs first (with `scheduling_policy="priority"`); one for all prompts, or one each.
            lora_request: the LoRA adapter to answer with (with `enable_lora=True`), one for all prompts, or one or None
                each; it is loaded when it is first asked for.

        Returns:
            One output a prompt, in their order.

        Raises:
            RequestError: a prompt or its parameters can't be served; with several prompts the text says which.
            EngineError: the engine failed; the other prompts were aborted.
        """
        return self._answer(
            read_prompts(prompts), sampling_params, priority, use_tqdm, lora_request, add_special_tokens=True
        )

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: int | Sequence[int] = 0,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[RequestOutput]:
        """Answer a conversation, or a list of conversations.

        Args:
            messages: OpenAI-shaped messages.
            sampling_params: one for all conversations, or one each.
            use_tqdm: show a progress bar.
            priority: as in `generate`.
            chat_template: a Jinja template, a file or the text itself, for this call.
            add_generation_prompt: end the prompt where the assistant's answer begins.
            continue_final_message: go on with the last message instead.
            tools: JSON schemas of functions, for templates that know tools.
            chat_template_kwargs: further variables of the template.
            lora_request: as in `generate`.

        Raises:
            RequestError: as `generate`; or the template refuses the messages.
        """
        template = self._chat_template
        if chat_template is not None:
            template = compile_template(template_source(self.get_tokenizer(), chat_template))
        prompts = [
            OfflinePrompt(
                text=template.render(
                    conversation,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    tools=tools,
                    template_arguments=chat_template_kwargs,
                )
            )
            for conversation in read_conversations(messages)
        ]
        # The template writes the special tokens itself.
        return self._answer(prompts, sampling_params, priority, use_tqdm, lora_request, add_special_tokens=False)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        *,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        use_tqdm: bool = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """Return the `beam_width` likeliest answers to each prompt that a beam search finds.

        Args:
            prompts: as in `generate`.
            params: how wide and how long to search.
            lora_request: as in `generate`.
            use_tqdm: show a progress bar.
            concurrency_limit: prompts that are searched at once; by default all.

        Raises:
            RequestError: a prompt can't be served, or the engine gives fewer logprobs than the search needs.
            EngineError: the engine failed.
        """
        each_prompt = read_prompts(prompts)
        each_adapter = read_lora_requests(lora_request, len(each_prompt))

        async def search() -> list[BeamSearchOutput]:
            adapters = [await load_requested(self._generator.client, adapter) for adapter in each_adapter]
            with Progress(len(each_prompt), is_shown=use_tqdm) as progress:
                return await search_prompts(
                    self._generator, each_prompt, params, adapters, progress, concurrency_limit=concurrency_limit
                )

        return self._engine.run(search())

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return self._text.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return what the model's authors recommend (generation_config.json), over `SamplingParams()`."""
        recommended = msgspec.structs.asdict(self._text.defaults)
        del recommended["eos_token_ids"]
        return SamplingParams(**{name: value for name, value in recommended.items() if value is not None})

    def _answer(
        self,
        prompts: Sequence[OfflinePrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        priority: int | Sequence[int],
        use_tqdm: bool,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None,
        *,
        add_special_tokens: bool,
    ) -> list[RequestOutput]:
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        each_params = read_each(sampling_params, SamplingParams, len(prompts), "sampling_params")
        each_priority = read_each(priority, int, len(prompts), "priority")
        each_adapter = read_lora_requests(lora_request, len(prompts))
        labels = [str(next(self._request_ids)) for _ in prompts]

        async def prepare() -> list[TextRequest]:
            requests: list[TextRequest] = []
            spelled: dict[tuple[str, ...], list[list[int]]] = {}
            arguments = zip(prompts, each_params, each_priority, each_adapter, labels, strict=True)
            for index, (prompt, params, rank, adapter, label) in enumerate(arguments):
                words = tuple(params.bad_words)
                try:
                    if words not in spelled:
                        spelled[words] = await self._generator.spell_bad_words(words)
                    request = self._prepare(
                        prompt,
                        params,
                        spelled[words],
                        rank,
                        label,
                        await load_requested(self._generator.client, adapter),
                        add_special_tokens=add_special_tokens,
                    )
                except RequestError as exc:
                    if len(prompts) == 1:
                        raise
                    raise type(exc)(f"Prompt {index}: {exc.message}", param=exc.param) from exc
                requests.append(request)
                await asyncio.sleep(0)  # the loop may have other callers to serve
            return requests

        return self._engine.run(self._generate_all(self._engine.run(prepare()), use_tqdm))

    def _prepare(
        self,
        prompt: OfflinePrompt,
        params: SamplingParams,
        bad_words_token_ids: Sequence[Sequence[int]],
        priority: int,
        label: str,
        adapter: str,
        *,
        add_special_tokens: bool,
    ) -> TextRequest:
        token_ids = prompt.token_ids
        if prompt.text is not None:
            token_ids = self.get_tokenizer().encode(prompt.text, add_special_tokens=add_special_tokens)
        return self._generator.prepare(
            token_ids,
            params,
            bad_words_token_ids=bad_words_token_ids,
            prompt_text=prompt.text,
            label=label,
            priority=priority,
            cache_salt=prompt.cache_salt,
            adapter=adapter,
        )

    async def _generate_all(self, requests: Sequence[TextRequest], use_tqdm: bool) -> list[RequestOutput]:
        generations = [self._generator.submit(request) for request in requests]
        with Progress(len(requests), is_shown=use_tqdm) as progress:
            tasks = [
                asyncio.create_task(self._collect(generation, request.add_request.label, progress))
                for generation, request in zip(generations, requests, strict=True)
            ]
            try:
                return list(await asyncio.gather(*tasks))
            finally:
                # Reached with work left over only by a failure or Ctrl-C: what still runs ends here and in the engine.
                for generation, task in zip(generations, tasks, strict=True):
                    generation.close()
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _collect(self, generation: Generation, request_id: str, progress: Progress) -> RequestOutput:
        if not generation.params.stop_strings:
            await generation.ended()  # nobody reads the text before, so it is made in one go
        answers = [_Answer(index) for index in range(generation.params.n)]
        async for chunk in generation:
            answers[chunk.index].add(chunk)
        tokenizer = self.get_tokenizer()
        outputs = [answer.finish(tokenizer, generation.params) for answer in answers]
        progress.request_done(len(generation.prompt_token_ids), sum(len(output.token_ids) for output in outputs))
        return RequestOutput(
            request_id=request_id,
            prompt=generation.prompt,
            prompt_token_ids=generation.prompt_token_ids,
            prompt_logprobs=to_prompt_logprob_dicts(generation.prompt_logprobs, tokenizer),
            outputs=outputs,
            finished=True,
            metrics=generation.metrics,
            num_cached_tokens=generation.num_cached_tokens,
        )


class _Answer:
    """One child's chunks, put together."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self._last: TextChunk | None = None

    def add(self, chunk: TextChunk) -> None:
        self._texts.append(chunk.text)
        self._token_ids.extend(chunk.token_ids)
        self._logprobs.extend(chunk.logprobs)
        self._last = chunk

    def finish(self, tokenizer: Tokenizer, params: SamplingParams) -> CompletionOutput:
        has_logprobs = params.logprobs is not None
        return CompletionOutput(
            index=self._index,
            text="".join(self._texts),
            token_ids=self._token_ids,
            cumulative_logprob=sum(entry.logprob for entry in self._logprobs) if has_logprobs else None,
            logprobs=to_logprob_dicts(self._logprobs, tokenizer) if has_logprobs else None,
            finish_reason=None if self._last is None else self._last.finish_reason,
            stop_reason=None if self._last is None else self._last.stop_reason,
        )
