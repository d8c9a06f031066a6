"""The forms in which users of vLLM ask for speculation, all turned into the fields of `SpeculativeConfig`.

There is one JSON, `--speculative-config '{"method": "ngram", "num_speculative_tokens": 4}'`, and there are the flags of
its parts. `[ngram]` in the place of a model means lookup in the request's own text.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, get_args

import msgspec

from pagewire.ipc.errors import ConfigError
from pagewire.ipc.speculative_config import SpeculativeConfig, SpeculativeMethod

from .refused import CHOICE_ALIASES, REFUSED_CHOICES

JSON_FLAG = "--speculative-config"
JSON_FIELD = "speculative_config"
JSON_DESCRIPTION = (
    'The same as one JSON, as vLLM takes it: {"method": "ngram", "num_speculative_tokens": 4}; further keys: model, '
    "prompt_lookup_max, prompt_lookup_min."
)

_NGRAM_MODELS = ("ngram", "[ngram]")
_DEFAULTS = SpeculativeConfig()
_METHODS: tuple[str, ...] = get_args(SpeculativeMethod)

# Key of the JSON -> field. What it does not take is explained below.
_FIELDS: Mapping[str, str] = {
    "method": "speculative_method",
    "model": "speculative_model",
    "num_speculative_tokens": "num_speculative_tokens",
    "prompt_lookup_max": "prompt_lookup_max",
    "prompt_lookup_min": "prompt_lookup_min",
}
_SUFFIX_STORE = "suffix keeps the last 65536 output tokens of each cache salt, and drafts while they pay"
_REFUSED_KEYS: Mapping[str, str] = {
    "disable_by_batch_size": "drafts are left out whenever they don't pay, by what steps cost",
    "speculative_disable_by_batch_size": "drafts are left out whenever they don't pay, by what steps cost",
    "disable_padded_drafter_batch": "rows are not padded to each other's drafts",
    "draft_tensor_parallel_size": "the draft model is split as the model is",
    "tensor_parallel_size": "the draft model is split as the model is",
    "quantization": "the draft's checkpoint says how it is quantized",
    "max_model_len": "the draft model serves the model's length",
    "revision": "name a directory that holds the draft model's revision",
    "code_revision": "code that comes with a checkpoint is never run",
    "enforce_eager": "--enforce-eager is for both models",
    "attention_backend": "--attention-backend is for both models",
    "speculative_token_tree": "drafts are one sequence, not a tree",
    "parallel_drafting": "drafts are guessed one after the other",
    "rejection_sample_method": "a draft is accepted if it equals the model's own draw, so that answers stay the same",
    "draft_sample_method": "drafts are drawn as the model draws, with the same noise",
    "acceptance_method": "a draft is accepted if it equals the model's own draw, so that answers stay the same",
    "posterior_threshold": "a draft is accepted if it equals the model's own draw, so that answers stay the same",
    "posterior_alpha": "a draft is accepted if it equals the model's own draw, so that answers stay the same",
    "suffix_decoding_max_tree_depth": _SUFFIX_STORE,
    "suffix_decoding_max_cached_requests": _SUFFIX_STORE,
    "suffix_decoding_max_spec_factor": _SUFFIX_STORE,
    "suffix_decoding_min_token_prob": _SUFFIX_STORE,
}


def with_speculation(given: Mapping[str, object]) -> dict[str, object]:
    """Return given values with those of speculation as `SpeculativeConfig` has them.

    Args:
        given: values by field name, and `speculative_config`: a JSON text, or what one says.

    Raises:
        ConfigError: the JSON is none, or has a key or method that is not served; or two values contradict each other.
    """
    values = dict(given)
    for key, value in _read_json(values.pop(JSON_FIELD, None)).items():
        field = _FIELDS[key]
        if values.setdefault(field, value) != value:
            raise ConfigError(
                f"{JSON_FLAG} says {key} {value}, and --{field.replace('_', '-')} {values[field]}; give one of them."
            )
    if values.get("speculative_model") in _NGRAM_MODELS:
        if values.setdefault("speculative_method", "ngram") != "ngram":
            raise ConfigError(
                f"--speculative-model {values['speculative_model']} is the method ngram, and --speculative-method is "
                f"{values['speculative_method']}; give one of them."
            )
        del values["speculative_model"]
    _fit_lookup(values)
    return values


def _read_json(value: object) -> dict[str, Any]:
    """Return the JSON's keys and values, without those that are null."""
    if value is None:
        return {}
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except msgspec.DecodeError as exc:
            raise ConfigError(f"{JSON_FLAG} {value} is no JSON: {exc}.") from exc
    if not isinstance(value, Mapping):
        raise ConfigError(f'{JSON_FLAG} {value} is no JSON object; give one like {{"method": "ngram"}}.')
    for key in value:
        if key not in _FIELDS:
            raise ConfigError(_explain_key(str(key)))
    options = {key: given for key, given in value.items() if given is not None}
    if not options:
        raise ConfigError(f'{JSON_FLAG} says nothing; give it like {{"method": "ngram"}}, or leave it out.')
    if "method" in options:
        options["method"] = _method(options["method"])
    return options


def _explain_key(key: str) -> str:
    if key in _REFUSED_KEYS:
        return f"{JSON_FLAG}: {key} is not taken: {_REFUSED_KEYS[key]}. Leave it out."
    guess = get_close_matches(key, _FIELDS, n=1)
    meant = f"did you mean {guess[0]}?" if guess else f"there are {', '.join(_FIELDS)}."
    return f"{JSON_FLAG} does not know the key {key}; {meant}"


def _method(value: object) -> str:
    word = str(value).lower()
    word = CHOICE_ALIASES["speculative_method"].get(word, word)
    if word in _METHODS:
        return word
    choices = f"choose from {', '.join(_METHODS)}"
    reason = REFUSED_CHOICES["speculative_method"].get(word)
    if reason is not None:
        raise ConfigError(f"{JSON_FLAG}: the method {word} is not supported: {reason}; {choices}.")
    raise ConfigError(f"{JSON_FLAG} does not know the method {value!r}; {choices}.")


def _fit_lookup(values: dict[str, object]) -> None:
    """Refuse bounds of a lookup that does not take place; where one is given, let the other one's default follow."""
    longest, shortest = values.get("prompt_lookup_max"), values.get("prompt_lookup_min")
    method = values.get("speculative_method")
    for flag, value, methods in (
        ("--prompt-lookup-max", longest, ("ngram",)),
        ("--prompt-lookup-min", shortest, ("ngram", "suffix")),
    ):
        if value is not None and method not in methods:
            raise ConfigError(f"{flag} {value} is for --speculative-method {' and '.join(methods)}; leave it out.")
    if shortest is None and isinstance(longest, int):
        values["prompt_lookup_min"] = min(_DEFAULTS.prompt_lookup_min, longest)
    if longest is None and isinstance(shortest, int):
        values["prompt_lookup_max"] = max(_DEFAULTS.prompt_lookup_max, shortest)
