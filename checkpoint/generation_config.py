"""The sampling defaults that a checkpoint's authors recommend, for requests that state none.

Read from generation_config.json; of a GGUF file from the metadata under general.sampling, if it has any. The packaged
model's file has none: its defaults stand beside its digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from pagewire.ipc.errors import ConfigError

from .gguf_file import GGUFFile
from .json_reader import read_json_object
from .sources.packaged import SMOLLM2, is_packaged_model


class GenerationDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint recommends; None where it says nothing.

    Attributes:
        top_k: 0 means that it is off.
        max_tokens: generation_config.json's max_new_tokens.
        eos_token_ids: the file's own; `ModelConfig.eos_token_ids` has them merged with the other sources.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    eos_token_ids: tuple[int, ...] = ()


def load_generation_defaults(model_path: Path) -> GenerationDefaults:
    """Read the defaults of a local checkpoint, a directory or a GGUF file; empty ones if it recommends nothing.

    Raises:
        ConfigError: if the file is there but can't be read, or a value has a wrong type or range.
    """
    if model_path.is_dir():
        defaults = _from_directory(model_path)
    elif is_packaged_model(model_path, SMOLLM2):
        defaults = GenerationDefaults(temperature=SMOLLM2.temperature, top_p=SMOLLM2.top_p)
    else:
        with GGUFFile(model_path) as file:
            defaults = _from_gguf(file)
    _check_ranges(model_path, defaults)
    return defaults


# As users write them, in the words of generation_config.json and in those of requests.
_OVERRIDES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
    "max_tokens": "max_tokens",
}
_OVERRIDE_FLAG = "--override-generation-config"


def override_defaults(defaults: GenerationDefaults, values: Mapping[str, object]) -> GenerationDefaults:
    """Return defaults with those of a user over them; null takes one away.

    Args:
        defaults: the checkpoint's, or empty ones.
        values: name of a value -> value.

    Raises:
        ConfigError: there is no default of that name, or a value has a wrong type or range.
    """
    merged = msgspec.structs.asdict(defaults)
    for name, value in values.items():
        if name not in _OVERRIDES:
            raise ConfigError(f"{_OVERRIDE_FLAG}: there is no default for {name}; there are {', '.join(_OVERRIDES)}.")
        merged[_OVERRIDES[name]] = value
    try:
        overridden = msgspec.convert(merged, GenerationDefaults)
    except msgspec.ValidationError as exc:
        raise ConfigError(f"{_OVERRIDE_FLAG}: {exc}.") from exc
    if overridden.top_k is not None and overridden.top_k < -1:
        raise ConfigError(f"{_OVERRIDE_FLAG}: top_k {overridden.top_k} must be 0 or -1 (off) or positive.")
    if overridden.max_tokens is not None and overridden.max_tokens < 1:
        raise ConfigError(f"{_OVERRIDE_FLAG}: max_new_tokens {overridden.max_tokens} must be at least 1.")
    _check_ranges(_OVERRIDE_FLAG, overridden)
    return overridden


def _from_directory(directory: Path) -> GenerationDefaults:
    path = directory / "generation_config.json"
    if not path.is_file():
        return GenerationDefaults()
    config = read_json_object(path)
    # Without do_sample, transformers ignores the sampling values of the file; servers apply what is written there.
    return GenerationDefaults(
        temperature=config.get_float("temperature"),
        top_p=config.get_float("top_p"),
        top_k=config.get_int("top_k", minimum=-1),
        min_p=config.get_float("min_p"),
        repetition_penalty=config.get_float("repetition_penalty"),
        max_tokens=config.get_int("max_new_tokens"),
        eos_token_ids=config.get_token_ids("eos_token_id"),
    )


def _from_gguf(file: GGUFFile) -> GenerationDefaults:
    return GenerationDefaults(
        temperature=file.get_float("general.sampling.temp"),
        top_p=file.get_float("general.sampling.top_p"),
        top_k=file.get_int("general.sampling.top_k"),
        min_p=file.get_float("general.sampling.min_p"),
        repetition_penalty=file.get_float("general.sampling.penalty_repeat"),
    )


def _check_ranges(source: Path | str, defaults: GenerationDefaults) -> None:
    """Refuse at start what would otherwise fail every request that relies on it."""
    limits: dict[str, tuple[float | None, bool, str]] = {
        "temperature": (defaults.temperature, 0 <= (defaults.temperature or 0) <= 2, "from 0 to 2"),
        "top_p": (defaults.top_p, defaults.top_p is None or 0 < defaults.top_p <= 1, "above 0 and at most 1"),
        "min_p": (defaults.min_p, 0 <= (defaults.min_p or 0) <= 1, "from 0 to 1"),
        "repetition_penalty": (
            defaults.repetition_penalty,
            defaults.repetition_penalty is None or 1e-4 <= defaults.repetition_penalty <= 1e4,
            "from 0.0001 to 10000",
        ),
    }
    for name, (value, is_valid, range_text) in limits.items():
        if not is_valid:
            raise ConfigError(
                f"{source}: its generation config recommends {name} {value}, which must be {range_text}; "
                "correct the file, or don't use its defaults"
            )
