from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pagewire.gpu_executor.kernels.reference.reductions import fixed_order_sum


@given(rows=st.integers(1, 40), size=st.integers(1, 300), seed=st.integers(0, 2**16))
def test_sum_of_a_row_depends_on_the_row_alone(rows: int, size: int, seed: int) -> None:
    x = torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))
    sums = fixed_order_sum(x)
    assert torch.equal(fixed_order_sum(x[rows // 2 :]), sums[rows // 2 :])
    torch.testing.assert_close(sums.double(), x.double().sum(-1), atol=1e-4, rtol=0)
