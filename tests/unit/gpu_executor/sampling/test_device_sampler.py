"""The device's sampler gives what the host's gives, row by row, and the host waits for nothing before it collects."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch

from pagewire.gpu_executor.devices.cpu import CpuDevice
from pagewire.gpu_executor.host_limits import HostLimits
from pagewire.gpu_executor.kernels.draw_arrays import DrawArrays
from pagewire.gpu_executor.kernels.draws import OutputRows
from pagewire.gpu_executor.kernels.reference.reference_ops import ReferenceOps
from pagewire.gpu_executor.kernels.triton.triton_sampling import TritonSampling
from pagewire.gpu_executor.sampling.device_sampler import DeviceSampler
from pagewire.gpu_executor.sampling.draw import Draw, KeptTokens, RowSampling
from pagewire.gpu_executor.sampling.row_edits import TokenHistory
from pagewire.gpu_executor.sampling.sampler import Sampler
from pagewire.gpu_executor.sampling.step_tables import EditArrays
from pagewire.ipc.errors import EngineError
from pagewire.ipc.sampling_params import Sampling
from tests.support.quick_interpreter import language_patched_once

VOCAB_SIZE = 307
NUM_PADDING = 13
HOST_OPS = ReferenceOps()


@pytest.fixture(autouse=True, scope="module")
def quick_interpreter():
    with language_patched_once():
        yield


class DrawingOps(TritonSampling):
    """The ops that draw, alone."""


class OpsThatLookTokensUp(DrawingOps):
    """Insists on tokens that can be looked up."""

    def describe_tokens(self, logits, num_drawable, bests, tokens, table, reports):
        assert all(0 <= token_id < num_drawable for token_id in tokens.tolist())
        super().describe_tokens(logits, num_drawable, bests, tokens, table, reports)


class WatchedDevice(CpuDevice):
    """Counts copies."""

    def __init__(self):
        super().__init__(HostLimits())
        self.num_uploads = self.num_downloads = self.num_awaited = 0

    def upload(self, array):
        self.num_uploads += 1
        return super().upload(array)

    def download(self, tensor):
        self.num_downloads += 1
        return Watched(super().download(tensor), self)


class Watched:
    def __init__(self, download, device):
        self._download, self._device = download, device

    def array(self):
        self._device.num_awaited += 1
        return self._download.array()


class OutputLayer:
    """A model whose logits are its hidden states."""

    def compute_logits(self, hidden):
        return hidden.clone()


def draw(history=(1, 2, 3, 3, 310), num_prompt=2, child=0, num_draws=1, **options):
    row_sampling = RowSampling.prepare(Sampling(**options), child, VOCAB_SIZE)
    return Draw(row_sampling, TokenHistory(np.array(history, dtype=np.int32), num_prompt), num_draws)


def logits(num_rows, seed=0):
    rows = torch.full((num_rows, VOCAB_SIZE + NUM_PADDING), 50.0)  # padding that would win
    rows[:, :VOCAB_SIZE] = torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 3
    return rows


def begun(rows, draws, device=None):
    return DeviceSampler(VOCAB_SIZE, DrawingOps(), device or CpuDevice(HostLimits())).begin(OutputLayer(), rows, draws)


def sample(rows, draws):
    return begun(rows, draws).collect()


def on_the_host(rows, draws, masks=None):
    rows = rows[:, :VOCAB_SIZE].clone()
    best_values, best_ids = rows.max(dim=-1)
    kept = [i for i, draw in enumerate(draws) if draw.needs_logits]
    output = OutputRows(best_values.tolist(), best_ids.tolist(), rows[kept] if kept else None)
    return Sampler(VOCAB_SIZE, HOST_OPS).sample(output, draws, masks)


def assert_same(ours, expected):
    assert [(drawn.token_ids, drawn.error) for drawn in ours] == [(drawn.token_ids, drawn.error) for drawn in expected]
    for drawn, host in zip(ours, expected, strict=True):
        assert len(drawn.logprobs) == len(host.logprobs)
        for report, host_report in zip(drawn.logprobs, host.logprobs, strict=True):
            assert (report.token_id, report.rank) == (host_report.token_id, host_report.rank)
            assert report.top_token_ids == host_report.top_token_ids
            numbers = [report.logprob, *report.top_logprobs]
            assert numbers == pytest.approx([host_report.logprob, *host_report.top_logprobs], rel=1e-6, abs=1e-6)


MIXED = [
    draw(temperature=0.0),
    draw(temperature=0.0, allowed_token_ids=[4, 9, 200, 4], num_logprobs=3),
    draw(temperature=1.0, seed=5, num_logprobs=2),
    draw(temperature=0.7, seed=-5, top_p=0.8, num_logprobs=0),
    draw(temperature=1.3, seed=6, top_k=7, min_p=0.05),
    draw(temperature=1.0, seed=7, repetition_penalty=1.7, presence_penalty=0.5, num_logprobs=1),
    draw(temperature=0.9, seed=8, num_draws=4, num_logprobs=2),
    draw(temperature=0.0, logit_bias={3: 100.0, 308: 5.0}, min_tokens=4, end_token_ids=[3]),
    draw(temperature=0.0, frequency_penalty=2.0),
    draw(temperature=1.5, seed=9, bad_words_token_ids=[[5], [3, 310, 17]], top_p=0.9, child=3),
]


def test_rows_of_every_kind_get_what_the_host_draws():
    rows = logits(len(MIXED))
    assert_same(sample(rows, MIXED), on_the_host(rows, MIXED))


def test_rows_give_the_same_bits_alone_and_in_another_order():
    rows = logits(len(MIXED))
    together = sample(rows, MIXED)
    for i in (1, 5):
        assert sample(rows[i : i + 1], [MIXED[i]]) == together[i : i + 1]
    order = torch.randperm(len(MIXED), generator=torch.Generator().manual_seed(1)).tolist()
    assert sample(rows[order], [MIXED[i] for i in order]) == [together[i] for i in order]


def test_logits_of_a_captured_graph_are_taken_and_its_padding_rows_are_passed_over():
    rows = logits(4)
    rows[2:] = math.nan
    sampler = DeviceSampler(VOCAB_SIZE, DrawingOps(), CpuDevice(HostLimits()))
    pending = sampler.begin(OutputLayer(), torch.empty(0), MIXED[:2], rows.clone())
    assert_same(pending.collect(), on_the_host(rows[:2], MIXED[:2]))


def later(one, num_tokens):
    """The draw of the same row when it has more tokens."""
    token_ids, num_prompt = one.history
    more = np.arange(20, 20 + num_tokens, dtype=np.int32)
    return one._replace(history=TokenHistory(np.concatenate([token_ids, more]), num_prompt))


def test_each_step_of_the_same_rows_gets_what_the_host_draws():
    sampler = DeviceSampler(VOCAB_SIZE, DrawingOps(), CpuDevice(HostLimits()))
    rows = logits(len(MIXED))
    for num_tokens in range(3):
        draws = [later(one, num_tokens) for one in MIXED]
        assert_same(sampler.begin(OutputLayer(), rows, draws).collect(), on_the_host(rows, draws))
    fewer = [later(one, 4) for one in MIXED[1:]]
    assert_same(sampler.begin(OutputLayer(), rows[1:], fewer).collect(), on_the_host(rows[1:], fewer))


def test_tables_of_the_same_rows_are_laid_out_once(monkeypatch):
    num_layouts = Counter()
    for kind in (DrawArrays, EditArrays):

        def counted(*args, kind=kind, layout=kind.of):
            num_layouts[kind] += 1
            return layout(*args)

        monkeypatch.setattr(kind, "of", counted)
    sampler = DeviceSampler(VOCAB_SIZE, DrawingOps(), CpuDevice(HostLimits()))
    for num_tokens in range(3):
        draws = [later(one, num_tokens) for one in (MIXED[1], MIXED[4], MIXED[5])]
        sampler.begin(OutputLayer(), logits(3), draws)
    assert num_layouts == {DrawArrays: 1, EditArrays: 1}
    sampler.begin(OutputLayer(), logits(2), [MIXED[5], MIXED[4]])
    assert num_layouts == {DrawArrays: 2, EditArrays: 2}


def test_penalties_find_tokens_that_the_device_keeps_and_the_host_does_not_know():
    draws = [MIXED[5], MIXED[0], MIXED[8]]
    width = 9
    kept = torch.full((len(draws) * width,), 7, dtype=torch.int32)
    unknown = []
    for index, one in enumerate(draws):
        token_ids, num_prompt = one.history
        kept[index * width : index * width + len(token_ids)] = torch.from_numpy(token_ids)
        history = TokenHistory(np.where(np.arange(len(token_ids)) < num_prompt, token_ids, -1), num_prompt)
        place = KeptTokens(kept, index * width) if one.row_sampling.is_penalized else None
        unknown.append(one._replace(history=history, kept=place))
    assert_same(sample(logits(3), unknown), on_the_host(logits(3), draws))


def test_next_step_finds_each_rows_first_token_on_the_device():
    draws = [MIXED[0], MIXED[6], MIXED[2]]
    pending = begun(logits(3), draws)
    assert pending.token_ids.tolist() == [drawn.token_ids[0] for drawn in pending.collect()]


def test_failed_row_leaves_a_token_of_the_vocabulary_for_the_next_step():
    rows = logits(2)
    rows[:, 306] = math.nan
    pending = begun(rows, [draw(temperature=0.0), draw(temperature=1.0)])
    assert all(0 <= token_id < VOCAB_SIZE for token_id in pending.token_ids.tolist())


def test_one_copy_goes_each_way_and_nothing_is_awaited_before_it_is_collected():
    device = WatchedDevice()
    pending = begun(logits(len(MIXED)), MIXED, device)
    assert (device.num_uploads, device.num_downloads, device.num_awaited) == (1, 1, 0)
    pending.collect()
    assert device.num_awaited == 1


def test_greedy_rows_send_nothing():
    device = WatchedDevice()
    rows = logits(3)
    history_is_not_asked_for = [Draw(MIXED[0].row_sampling, None)] * 3
    drawn = begun(rows, history_is_not_asked_for, device).collect()
    assert [row.token_ids for row in drawn] == rows[:, :VOCAB_SIZE].argmax(-1, keepdim=True).tolist()
    assert (device.num_uploads, device.num_downloads) == (0, 1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_row_without_a_token_left_fails_alone(temperature):
    empty = draw(temperature=temperature, allowed_token_ids=[5], bad_words_token_ids=[[5]], num_logprobs=1)
    rows = logits(3)
    draws = [MIXED[0], empty, MIXED[2]]
    drawn = sample(rows, draws)
    assert drawn[1].error.kind == "InvalidRequest"
    assert_same(drawn, on_the_host(rows, draws))


@pytest.mark.parametrize("top_p", [1.0, 0.5])
def test_draws_of_a_row_without_a_token_left_are_tokens_of_the_vocabulary(top_p, monkeypatch):
    """What the results' memory held before is never taken for a token id: whoever looks it up would read anywhere."""
    empty = torch.empty

    def empty_poisoned(*args, **kwargs):
        memory = empty(*args, **kwargs)
        return memory.fill_(0x55) if memory.dtype == torch.uint8 else memory  # as the results' buffer is

    monkeypatch.setattr(torch, "empty", empty_poisoned)
    options = {"temperature": 1.0, "top_p": top_p, "num_draws": 3, "num_logprobs": 1}
    nothing_left = draw(allowed_token_ids=[5], bad_words_token_ids=[[5]], **options)
    broken = draw(seed=3, **options)
    rows = logits(3)
    rows[1, 100] = math.nan
    draws = [nothing_left, broken, MIXED[2]]
    sampler = DeviceSampler(VOCAB_SIZE, OpsThatLookTokensUp(), CpuDevice(HostLimits()))
    assert_same(sampler.begin(OutputLayer(), rows, draws).collect(), on_the_host(rows, draws))


def test_rows_of_nan_or_infinite_logits_fail_alone():
    draws = [
        draw(temperature=1.0, allowed_token_ids=[1, 2], num_logprobs=1),  # the NaN is masked, the row is broken
        draw(temperature=1.0, top_k=5, top_p=0.5, num_draws=3),
        draw(temperature=0.0),
        MIXED[2],
    ]
    rows = logits(4)
    rows[0, 100] = rows[1, 0] = math.nan
    rows[2, 5] = math.inf
    drawn = sample(rows, draws)
    assert [row.error.kind if row.error else None for row in drawn] == ["EngineError"] * 3 + [None]
    assert_same(drawn, on_the_host(rows, draws))


@pytest.mark.parametrize("num_logprobs", [-1, 150])
def test_more_alternatives_than_a_kernel_gives_are_sorted(num_logprobs):
    draws = [draw(temperature=1.0, seed=1, num_draws=2, num_logprobs=num_logprobs), MIXED[2]]
    rows = logits(2)
    rows[0, :VOCAB_SIZE] = rows[0, :VOCAB_SIZE].round()
    device = WatchedDevice()
    pending = begun(rows, draws, device)
    assert device.num_awaited == 0
    assert_same(pending.collect(), on_the_host(rows, draws))


@pytest.mark.parametrize("num_top", [0, 3, -1])
def test_prompt_logprobs_are_those_of_the_host(num_top):
    rows = logits(3).to(torch.float16)
    sampler = DeviceSampler(VOCAB_SIZE, DrawingOps(), CpuDevice(HostLimits()))
    ours = sampler.prompt_logprobs(rows, [3, 306, 0], num_top)
    expected = Sampler(VOCAB_SIZE, HOST_OPS).prompt_logprobs(rows, [3, 306, 0], num_top)
    assert [(one.token_id, one.rank, one.top_token_ids) for one in ours] == [
        (one.token_id, one.rank, one.top_token_ids) for one in expected
    ]
    for one, other in zip(ours, expected, strict=True):
        assert [one.logprob, *one.top_logprobs] == pytest.approx([other.logprob, *other.top_logprobs], rel=1e-6)


def test_prompt_logprobs_of_broken_logits_are_refused():
    rows = logits(2)
    rows[1, 7] = math.nan
    sampler = DeviceSampler(VOCAB_SIZE, DrawingOps(), CpuDevice(HostLimits()))
    with pytest.raises(EngineError, match="not finite"):
        sampler.prompt_logprobs(rows, [3, 4], 1)


def test_draws_follow_the_target_distribution():
    sampler = DeviceSampler(5, DrawingOps(), CpuDevice(HostLimits()))
    num_draws = 40
    row_sampling = RowSampling.prepare(Sampling(temperature=1.0, seed=17, top_k=3), 0, 5)
    one_row = Draw(row_sampling, TokenHistory(np.array([1], dtype=np.int32), 1), num_draws)
    row = torch.tensor([[0.4, 0.3, 0.15, 0.1, 0.05]]).log()
    (drawn,) = sampler.begin(OutputLayer(), row, [one_row]).collect()
    counts = np.bincount(drawn.token_ids, minlength=5)
    expected = np.array([0.4, 0.3, 0.15]) / 0.85 * num_draws
    assert counts[3:].sum() == 0
    assert (((counts[:3] - expected) ** 2) / expected).sum() < 13.8  # the 99.9 % point at 2 degrees of freedom


def test_draws_behind_a_row_and_its_drafts_are_those_of_the_host():
    # One row of the batch is drawn from behind its last token and behind three drafts, as if these were tokens.
    tokens = torch.tensor([0, 0, 1, 2, 3, 7, 7, 9], dtype=torch.int32)
    options = {"temperature": 0.8, "seed": 5, "repetition_penalty": 1.4, "frequency_penalty": 0.3, "min_tokens": 4}
    row_sampling = RowSampling.prepare(Sampling(**options, end_token_ids=[11], num_logprobs=2), 0, VOCAB_SIZE)
    histories = [TokenHistory(tokens[2:end].numpy(), 2) for end in (5, 6, 7, 8)]
    on_device = [Draw(row_sampling, history, 1, KeptTokens(tokens, 2)) for history in histories]
    rows = logits(4, seed=3)
    assert_same(sample(rows, on_device), on_the_host(rows, [Draw(row_sampling, history) for history in histories]))


def test_masked_rows_draw_what_the_host_would_by_the_same_masks():
    draws = [one._replace(is_masked=index % 3 != 1) for index, one in enumerate(MIXED)]
    masks = [random_mask(index, 40) if one.is_masked and index != 3 else None for index, one in enumerate(draws)]
    rows = logits(len(draws), seed=3)
    pending = DeviceSampler(VOCAB_SIZE, DrawingOps(), CpuDevice(HostLimits())).begin(
        OutputLayer(), rows.clone(), draws, None, lambda: masks
    )
    drawn = pending.collect()
    assert_same(drawn, on_the_host(rows, draws, masks))
    for one, mask in zip(drawn, masks, strict=True):
        if mask is not None:
            assert all(mask[token_id // 32] >> token_id % 32 & 1 for token_id in one.token_ids)


def test_mask_that_leaves_nothing_of_what_is_allowed_fails_its_row_alone():
    draws = [MIXED[1]._replace(is_masked=True), MIXED[0]]
    masks = [random_mask(1, 0), None]
    pending = DeviceSampler(VOCAB_SIZE, DrawingOps(), CpuDevice(HostLimits())).begin(
        OutputLayer(), logits(2), draws, None, lambda: masks
    )
    failed, free = pending.collect()
    assert "grammar" in failed.error.message
    assert free.error is None


def test_masks_of_one_step_are_forgotten_in_the_next():
    sampler = DeviceSampler(VOCAB_SIZE, DrawingOps(), CpuDevice(HostLimits()))
    masked, rows = [MIXED[0]._replace(is_masked=True)], logits(1)
    only = random_mask(0, 1)
    first = sampler.begin(OutputLayer(), rows.clone(), masked, None, lambda: [only]).collect()
    second = sampler.begin(OutputLayer(), rows.clone(), [MIXED[0]]).collect()
    third = sampler.begin(OutputLayer(), rows.clone(), masked, None, lambda: [None]).collect()
    assert first[0].token_ids != second[0].token_ids == third[0].token_ids


def random_mask(seed, num_allowed):
    """Allow some tokens."""
    words = np.zeros(-(-VOCAB_SIZE // 32), dtype="<u4")
    for token_id in np.random.default_rng(seed).permutation(VOCAB_SIZE)[:num_allowed].tolist():
        words[token_id // 32] |= np.uint32(1 << token_id % 32)
    return words
