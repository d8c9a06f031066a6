"""From a request's fields to `SamplingParams`: what the user gave, else the server's defaults, else OpenAI's."""

from __future__ import annotations

from typing import Any

from pagewire.checkpoint.generation_config import GenerationDefaults
from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.sampling_params import SamplingParams

from .bodies.schema import GenerationRequest, StreamOptions
from .output_format import asked_format

# Fields that mean the same in the request, in the defaults and in SamplingParams.
_SAME_NAME = (
    "n", "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "allowed_token_ids", "bad_words", "min_tokens", "stop", "stop_token_ids",
    "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens",
)  # fmt: skip


def sampling_params(
    request: GenerationRequest,
    defaults: GenerationDefaults,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """Return how to draw the answers to `request`.

    Args:
        request: what the user gave; None is "not given".
        defaults: what the model's authors recommend.
        max_tokens: resolved by the caller, as the endpoints' defaults differ; None is up to the end of the context.
        logprobs: alternatives per output token, None for none; the endpoints spell it differently.
        prompt_logprobs: the same per prompt token.

    Raises:
        InvalidRequest: a value is out of range.
    """
    values: dict[str, Any] = {}  # Any: checked by the struct's own ranges
    for name in _SAME_NAME:
        given = getattr(request, name)
        if given is None:
            given = getattr(defaults, name, None)
        if given is not None:
            values[name] = given
    if request.use_beam_search:
        values["temperature"] = 1.0  # has no part in a search, and 0 would not go with several answers
    return SamplingParams(
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        structured_outputs=asked_format(request),
        **values,
    )


def check_stream_options(request: GenerationRequest, *, forces_usage: bool = False) -> tuple[bool, bool]:
    """Return (include_usage, continuous_usage_stats); both are true if the server forces them.

    Raises:
        InvalidRequest: the options contradict each other, or ask what a stream can't bring.
    """
    options = request.stream_options
    if options is None:
        options = StreamOptions()
    elif not request.stream:
        raise InvalidRequest("stream_options is only allowed with stream: true.", param="stream_options")
    if request.stream and request.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs can't be streamed; leave out stream.", param="prompt_logprobs")
    if options.include_obfuscation:
        raise InvalidRequest(
            "stream_options.include_obfuscation: true is not supported.", param="stream_options.include_obfuscation"
        )
    if options.continuous_usage_stats and not options.include_usage:
        raise InvalidRequest(
            "continuous_usage_stats needs include_usage: true.", param="stream_options.continuous_usage_stats"
        )
    return forces_usage or bool(options.include_usage), forces_usage or bool(options.continuous_usage_stats)
