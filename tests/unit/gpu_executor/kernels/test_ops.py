from __future__ import annotations

import pytest

from pagewire.gpu_executor.kernels.ops import select_ops
from pagewire.ipc.errors import ConfigError


def test_auto_chooses_a_backend_and_an_unknown_name_lists_the_known_ones() -> None:
    assert select_ops("auto").name == "reference"
    with pytest.raises(ConfigError, match=r"fastest.*reference"):
        select_ops("fastest")
