from __future__ import annotations

import math
import struct

import pytest

from pagewire.engine_core.pooled import scale_to_one


def test_a_vector_is_scaled_to_length_one():
    vector = scale_to_one(struct.pack("<3f", 3.0, 0.0, -4.0))
    assert struct.unpack("<3f", vector) == pytest.approx((0.6, 0.0, -0.8))
    assert math.hypot(*struct.unpack("<3f", vector)) == pytest.approx(1.0)


def test_a_vector_of_zeros_stays_one():
    assert scale_to_one(bytes(12)) == bytes(12)
