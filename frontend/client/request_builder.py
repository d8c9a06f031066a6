"""From what a user asks to the `AddRequest` that the engine takes: ids, a concrete seed, every value checked."""

from __future__ import annotations

import operator
import random
from collections.abc import Sequence

from pagewire.ipc.codec import client_messages, encode
from pagewire.ipc.errors import InvalidRequest, ProtocolError
from pagewire.ipc.outputs import EngineInfo
from pagewire.ipc.requests import AddRequest, CallUtility, GenerateTask, Task, TokenInputs
from pagewire.ipc.sampling_params import INT64_MAX, INT64_MIN, SamplingParams, resolve_sampling
from pagewire.ipc.structured_outputs import to_grammar
from pagewire.ipc.validation import RequestLimits, validate_request


class RequestBuilder:
    """Builds the requests of one client.

    Args:
        info: the engine's limits, its end tokens and its seed, which requests without one draw from.
    """

    def __init__(self, info: EngineInfo) -> None:
        self.info = info
        self._limits = RequestLimits(
            max_model_len=info.max_model_len,
            vocab_size=info.vocab_size,
            max_logprobs=info.max_logprobs,
            has_priorities=info.scheduling_policy == "priority",
            max_num_seqs=info.max_num_seqs,
        )
        self._seeds = random.SystemRandom() if info.seed is None else random.Random(info.seed)  # noqa: S311 - draws, not secrets

    def resolve(self, params: SamplingParams, *, bad_words_token_ids: Sequence[Sequence[int]] = ()) -> GenerateTask:
        """Turn what a user asked into the engine's terms: a concrete seed, end tokens, token ids only.

        The text options of `params` are the caller's: they must have been turned into ids, or be watched in the text.
        """
        return GenerateTask(
            sampling=resolve_sampling(
                params,
                seed=self._seeds.randint(INT64_MIN, INT64_MAX),
                eos_token_ids=self.info.eos_token_ids,
                bad_words_token_ids=bad_words_token_ids,
            ),
            n=params.n,
            max_tokens=params.max_tokens,
            eos_token_ids=[] if params.ignore_eos else list(self.info.eos_token_ids),
            stop_token_ids=list(dict.fromkeys(params.stop_token_ids)),
            grammar=None if params.structured_outputs is None else to_grammar(params.structured_outputs),
        )

    def build(
        self,
        request_id: int,
        prompt_token_ids: Sequence[int],
        params: SamplingParams | Task,
        *,
        label: str = "",
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
        adapter: str = "",
    ) -> AddRequest:
        """Build a request that the engine will take.

        Args:
            request_id: unique in the connection.
            prompt_token_ids: the prompt.
            params: how to draw; a task goes as it is.
            label: the user's own id for the request, for logs alone.
            priority: lower runs first, under the priority policy.
            cache_salt: requests of different salts share no cached blocks.
            timeout_s: seconds after which it fails with `DeadlineExceeded`; None for no limit.
            adapter: name of the LoRA adapter that changes the weights; empty: none.

        Raises:
            InvalidRequest: a value is malformed, out of range, or a text option.
        """
        if isinstance(params, SamplingParams):
            _refuse_text_options(params)
            params = self.resolve(params)
        try:
            token_ids = list(map(operator.index, prompt_token_ids))
        except TypeError as exc:
            raise InvalidRequest(f"The prompt must be a list of token ids: {exc}.", param="prompt") from exc
        request = AddRequest(
            request_id=request_id,
            label=label,
            inputs=TokenInputs(prompt_token_ids=token_ids),
            task=params,
            adapter=adapter,
            priority=priority,
            cache_salt=cache_salt,
            timeout_s=timeout_s,
        )
        check_types(request)
        validate_request(request, self._limits)
        return request


def _refuse_text_options(params: SamplingParams) -> None:
    asked = {
        "stop": bool(params.stop_strings),
        "bad_words": bool(params.bad_words),
        "include_stop_str_in_output": params.include_stop_str_in_output,
        "skip_special_tokens": not params.skip_special_tokens,
        "spaces_between_special_tokens": not params.spaces_between_special_tokens,
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise InvalidRequest(
                f"{name} is about text, and this client has no tokenizer; use TextGenerator or LLM, or give token ids "
                "(stop_token_ids, a GenerateTask with bad_words_token_ids).",
                param=name,
            )


def check_types(message: AddRequest | CallUtility) -> None:
    """Refuse a message that the core can't read: it would drop the client that sends one, with all its requests.

    Structs don't check types when they are made.

    Raises:
        InvalidRequest: a value of the message has a wrong type, or can't be sent.
    """
    try:
        client_messages.decode(encode(message))
    except (ProtocolError, TypeError, OverflowError, UnicodeEncodeError) as exc:
        raise InvalidRequest(f"The request has a value of a wrong type: {exc}.") from exc
