"""adapter_config.json: which linear layers an adapter changes, by which ranks, and how strongly.

Source: LoRA, Hu et al. 2021 (arXiv 2106.09685); rank-stabilized scales, Kalajdzievski 2023 (arXiv 2312.03732); the
format, https://github.com/huggingface/peft, src/peft/tuners/lora/config.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from pagewire.ipc.errors import ConfigError

from ..json_reader import JSONReader, read_json_object

Number = TypeVar("Number", int, float)

CONFIG_NAME = "adapter_config.json"

# Keys whose other values make another method of it, to the values that change nothing and what the others would do.
_PLAIN_VALUES: Mapping[str, tuple[tuple[object, ...], str]] = {
    "use_dora": ((False, None), "weight-decomposed adaptation (DoRA)"),
    "bias": (("none", None), "trained biases"),
    "lora_bias": ((False, None), "biases of its own"),
    "modules_to_save": (([], None), "whole modules in place of the model's"),
    "trainable_token_indices": (([], {}, None), "rows of the embedding"),
    "fan_in_fan_out": ((False, None), "transposed weights"),
    "target_parameters": (([], None), "parameters that are no linear layers"),
    "alora_invocation_tokens": (([], None), "activation from a token of the prompt on"),
    "use_qalora": ((False, None), "QALoRA"),
}


class AdapterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter's configuration says of its tensors.

    Attributes:
        path: the file, for messages.
        rank: of the modules that `rank_pattern` does not name; `alpha` alike.
        is_rank_stabilized: alpha is divided by the root of the rank.
        rank_pattern: end of a module's name, as a pattern -> its rank; `alpha_pattern` alike.
    """

    path: Path
    rank: int
    alpha: float
    is_rank_stabilized: bool
    rank_pattern: dict[str, int]
    alpha_pattern: dict[str, float]

    def rank_of(self, module: str) -> int:
        """Return the rank of a module's change."""
        return self._by_pattern(self.rank_pattern, module, self.rank)

    def scale_of(self, module: str) -> float:
        """Return what the product of a module's two matrices is multiplied by."""
        rank = self.rank_of(module)
        alpha = self._by_pattern(self.alpha_pattern, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.is_rank_stabilized else rank)

    def check_rank(self, max_rank: int) -> None:
        """Refuse an adapter of too high a rank.

        Raises:
            ConfigError: one of its ranks is above `max_rank`.
        """
        highest = max([self.rank, *self.rank_pattern.values()])
        if highest > max_rank:
            raise ConfigError(
                f"{self.path}: the adapter has rank {highest}, above --max-lora-rank {max_rank}; give a higher one."
            )

    def _by_pattern(self, pattern: Mapping[str, Number], module: str, default: Number) -> Number:
        for end, value in pattern.items():
            try:
                is_meant = re.fullmatch(rf"(.*\.)?({end})", module)
            except re.error as exc:
                raise ConfigError(f"{self.path}: the pattern {end!r} can't be read: {exc}") from exc
            if is_meant:
                return value
        return default


def read_adapter_config(directory: Path) -> AdapterConfig:
    """Read the configuration of the adapter in a directory.

    Raises:
        ConfigError: there is none, or it describes what this engine does not compute. The message names the key.
    """
    path = directory / CONFIG_NAME
    if not path.is_file():
        raise ConfigError(f"{directory}: is no adapter: it has no {CONFIG_NAME}; name the directory that PEFT wrote.")
    config = read_json_object(path)
    kind = config.get_str("peft_type", "LORA")
    if kind != "LORA":
        raise config.fault("peft_type", f"is {kind!r}; adapters may be LORA")
    for key, (plain, what) in _PLAIN_VALUES.items():
        value = config.data.get(key)
        if value not in plain:
            raise config.fault(key, f"is {value!r}: {what}, which is not supported; LoRA's two matrices alone are")
    return AdapterConfig(
        path=path,
        rank=config.require_int("r"),
        alpha=config.get_float("lora_alpha", 8.0) or 0.0,
        is_rank_stabilized=config.get_bool("use_rslora", False),
        rank_pattern=_numbers(config, "rank_pattern", int),
        alpha_pattern=_numbers(config, "alpha_pattern", float),
    )


def _numbers(config: JSONReader, key: str, kind: type[Number]) -> dict[str, Number]:
    pattern = config.get_object(key)
    if pattern is None:
        return {}
    try:
        numbers = {name: msgspec.convert(value, kind) for name, value in pattern.data.items()}
    except msgspec.ValidationError as exc:
        raise config.fault(key, f"must name numbers: {exc}") from exc
    for name, value in numbers.items():
        if value <= 0:
            raise pattern.fault(name, f"must be above 0, is {value}")
    return numbers
