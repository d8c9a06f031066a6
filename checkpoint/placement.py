"""How a model is spread over devices, as far as sizes go."""

from __future__ import annotations

import msgspec

from pagewire.ipc.errors import ConfigError

from .model_config import ModelConfig

DEVICES_A_MACHINE = 8
"""Beyond so many, links between machines are too slow for a layer to be shared: layers are put one after another."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """So many devices.

    Attributes:
        tp: devices that share each layer (tensor parallel).
        pp: groups of layers, one after the other (pipeline parallel).
        divides_experts: devices that share a layer hold whole experts of a mixture, instead of a part of each.
    """

    tp: int = 1
    pp: int = 1
    divides_experts: bool = False

    @property
    def num_devices(self) -> int:
        """All of them."""
        return self.tp * self.pp

    @property
    def shares_layers_between_machines(self) -> bool:
        """Whether devices that share a layer are too many for one machine."""
        return self.tp > DEVICES_A_MACHINE

    @property
    def has_stages_between_machines(self) -> bool:
        """Whether a stage hands on to one on another machine."""
        return self.pp > 1 and self.num_devices > DEVICES_A_MACHINE


def check_placement(model: ModelConfig, placement: Placement) -> None:
    """Refuse a number of devices that the model's shapes can't be divided by.

    Raises:
        ConfigError: the message names the numbers that the model can be divided by.
    """
    fault = _fault(model, placement)
    if fault is not None:
        raise ConfigError(fault)


def candidate_placements(model: ModelConfig, max_machines: int = 8) -> list[Placement]:
    """Return the usual placements that fit the model's shapes, fewest devices first."""
    within = [Placement(tp=tp) for tp in (1, 2, 4, DEVICES_A_MACHINE)]
    beyond = [Placement(tp=DEVICES_A_MACHINE, pp=machines) for machines in range(2, max_machines + 1)]
    return [placement for placement in [*within, *beyond] if _fault(model, placement) is None]


def kv_heads_a_device(model: ModelConfig, placement: Placement) -> int:
    """Return how many KV heads a device keeps: with more devices than heads, several keep the same one."""
    return max(1, model.num_kv_heads // placement.tp)


def layers_a_stage(model: ModelConfig, placement: Placement) -> int:
    """Return the layers of a stage for times: divided evenly, since they count the output layer by itself.

    `stage_layers` has the stages as they are, for memory.
    """
    return -(-model.num_layers // placement.pp)


def _fault(model: ModelConfig, placement: Placement) -> str | None:
    tp, pp = placement.tp, placement.pp
    if placement.divides_experts and model.mixture is None:
        return f"--enable-expert-parallel: a {model.architecture} has no experts to divide; leave it out."
    channels = _divided_channels(model, placement)
    if not _can_share_layers(model, tp, channels):
        possible = ", ".join(
            str(size) for size in range(1, model.num_heads + 1) if _can_share_layers(model, size, channels)
        )
        between = "".join(f" and the {number} channels between {whose} projections" for whose, number in channels)
        return (
            f"--tp {tp}: the model's {model.num_heads} heads{between} must be divided by it, and its "
            f"{model.num_kv_heads} KV heads divided or repeated; possible are {possible}."
        )
    if pp > model.num_layers:
        return f"--pp {pp}: the model has {model.num_layers} layers; give at most as many."
    return None


def _divided_channels(model: ModelConfig, placement: Placement) -> list[tuple[str, int]]:
    """Return the channels of feed-forward blocks that are divided, by whose they are."""
    mixture = model.mixture
    if mixture is None:
        return [("its", model.intermediate_size)]
    of_experts = [] if placement.divides_experts else [("an expert's", mixture.intermediate_size)]
    has_dense_layers = len(mixture.layers) < model.num_layers
    return [("a dense layer's", model.intermediate_size), *of_experts] if has_dense_layers else of_experts


def _can_share_layers(model: ModelConfig, tp: int, channels: list[tuple[str, int]]) -> bool:
    are_parts_whole = all(number % tp == 0 for number in (model.num_heads, *(number for _, number in channels)))
    return are_parts_whole and (model.num_kv_heads % tp == 0 or tp % model.num_kv_heads == 0)
