"""What an `LLM` does besides generating text: vectors, rest, figures, its end."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from pagewire.ipc.outputs import StepStats
from pagewire.ipc.requests import EmbedTask

from ..text.generation import TextGenerator
from ..text.text_side import TextSide
from .embed import EmbeddingRequestOutput, embed_prompts
from .engine import OfflineEngine
from .lora_request import LoRARequest, read_lora_requests
from .progress import Progress
from .prompts import Prompt, read_prompts


class EngineControl:
    """The part of `LLM` that is not about answers; `LLM` sets the attributes."""

    _engine: OfflineEngine
    _generator: TextGenerator
    _text: TextSide
    _request_ids: Iterator[int]
    _close: weakref.finalize[Any, Any]  # Any: as the library has it

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: bool = True,
        pooling: Literal["last", "mean"] = "last",
        normalize: bool = True,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Return a vector for each prompt, in their order.

        Args:
            prompts: as of `generate`.
            use_tqdm: show a progress bar on standard error.
            pooling: last: the hidden state of the last token; mean: the mean of all tokens'.
            normalize: scale each vector to length 1.
            lora_request: as of `generate`.

        Raises:
            RequestError: a prompt can't be served; with several prompts the text says which.
            EngineError: the engine failed; the other prompts were aborted.
        """
        read = read_prompts(prompts)
        labels = [str(next(self._request_ids)) for _ in read]
        adapters = read_lora_requests(lora_request, len(read))
        task = EmbedTask(pooling=pooling, normalize=normalize)
        with Progress(len(read), is_shown=use_tqdm) as progress:
            return self._engine.run(
                embed_prompts(self._generator.client, self._text.tokenizer, read, task, labels, progress, adapters)
            )

    def sleep(self, level: int = 1) -> None:
        """End the executors, so that all their memory is free, on the device and the host, until `wake_up`.

        Args:
            level: 1 or 2, of which one does what the other does: weights are read anew, from the page cache if they
                are still there.

        Raises:
            InvalidRequest: another level.
        """
        self._call("sleep", level, "abort")

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Start executors again; without having slept, do nothing.

        Args:
            tags: what other engines wake one by one comes as a whole here, whatever they are.
        """
        del tags
        self._call("wake_up")

    def is_sleeping(self) -> bool:
        """Return whether `sleep` was called, and `wake_up` was not since."""
        return bool(self._call("is_sleeping"))

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks."""
        return bool(self._call("reset_prefix_cache"))

    def add_stats_listener(self, listener: Callable[[StepStats], None]) -> None:
        """Have `listener` called with the engine's figures after each step.

        It is called on the thread of the engine's client, so it must be quick.
        """
        self._generator.client.add_stats_listener(listener)

    def shutdown(self) -> None:
        """End the engine's processes. Calling it twice is fine."""
        self._close()

    def close(self) -> None:
        """The same as `shutdown`."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.shutdown()

    def _call(self, method: str, *args: int | str) -> Any:  # Any: each utility documents its result
        # However long executors take to load.
        return self._engine.run(self._generator.client.call_utility(method, *args, timeout_s=None))
