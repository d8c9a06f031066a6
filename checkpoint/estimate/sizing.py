"""How many devices a model takes, in which format of weights: the question before a machine is ordered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from ..placement import Placement, candidate_placements
from .devices import DeviceSpec
from .memory import MemoryPlan, plan_memory
from .served import Served
from .weights import WeightBits, format_bits


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What has to fit: so many requests of so many tokens at once, prompts and outputs together."""

    num_requests: int
    context: int


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """One way to serve a model.

    Attributes:
        device: what it runs on.
        weights: name of their format.
        placement: the fewest devices that do; None: none of the usual numbers does.
        weight_bytes: of one device, or all of them if no placement does.
        max_requests: of the demanded length at once.
        longest_context: of one request.
    """

    device: str
    weights: str
    placement: Placement | None
    weight_bytes: int
    max_requests: int = 0
    longest_context: int = 0


def least_option(served: Served, device: DeviceSpec, demand: Demand) -> Option:
    """Return the fewest devices that meet a demand."""
    for placement in candidate_placements(served.model):
        plan = plan_memory(served, placement, device)
        if meets(plan, demand):
            return Option(
                device=device.name,
                weights=served.bits.name,
                placement=placement,
                weight_bytes=plan.weights,
                max_requests=plan.max_requests(demand.context),
                longest_context=plan.longest_context(1, served.model.max_position),
            )
    whole = plan_memory(served, Placement(), device)
    return Option(device=device.name, weights=served.bits.name, placement=None, weight_bytes=whole.weights)


def meets(plan: MemoryPlan, demand: Demand) -> bool:
    """Tell whether a demand fits."""
    return plan.max_requests(demand.context) >= demand.num_requests


def compare_options(served: Served, devices: Iterable[DeviceSpec], demand: Demand) -> tuple[Option, ...]:
    """Return the fewest devices of each kind, for the weights as they are and for formats that take less."""
    formats = [msgspec.structs.replace(served, bits=bits) for bits in _usual_formats(served.bits)]
    return tuple(least_option(each, device, demand) for device in devices for each in formats)


def _usual_formats(given: WeightBits) -> Iterator[WeightBits]:
    """Yield the given format, and those that take less."""
    yield given
    for name in ("fp8", "int4"):
        bits = format_bits(name)
        if bits.layers < given.layers:
            yield bits
