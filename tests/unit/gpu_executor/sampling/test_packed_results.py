"""Results share one buffer, and come apart again as they were."""

from __future__ import annotations

import torch

from pagewire.gpu_executor.sampling.packed_results import PackedResults, Section


def test_tensors_of_a_buffer_are_found_in_its_copy():
    sections = [
        Section(torch.int64, (3,)),
        Section(torch.float32, (5,)),
        Section(torch.int32, (2, 0)),
        Section(torch.int32, (2, 3)),
        Section(torch.float64, (1,)),
    ]
    results = PackedResults(sections, torch.device("cpu"))
    for number, tensor in enumerate(results.tensors):
        assert tensor.data_ptr() % 16 == 0 or tensor.numel() == 0
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape) + 100 * number)
    arrays = results.split(results.buffer.numpy().copy())
    assert [array.tolist() for array in arrays] == [tensor.tolist() for tensor in results.tensors]
    assert [torch.from_numpy(array).dtype for array in arrays] == [section.dtype for section in sections]


def test_results_without_a_number_have_no_bytes():
    results = PackedResults([Section(torch.float64, (0,)), Section(torch.int32, (0, 4))], torch.device("cpu"))
    assert [array.shape for array in results.split(results.buffer.numpy())] == [(0,), (0, 4)]
