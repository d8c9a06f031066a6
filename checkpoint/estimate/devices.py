"""What accelerators have: memory, and how fast they read it, compute and talk to each other.

Rates are those of the makers' data sheets, for 16-bit products that are accumulated in float32, without the doubling
that structured sparsity gives. A device in use reaches some 90 % of the bandwidth and 60 to 80 % of the products; a
limit on paper is a limit all the same. Memory is what the driver reports, which is less than the name says.
"""

from __future__ import annotations

from difflib import get_close_matches

import msgspec

from pagewire.ipc.errors import ConfigError

_MIB = 1 << 20
_PCIE4, _PCIE5 = 32.0, 64.0  # GB/s one way, of 16 lanes
# Between machines: a network card of 400 Gbit/s for each device. What a small exchange takes from launch to result, in
# a machine and between machines: estimates from the field, not measured here.
_MACHINE_BANDWIDTH = 50e9
_LINK_DELAY_S, _MACHINE_DELAY_S = 8e-6, 20e-6


class DeviceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One device.

    Attributes:
        name: as `--gpu` takes it.
        title: for people.
        memory_bytes: as the driver reports them.
        bandwidth: bytes that it reads from its memory in a second.
        flops: operations of 16-bit matrix products in a second; a multiplication and an addition are two.
        link_bandwidth: bytes a second that it can receive from its neighbours in the same machine.
        has_bfloat16: its matrix units take bfloat16; otherwise 16-bit weights are float16.
        link_delay_s: what an exchange with its neighbours takes besides, however little is sent.
        machine_bandwidth: bytes a second that it can receive from a device of another machine.
        machine_delay_s: like `link_delay_s`, between machines.
    """

    name: str
    title: str
    memory_bytes: int
    bandwidth: float
    flops: float
    link_bandwidth: float
    has_bfloat16: bool = True
    link_delay_s: float = _LINK_DELAY_S
    machine_bandwidth: float = _MACHINE_BANDWIDTH
    machine_delay_s: float = _MACHINE_DELAY_S

    def link_seconds(self, num_bytes: float, *, between_machines: bool) -> float:
        """Return the least time of one exchange in which the device receives so many bytes; none takes no time."""
        if num_bytes == 0:
            return 0.0
        if between_machines:
            return num_bytes / self.machine_bandwidth + self.machine_delay_s
        return num_bytes / self.link_bandwidth + self.link_delay_s


def _device(
    name: str, title: str, mib: int, gb_per_s: float, tflops: float, link: float, *, has_bfloat16: bool = True
) -> DeviceSpec:
    return DeviceSpec(
        name=name,
        title=title,
        memory_bytes=mib * _MIB,
        bandwidth=gb_per_s * 1e9,
        flops=tflops * 1e12,
        link_bandwidth=link * 1e9,
        has_bfloat16=has_bfloat16,
    )


# Links: NVLink and Infinity Fabric one way (half of what data sheets call the total), else PCIe.
DEVICES: tuple[DeviceSpec, ...] = (
    _device("b200", "NVIDIA B200", 183_359, 8000, 2250, 900),
    _device("h200", "NVIDIA H200", 143_771, 4800, 989, 450),
    _device("h100", "NVIDIA H100 SXM 80 GB", 81_559, 3350, 989, 450),
    _device("h100-pcie", "NVIDIA H100 PCIe 80 GB", 81_559, 2000, 756, _PCIE5),
    _device("h100-nvl", "NVIDIA H100 NVL 94 GB", 95_830, 3900, 835, 300),
    _device("h20", "NVIDIA H20 96 GB", 97_871, 4000, 148, 450),
    _device("a100", "NVIDIA A100 SXM 80 GB", 81_920, 2039, 312, 300),
    _device("a100-40gb", "NVIDIA A100 SXM 40 GB", 40_960, 1555, 312, 300),
    _device("a100-pcie", "NVIDIA A100 PCIe 80 GB", 81_920, 1935, 312, _PCIE4),
    _device("l40s", "NVIDIA L40S", 46_068, 864, 362, _PCIE4),
    _device("l40", "NVIDIA L40", 46_068, 864, 181, _PCIE4),
    _device("l4", "NVIDIA L4", 23_034, 300, 121, _PCIE4),
    _device("a40", "NVIDIA A40", 46_068, 696, 149.7, _PCIE4),
    _device("a30", "NVIDIA A30", 24_576, 933, 165, _PCIE4),
    _device("a10", "NVIDIA A10", 23_028, 600, 125, _PCIE4),
    _device("v100", "NVIDIA V100 SXM 32 GB", 32_768, 900, 125, 150, has_bfloat16=False),
    _device("v100-16gb", "NVIDIA V100 SXM 16 GB", 16_384, 900, 125, 150, has_bfloat16=False),
    _device("t4", "NVIDIA T4", 15_360, 320, 65, 16, has_bfloat16=False),
    _device("rtx-5090", "NVIDIA RTX 5090", 32_607, 1792, 209.5, _PCIE5),
    _device("rtx-4090", "NVIDIA RTX 4090", 24_564, 1008, 165.2, _PCIE4),
    _device("rtx-3090", "NVIDIA RTX 3090", 24_576, 936, 71, _PCIE4),
    _device("rtx-6000-ada", "NVIDIA RTX 6000 Ada", 49_140, 960, 364, _PCIE4),
    _device("mi355x", "AMD MI355X", 294_896, 8000, 2516, 537),
    _device("mi325x", "AMD MI325X", 262_128, 6000, 1307, 448),
    _device("mi300x", "AMD MI300X", 196_592, 5300, 1307, 448),
    _device("mi250x", "AMD MI250X, one of its two dies", 65_520, 1638, 191.5, 150),
)

# Spellings that people use for them.
_ALIASES = {
    "h100-80gb": "h100", "h100-sxm": "h100", "h200-sxm": "h200", "h200-141gb": "h200", "a100-80gb": "a100",
    "a100-sxm": "a100", "v100-32gb": "v100", "a10g": "a10", "4090": "rtx-4090", "5090": "rtx-5090", "3090": "rtx-3090",
    "rtx6000-ada": "rtx-6000-ada", "mi300": "mi300x",
}  # fmt: skip

COMMON_DEVICES = ("h200", "h100", "a100", "l40s", "l4", "mi300x")
"""The devices that an answer about none in particular compares."""


def find_device(name: str) -> DeviceSpec:
    """Return the device of that name, in any case, blanks and underscores being dashes.

    Raises:
        ConfigError: if it is not known.
    """
    key = name.strip().lower().replace(" ", "-").replace("_", "-")
    for prefix in ("nvidia-", "amd-", "instinct-"):
        key = key.removeprefix(prefix)
    key = _ALIASES.get(key, key)
    known = {device.name: device for device in DEVICES}
    if key in known:
        return known[key]
    guess = get_close_matches(key, known, n=1)
    hint = f"did you mean {guess[0]}? Known" if guess else "known"
    raise ConfigError(f"--gpu {name}: {hint} are {', '.join(known)}.")
