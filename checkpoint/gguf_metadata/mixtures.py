"""Mixtures of experts as a GGUF file states them; which layers have one, its tensors say."""

from __future__ import annotations

from pagewire.ipc.errors import ConfigError

from ..gguf_file import GGUFFile
from ..mixture import MAX_EXPERTS, Mixture
from .numbers import positive_int

ROUTER = "ffn_gate_inp"
"""The module of a layer's router."""

_ARCHITECTURES = ("llama", "qwen3moe")  # Mixtral is a llama with experts
_SOFTMAX = 1  # of `expert_gating_func`


def read_mixture(file: GGUFFile, name: str, num_layers: int) -> Mixture | None:
    """Read the mixtures of an architecture; None if it has none.

    Raises:
        ConfigError: it has experts that this version doesn't know how to choose or to add.
    """
    num_experts = file.get_int(f"{name}.expert_count", 0)
    if not num_experts:
        if name == "qwen3moe":
            raise ConfigError(f"{file.path}: lacks the metadata key {name}.expert_count")
        return None
    _refuse_unknown(file, name)
    if not 0 < num_experts <= MAX_EXPERTS:
        raise ConfigError(f"{file.path}: {name}.expert_count is {num_experts}; 1 to {MAX_EXPERTS} can be")
    num_chosen = positive_int(file, f"{name}.expert_used_count")
    if num_chosen > num_experts:
        raise ConfigError(f"{file.path}: {name}.expert_used_count is {num_chosen}, of {num_experts} experts")
    layers = tuple(layer for layer in range(num_layers) if f"blk.{layer}.{ROUTER}.weight" in file.tensors)
    if not layers:
        raise ConfigError(f"{file.path}: states {num_experts} experts, and no layer has the router {ROUTER}.weight")
    return Mixture(
        num_experts=num_experts,
        num_chosen=num_chosen,
        intermediate_size=_expert_size(file, name),
        # llama.cpp does so in both architectures, whatever the file says.
        is_renormalized=True,
        layers=layers,
    )


def _expert_size(file: GGUFFile, name: str) -> int:
    key = f"{name}.expert_feed_forward_length"
    return positive_int(file, key if file.get_int(key, 0) else f"{name}.feed_forward_length")


def _refuse_unknown(file: GGUFFile, name: str) -> None:
    if name not in _ARCHITECTURES:
        raise ConfigError(
            f"{file.path}: the architecture {name!r} with experts is not supported; supported are "
            f"{' and '.join(_ARCHITECTURES)}"
        )
    for key in ("expert_shared_count", "expert_shared_feed_forward_length"):
        if file.get_int(f"{name}.{key}", 0):
            raise ConfigError(f"{file.path}: {name}.{key}: experts that all tokens share are not supported")
    if (file.get_int(f"{name}.expert_gating_func", 0) or _SOFTMAX) != _SOFTMAX:
        raise ConfigError(f"{file.path}: {name}.expert_gating_func is another than softmax, which is not supported")
    if (file.get_float(f"{name}.expert_weights_scale", 0.0) or 1.0) != 1.0:
        raise ConfigError(f"{file.path}: {name}.expert_weights_scale is not 1, which is not supported")
