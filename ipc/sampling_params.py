"""How a user asks for tokens (`SamplingParams`), and what of it reaches the engine core (`Sampling`).

Text options (stop strings, bad words, special tokens in the text) stay with the client, which owns the tokenizer:
the engine core and the executors only ever see token ids.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence

import msgspec

from .errors import InvalidRequest
from .structured_outputs import StructuredOutputs
from .unknown_fields import NamesUnknownFields

MAX_N = 128  # children of one request; each holds a batch row
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARS = 256
MAX_STOP_STRINGS = 16
MAX_BIAS = 100  # beyond it a bias can't change a draw any more, but could overflow fp32
GREEDY_BELOW = 1e-5  # a temperature below it means greedy
MIN_TEMPERATURE = 0.01  # a sampling temperature below it is raised to it: logits / t must stay finite in fp32
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class SamplingParams(
    msgspec.Struct,
    metaclass=NamesUnknownFields,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """What to draw, how long, and what to report. Names, defaults and ranges are the field's.

    Attributes:
        n: answers per prompt (children of one request, one prefill).
        temperature: 0 is greedy; at most 2.
        top_p, top_k, min_p: filters; 1.0, 0 (or -1) and 0.0 are off.
        seed: signed 64-bit; None draws one for the request. The same seed gives the same answer in any batch.
        presence_penalty, frequency_penalty: in [-2, 2], on output tokens.
        repetition_penalty: > 0, on prompt and output tokens.
        logit_bias: token id -> bias in [-100, 100].
        allowed_token_ids: draw from these alone.
        bad_words: texts that must not appear (with and without a leading space).
        min_tokens: end tokens are masked until so many are drawn.
        max_tokens: None means up to the end of the context.
        stop: up to MAX_STOP_STRINGS texts that end the answer.
        stop_token_ids: token ids that end the answer, besides the model's own end tokens.
        ignore_eos: go on after the model's own end token.
        include_stop_str_in_output, skip_special_tokens, spaces_between_special_tokens: text options.
        logprobs, prompt_logprobs: how many alternatives to report per token, -1 for all; None for none.
        detokenize: False gives token ids only; stop strings then are refused.
        structured_outputs: what the answer must look like; None: anything.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] = []
    min_tokens: int = 0
    max_tokens: int | None = 16
    stop: list[str] | str | None = None
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    structured_outputs: StructuredOutputs | None = None

    @property
    def stop_strings(self) -> list[str]:
        """The stop strings as a list, however they were given."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)

    def __post_init__(self) -> None:
        _check_types(self)
        _check_ranges(self)
        _check_text_options(self)


class Sampling(msgspec.Struct, frozen=True, kw_only=True, array_like=True, omit_defaults=True, gc=False):
    """The draw as the executor does it: concrete, token ids only.

    Attributes:
        temperature: 0 for greedy.
        seed: concrete, signed 64-bit; the noise key is (seed, child).
        top_k: 0 is off.
        end_token_ids: masked until min_tokens output tokens are there.
        num_logprobs, num_prompt_logprobs: None, or alternatives to report (-1 for the whole vocabulary).
    """

    temperature: float = 1.0
    seed: int = 0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    end_token_ids: list[int] = []
    logit_bias: dict[int, float] = {}
    allowed_token_ids: list[int] | None = None
    bad_words_token_ids: list[list[int]] = []


def resolve_sampling(
    params: SamplingParams,
    *,
    seed: int,
    eos_token_ids: Sequence[int],
    bad_words_token_ids: Sequence[Sequence[int]] = (),
) -> Sampling:
    """Turn what the user asked into what the executor draws.

    Args:
        params: the user's parameters; their text options must have been turned into ids by the caller.
        seed: used where `params.seed` is None or -1.
        eos_token_ids: the model's own end tokens.
        bad_words_token_ids: each a token sequence that must not be completed.
    """
    greedy = params.temperature < GREEDY_BELOW
    end_token_ids = [] if params.ignore_eos else list(eos_token_ids)
    return Sampling(
        temperature=0.0 if greedy else max(params.temperature, MIN_TEMPERATURE),
        seed=seed if params.seed is None or params.seed == -1 else params.seed,
        # Filters keep the most likely token in any case: for a greedy draw they change nothing.
        top_p=1.0 if greedy else params.top_p,
        top_k=0 if greedy else max(params.top_k, 0),
        min_p=0.0 if greedy else params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        min_tokens=params.min_tokens,
        num_logprobs=params.logprobs,
        num_prompt_logprobs=params.prompt_logprobs,
        end_token_ids=sorted({*end_token_ids, *params.stop_token_ids}) if params.min_tokens else [],
        logit_bias={token: min(max(bias, -MAX_BIAS), MAX_BIAS) for token, bias in (params.logit_bias or {}).items()},
        allowed_token_ids=params.allowed_token_ids,
        bad_words_token_ids=[list(ids) for ids in bad_words_token_ids],
    )


_FIELDS = msgspec.structs.fields(SamplingParams)
# The same fields without the checks: msgspec.convert reads each value's type against it, in one call.
_Typed = msgspec.defstruct("_Typed", [(field.name, field.type) for field in _FIELDS])
_PLAIN = (int, float, bool, type(None), str, list, dict)
_SCALARS = tuple(field.name for field in _FIELDS if isinstance(field.default, int | float | None))


def _check_types(p: SamplingParams) -> None:
    """Refuse a value of another type here: on the wire it would spoil the whole message, not only this request.

    numpy's scalars, which seeds and temperatures often are, become Python's.
    """
    for name in _SCALARS:
        value = getattr(p, name)
        if type(value) not in _PLAIN and isinstance(value, numbers.Real):
            plain = int(value) if isinstance(value, numbers.Integral) else float(value)
            msgspec.structs.force_setattr(p, name, plain)
    try:
        msgspec.convert(p, _Typed, from_attributes=True)
    except msgspec.ValidationError as exc:
        # "Expected `int`, got `str` - at `key` in `$.logit_bias`"
        reason, _, path = str(exc).partition(" - at ")
        field = path.rpartition("$.")[2].rstrip("`").partition("[")[0]
        raise InvalidRequest(f"{field} has a value of the wrong type: {reason}.", param=field) from exc


def _check_ranges(p: SamplingParams) -> None:
    _require(1 <= p.n <= MAX_N, "n", p.n, f"from 1 to {MAX_N}")
    _require(math.isfinite(p.temperature) and 0 <= p.temperature <= 2, "temperature", p.temperature, "from 0 to 2")
    _require(p.n == 1 or p.temperature >= GREEDY_BELOW, "n", p.n, "1 with temperature 0: greedy answers are all alike")
    _require(0 < p.top_p <= 1, "top_p", p.top_p, "above 0 and at most 1")
    _require(-1 <= p.top_k <= INT64_MAX, "top_k", p.top_k, "0 or -1 (off) or positive")
    _require(0 <= p.min_p <= 1, "min_p", p.min_p, "from 0 to 1")
    _require(-2 <= p.presence_penalty <= 2, "presence_penalty", p.presence_penalty, "from -2 to 2")
    _require(-2 <= p.frequency_penalty <= 2, "frequency_penalty", p.frequency_penalty, "from -2 to 2")
    repetition = p.repetition_penalty
    _require(
        math.isfinite(repetition) and 1e-4 <= repetition <= 1e4,
        "repetition_penalty",
        repetition,
        "from 0.0001 to 10000",
    )
    _require(p.seed is None or INT64_MIN <= p.seed <= INT64_MAX, "seed", p.seed, "a signed 64-bit integer")
    _require(p.max_tokens is None or 1 <= p.max_tokens <= INT64_MAX, "max_tokens", p.max_tokens, "at least 1, or null")
    upper = math.inf if p.max_tokens is None else p.max_tokens
    _require(0 <= p.min_tokens <= upper, "min_tokens", p.min_tokens, "from 0 to max_tokens")
    for name, count in (("logprobs", p.logprobs), ("prompt_logprobs", p.prompt_logprobs)):
        _require(count is None or -1 <= count <= INT64_MAX, name, count, "at least 0, or -1 for the whole vocabulary")
    for token, bias in (p.logit_bias or {}).items():
        _require(math.isfinite(bias), "logit_bias", f"{token}: {bias}", "finite")
    allowed = p.allowed_token_ids
    _require(allowed is None or len(allowed) > 0, "allowed_token_ids", allowed, "non-empty, or null")


def _check_text_options(p: SamplingParams) -> None:
    stops = p.stop_strings
    _require(all(stops), "stop", stops, "free of empty strings")
    _require(len(stops) <= MAX_STOP_STRINGS, "stop", f"a list of {len(stops)}", f"at most {MAX_STOP_STRINGS} strings")
    _require(p.detokenize or not stops, "stop", stops, "absent when detokenize is false: stop strings need the text")
    _require(all(p.bad_words), "bad_words", p.bad_words, "free of empty strings")
    _require(
        len(p.bad_words) <= MAX_BAD_WORDS,
        "bad_words",
        f"a list of {len(p.bad_words)}",
        f"at most {MAX_BAD_WORDS} texts",
    )
    longest = max(map(len, p.bad_words), default=0)
    _require(
        longest <= MAX_BAD_WORD_CHARS,
        "bad_words",
        f"one of {longest}",
        f"texts of at most {MAX_BAD_WORD_CHARS} characters",
    )


def _require(holds: bool, name: str, value: object, rule: str) -> None:
    if not holds:
        raise InvalidRequest(f"{name} must be {rule}; got {value}.", param=name)
