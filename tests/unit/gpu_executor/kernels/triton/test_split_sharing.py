"""How splits are shared on a device of 132 multiprocessors, by a model of 32 heads, 8 KV heads and 128 channels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagewire.gpu_executor.kernels.triton.split_sharing import Sharing, Splits, largest_workspace_bytes, share_splits

GIB = 2**30
MIB = 2**20
NUM_MULTIPROCESSORS = 132
SPLIT_LEN = 512


def decodes(num_requests: int, max_seq_len: int, *, may_be_short: bool = False) -> Splits:
    max_splits = -(-max_seq_len // SPLIT_LEN)
    return Splits(
        num_requests=num_requests,
        num_programs=8 * num_requests,
        max_splits=max_splits,
        split_len=SPLIT_LEN,
        partial_bytes=4 * num_requests * 32 * max_splits * (128 + 2),
        is_divisible=True,
        may_be_short=may_be_short,
    )


def share(splits: Splits, *, workspace_bytes: int = 640 * MIB) -> Sharing:
    return share_splits(splits, num_multiprocessors=NUM_MULTIPROCESSORS, workspace_bytes=workspace_bytes)


def test_few_requests_fill_the_device() -> None:
    assert share(decodes(1, 100_000)) == Sharing(66, 1)
    assert share(decodes(8, 100_000)) == Sharing(13, 8)


def test_many_short_requests_share_nothing() -> None:
    assert share(decodes(34, 8192)) == Sharing(1, 34)
    assert share(decodes(256, 4096)) == Sharing(1, 256)


@pytest.mark.parametrize("num_requests", [34, 64, 126, 256])
def test_one_long_request_among_many_is_not_left_to_a_few_programs(num_requests: int) -> None:
    num_slots, _ = share(decodes(num_requests, 131_072))
    assert 131_072 / num_slots <= 8192


@pytest.mark.parametrize("num_requests", [1, 16, 34, 64, 126, 256, 512])
def test_graph_for_long_requests_has_few_idle_programs_when_all_are_short(num_requests: int) -> None:
    num_slots, at_once = share(decodes(num_requests, 131_072, may_be_short=True))
    assert 8 * at_once * num_slots <= 8 * 4 * NUM_MULTIPROCESSORS
    assert num_slots > 1


def test_partials_beyond_the_workspace_are_had_in_equal_parts() -> None:
    # 157 requests would fit: a full part would leave one of 99.
    assert share(decodes(256, 131_072)).requests_at_once == 128


def test_what_can_not_be_divided_shares_nothing_if_its_partials_do_not_fit() -> None:
    splits = decodes(256, 131_072)._replace(is_divisible=False)
    assert share(splits) == Sharing(1, 256)
    assert share(splits, workspace_bytes=splits.partial_bytes).num_slots > 1


def test_a_request_whose_partials_do_not_fit_shares_nothing() -> None:
    assert share(decodes(2, 131_072), workspace_bytes=10_000) == Sharing(1, 2)


@given(
    num_requests=st.integers(1, 600),
    max_seq_len=st.integers(1, 2_000_000),
    may_be_short=st.booleans(),
    workspace_bytes=st.integers(0, GIB),
)
def test_partials_never_take_more_than_the_workspace(
    num_requests: int, max_seq_len: int, may_be_short: bool, workspace_bytes: int
) -> None:
    splits = decodes(num_requests, max_seq_len, may_be_short=may_be_short)
    num_slots, at_once = share(splits, workspace_bytes=workspace_bytes)
    assert 1 <= num_slots <= splits.max_splits
    assert at_once >= 1
    if num_slots > 1:
        assert splits.partial_bytes * at_once <= workspace_bytes * num_requests


@pytest.mark.parametrize(("device_bytes", "expected"), [(24 * GIB, 24 * GIB // 100), (141 * GIB, 640 * MIB)])
def test_workspace_is_a_hundredth_of_the_device_and_640_mib_at_most(device_bytes: int, expected: int) -> None:
    assert largest_workspace_bytes(device_bytes) == pytest.approx(expected, abs=1)
