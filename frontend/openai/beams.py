"""`use_beam_search` of both endpoints: which fields go with it, and what they mean."""

from __future__ import annotations

from pagewire.ipc.errors import InvalidRequest
from pagewire.ipc.sampling_params import SamplingParams

from ..text.beam_search import BeamSearchParams
from .bodies.schema import CompletionRequest, GenerationRequest

# Field -> values besides null that ask for nothing: what draws tokens has no part in a search for the likeliest ones.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "top_p": (1.0,),
    "top_k": (0, -1),
    "min_p": (0.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "repetition_penalty": (1.0,),
    "logit_bias": ({},),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "min_tokens": (0,),
    "stop": ([], ""),
}


def beam_search_of(request: GenerationRequest, params: SamplingParams) -> BeamSearchParams | None:
    """Return the search that a request asks for, None if it wants its answers drawn.

    Args:
        request: with `n` as the width of the search.
        params: the same, resolved.

    Raises:
        InvalidRequest: a field contradicts the search, or belongs to one that was not asked for.
    """
    if not request.use_beam_search:
        for name, neutral in (("length_penalty", 1.0), ("early_stopping", False)):
            if getattr(request, name) not in (None, neutral):
                raise InvalidRequest(f"{name} needs use_beam_search: true.", param=name)
        return None
    if request.stream:
        raise InvalidRequest("A beam search can't be streamed: its answers are known at the end.", param="stream")
    for name, neutral_values in _NEUTRAL.items():
        value = getattr(request, name)
        if value is not None and value not in neutral_values:
            raise InvalidRequest(f"{name} is not served with use_beam_search; leave one of them out.", param=name)
    if isinstance(request, CompletionRequest) and request.best_of not in (None, request.n or 1):
        raise InvalidRequest("best_of does not go with use_beam_search: n is the width of the search.", param="best_of")
    if params.structured_outputs is not None:
        raise InvalidRequest(
            "use_beam_search is not served together with a format of the answer or forced calls of tools; leave one of "
            "them out.",
            param="use_beam_search",
        )
    return BeamSearchParams(
        beam_width=params.n,
        max_tokens=2**31 if params.max_tokens is None else params.max_tokens,
        ignore_eos=params.ignore_eos,
        length_penalty=1.0 if request.length_penalty is None else request.length_penalty,
        include_stop_str_in_output=params.include_stop_str_in_output,
        early_stopping=bool(request.early_stopping),
    )
