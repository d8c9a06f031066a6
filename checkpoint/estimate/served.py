"""A model and how it is served, whatever it is served on."""

from __future__ import annotations

import msgspec

from pagewire.ipc.config import GPU_STEP_LIMITS, StepLimits

from ..model_config import ModelConfig
from .weights import WeightBits


class KVLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How keys and values are stored.

    Attributes:
        name: of their type.
        bytes_a_value: of one number.
    """

    name: str
    bytes_a_value: int


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What an estimate is about.

    Attributes:
        model: its shape.
        bits: of its weights.
        kv: how keys and values are stored.
        limits: the largest step.
        utilization: share of a device's memory that may be used.
    """

    model: ModelConfig
    bits: WeightBits
    kv: KVLayout
    limits: StepLimits = GPU_STEP_LIMITS
    utilization: float = 0.9
