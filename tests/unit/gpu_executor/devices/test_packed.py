"""Arrays that travel together come out as they were, each where Triton wants it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pagewire.gpu_executor.devices.cpu import CpuDevice
from pagewire.gpu_executor.devices.packed import upload_together
from pagewire.gpu_executor.host_limits import HostLimits

DTYPES = (np.int64, np.int32, np.float32, np.float64, np.uint8)


class CountingDevice(CpuDevice):
    def __init__(self):
        super().__init__(HostLimits())
        self.num_uploads = 0

    def upload(self, array):
        self.num_uploads += 1
        return super().upload(array)


@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(0, 40)), max_size=12))
def test_arrays_of_any_length_and_dtype_come_out_as_they_were_in_one_copy(shapes):
    arrays = [np.arange(length).astype(dtype) for dtype, length in shapes]
    device = CountingDevice()
    tensors = upload_together(device, arrays)
    assert device.num_uploads == 1
    for array, tensor in zip(arrays, tensors, strict=True):
        assert tensor.numpy().dtype == array.dtype
        assert tensor.tolist() == array.tolist()
        assert tensor.storage_offset() * tensor.element_size() % 16 == 0


def test_views_of_larger_arrays_are_taken_as_they_are():
    array = np.arange(12, dtype=np.int64)
    first, second = upload_together(CpuDevice(HostLimits()), [array[1::3], array[::-1]])
    assert first.tolist() == [1, 4, 7, 10]
    assert second.tolist() == list(range(11, -1, -1))
