"""The limits that measured figures are held against: of the data sheet, and of what torch's operations reached."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from pagewire.checkpoint.estimate.devices import DEVICES, DeviceSpec, find_device
from pagewire.checkpoint.estimate.roofline import decode, step_seconds
from pagewire.checkpoint.estimate.served import KVLayout, Served
from pagewire.checkpoint.estimate.weights import format_bits
from pagewire.checkpoint.model_config import ModelConfig
from pagewire.checkpoint.placement import Placement
from tools.gpu_check.records import AnyRecord, Ceiling, Machine

# Words of the names that drivers report -> the data sheet; the first whose words are all there.
_NAMES: tuple[tuple[str, str], ...] = (
    ("H200", "h200"), ("H100 PCIe", "h100-pcie"), ("H100 NVL", "h100-nvl"), ("H100", "h100"),
    ("H20", "h20"), ("B200", "b200"), ("GB200", "b200"), ("A100 40GB", "a100-40gb"),
    ("A100 PCIe", "a100-pcie"), ("A100", "a100"), ("L40S", "l40s"), ("L40", "l40"), ("L4", "l4"), ("A40", "a40"),
    ("A30", "a30"), ("A10", "a10"), ("A10G", "a10"), ("V100 16GB", "v100-16gb"), ("V100", "v100"), ("T4", "t4"),
    ("RTX 5090", "rtx-5090"), ("RTX 4090", "rtx-4090"), ("RTX 3090", "rtx-3090"), ("RTX 6000 Ada", "rtx-6000-ada"),
    ("MI355X", "mi355x"), ("MI325X", "mi325x"), ("MI300X", "mi300x"), ("MI250X", "mi250x"),
)  # fmt: skip
# Words of names of other devices than the one that they have else in common.
_OTHERS = {"TI", "D", "LAPTOP"}


def data_sheet(records: Sequence[AnyRecord]) -> DeviceSpec | None:
    """Return the data sheet of the machine's device; None if it is not known."""
    for record in records:
        if isinstance(record, Machine):
            words = _words(record.device)
            name = next((name for known, name in _NAMES if _words(known) <= words and not words & _OTHERS), None)
            return None if name is None else find_device(name)
    return None


def _words(name: str) -> set[str]:
    return set(re.findall(r"\w+", name.upper()))


def measured_roof(records: Sequence[AnyRecord]) -> DeviceSpec | None:
    """Return a device with the measured rates; None if they were not measured."""
    ceilings = {record.name: record.value for record in records if isinstance(record, Ceiling)}
    if "products" not in ceilings or not ceilings.keys() & {"copy", "read"}:
        return None
    base = data_sheet(records) or DEVICES[0]
    bandwidth = 1e9 * max(ceilings.get("copy", 0.0), ceilings.get("read", 0.0))
    return msgspec.structs.replace(
        base, name="measured", title="measured", bandwidth=bandwidth, flops=1e12 * ceilings["products"]
    )


def decode_seconds(model: ModelConfig, num_requests: int, context: float, device: DeviceSpec) -> float:
    """Return the least time of a decode step with weights and KV of 16 bits."""
    served = Served(model=model, bits=format_bits("bfloat16"), kv=KVLayout(name="bfloat16", bytes_a_value=2))
    return step_seconds(served, Placement(), decode(num_requests, round(context)), device)


def op_seconds(num_bytes: float, operations: float, device: DeviceSpec) -> float:
    """Return the least time of an op."""
    return max(num_bytes / device.bandwidth, operations / device.flops)
