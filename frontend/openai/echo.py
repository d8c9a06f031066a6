"""The prompt as `echo` repeats it in front of the answer."""

from __future__ import annotations

from ..text.generation import Generation
from ..tokenizer.tokenizer import Tokenizer
from .bodies.responses import CompletionLogprobs
from .logprobs import echo_logprobs, name_by_ids, prompt_token_texts


class EchoedPrompt:
    """One prompt's text, and its tokens' logprobs if they were asked for.

    Args:
        tokenizer: the vocabulary.
        prompt: as the client sent it.
        generation: whose prompt it is; has its prompt logprobs by now.
        num_logprobs: alternatives per position; None for no logprobs.
        as_ids: name tokens by their ids in the logprobs.

    Attributes:
        text: the prompt; with logprobs exactly what its tokens join to.
        logprobs: None unless asked for.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt: str | list[int],
        generation: Generation,
        *,
        num_logprobs: int | None,
        as_ids: bool = False,
    ) -> None:
        self.logprobs: CompletionLogprobs | None = None
        if isinstance(prompt, str) and num_logprobs is None:
            self.text = prompt
            return
        texts = prompt_token_texts(tokenizer, generation.prompt_token_ids)
        self.text = "".join(texts)
        if num_logprobs is not None:
            entries = generation.prompt_logprobs or []
            self.logprobs = echo_logprobs(tokenizer, texts, entries, num_logprobs, as_ids=as_ids)
            if as_ids:
                self.logprobs = name_by_ids(self.logprobs, generation.prompt_token_ids)
