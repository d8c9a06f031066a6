"""What no question can be made of."""

from __future__ import annotations

import pytest

from pagewire.frontend.estimate.config import EstimateConfig
from pagewire.ipc.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"context_len": 1}, "--context-len 1 must be at least 2"),
        ({"output_len": 0}, "--output-len 0 must be at least 1"),
        ({"num_requests": 0}, "--num-requests 0 must be at least 1"),
        ({"gpu_memory_utilization": 0.0}, "--gpu-memory-utilization 0 must be above 0"),
        ({"efficiency": 1.5}, "--efficiency 1.5 must be above 0 and at most 1"),
        ({"tensor_parallel_size": 2}, "need --gpu"),
        ({"pipeline_parallel_size": 2}, "need --gpu"),
        ({"link_bandwidth": 100.0}, "--link-bandwidth needs --gpu"),
        ({"gpu": "h200", "link_bandwidth": 0.0}, "--link-bandwidth 0 must be above 0"),
        ({"gpu": "h200", "machine_bandwidth": float("nan")}, "--machine-bandwidth nan must be above 0"),
        ({"gpu": "h200", "machine_delay": -1.0}, "--machine-delay -1 must be at least 0"),
    ],
)
def test_impossible_values_are_named(options: dict[str, object], part: str):
    with pytest.raises(ConfigError, match=part):
        EstimateConfig(**options)  # type: ignore[arg-type]  # of their own types
