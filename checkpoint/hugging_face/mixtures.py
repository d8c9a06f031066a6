"""How families of experts state their mixtures in config.json; `Family.read_mixture` names the way."""

from __future__ import annotations

from ..json_reader import JSONReader
from ..mixture import MAX_EXPERTS, Mixture

# How configurations state experts beside those that the router chooses from.
_SHARED_EXPERTS = ("n_shared_experts", "num_shared_experts", "shared_expert_intermediate_size")


def no_mixture(config: JSONReader, num_layers: int) -> Mixture | None:
    """Return what families without experts have."""
    return None


def mixtral_mixture(config: JSONReader, num_layers: int) -> Mixture | None:
    """Return Mixtral's: every layer has one, and experts are as large as a dense model's block."""
    num_experts = _num_experts(config, "num_local_experts", 8)
    return Mixture(
        num_experts=num_experts,
        num_chosen=_num_chosen(config, 2, num_experts),
        intermediate_size=config.require_int("intermediate_size"),
        is_renormalized=True,
        layers=tuple(range(num_layers)),
    )


def qwen3_mixture(config: JSONReader, num_layers: int) -> Mixture | None:
    """Return Qwen3's: every so many layers have one, but for those that are named as dense."""
    num_experts = _num_experts(config, "num_experts", 128)
    period = config.get_int("decoder_sparse_step", 1) or 1
    dense = config.get_indices("mlp_only_layers", num_layers)
    layers = tuple(layer for layer in range(num_layers) if layer not in dense and (layer + 1) % period == 0)
    if not layers:
        return None
    return Mixture(
        num_experts=num_experts,
        num_chosen=_num_chosen(config, 8, num_experts),
        intermediate_size=config.get_int("moe_intermediate_size", 768) or 768,
        is_renormalized=config.get_bool("norm_topk_prob", False),
        layers=layers,
    )


def _num_experts(config: JSONReader, key: str, default: int) -> int:
    for shared in _SHARED_EXPERTS:
        if config.get_int(shared, minimum=0):
            raise config.fault(shared, f"is {config.get_int(shared)}; experts that all tokens share are not supported")
    num_experts = config.get_int(key, default) or default
    if num_experts > MAX_EXPERTS:
        raise config.fault(key, f"is {num_experts}; at most {MAX_EXPERTS} can be")
    return num_experts


def _num_chosen(config: JSONReader, default: int, num_experts: int) -> int:
    num_chosen = config.get_int("num_experts_per_tok", default) or default
    if num_chosen > num_experts:
        raise config.fault("num_experts_per_tok", f"is {num_chosen}, of {num_experts} experts")
    return num_chosen
