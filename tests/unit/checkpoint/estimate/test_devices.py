"""Devices by the names that people give them."""

from __future__ import annotations

import pytest

from pagewire.checkpoint.estimate.devices import _ALIASES, COMMON_DEVICES, DEVICES, find_device
from pagewire.ipc.errors import ConfigError


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("h200", "h200"),
        ("NVIDIA H100", "h100"),
        ("A100_80GB", "a100"),
        ("RTX 4090", "rtx-4090"),
        ("AMD MI300X", "mi300x"),
    ],
)
def test_spellings(spelling: str, name: str) -> None:
    assert find_device(spelling).name == name


def test_an_unknown_device_is_refused_with_a_guess_and_the_list() -> None:
    with pytest.raises(ConfigError, match=r"--gpu h20O: did you mean h20.*h200, h100"):
        find_device("h20O")


def test_names_are_unique_and_aliases_lead_to_devices() -> None:
    names = [device.name for device in DEVICES]
    assert len(names) == len(set(names))
    assert set(COMMON_DEVICES) | set(_ALIASES.values()) <= set(names)
    assert not set(_ALIASES) & set(names)


def test_figures_are_in_the_range_of_real_devices() -> None:
    for device in DEVICES:
        assert 14 * 2**30 < device.memory_bytes < 300 * 2**30
        assert 300e9 <= device.bandwidth <= 8e12
        assert 16e9 <= device.link_bandwidth < device.bandwidth
        assert 20 < device.flops / device.bandwidth < 500  # operations a byte: where the roof bends
