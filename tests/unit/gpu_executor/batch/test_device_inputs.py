"""What a device is sent, with what it keeps, is what the host would have laid out with all tokens known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.gpu_executor.batch.device_tokens import DeviceTokens, most_token_bytes
from pagewire.gpu_executor.batch.input_batch import InputBatch
from pagewire.gpu_executor.batch.row_table import RowTable
from pagewire.gpu_executor.batch.step_plan import RowLimits
from pagewire.gpu_executor.devices.cpu import CpuDevice
from pagewire.gpu_executor.host_limits import HostLimits
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import ExecuteStep, NewRow, ScheduledRow

BLOCK_SIZE = 4
LIMITS = RowLimits(num_blocks=5000, block_size=BLOCK_SIZE, vocab_size=100, num_drawable=90)
FIELDS = ("positions", "slot_mapping", "query_start_loc", "seq_lens", "logits_indices")


class TwoBatches:
    """One batch that knows every token at once, and one whose tokens are drawn on the device."""

    def __init__(self, max_num_seqs=2):
        device = CpuDevice(HostLimits())
        self.known = InputBatch(max_num_seqs, LIMITS, device.torch_device)
        self.drawing = InputBatch(max_num_seqs, LIMITS, device.torch_device, device)
        self.unsettled = []
        self.num_compared = 0  # draws whose tokens the device keeps
        self._next_token = 11

    def step(self, *, settles=True, num_right=0, **options):
        """Apply a step to both, compare their inputs, and draw; of each row's drafts, so many are right."""
        step = ExecuteStep(executor_epoch=1, step_id=1, **options)
        inputs = []
        for batch in (self.known, self.drawing):
            plan = batch.plan(step)
            assert plan.errors == {}
            batch.remove(step.removed_row_ids)
            batch.add(plan.new_rows.values())
            inputs.append(batch.build_inputs(plan.rows))
        expected, uploaded = inputs
        self._compare(expected, uploaded, step.rows)
        self._compare_kept_tokens([row for row in step.rows if row.num_draws])
        self._draw([row for row in step.rows if row.num_draws], uploaded, num_right)
        if settles:
            self.settle()
        return uploaded

    def settle(self):
        """Tell the host what was drawn."""
        for reserved, token_ids in self.unsettled:
            assert self.drawing.settle_tokens(reserved, token_ids)
        self.unsettled.clear()

    def _draw(self, rows, inputs, num_right):
        drawn, given = [], []
        for row in rows:
            tokens = [(self._next_token + i) % 90 for i in range(1 + len(row.draft_token_ids))]
            self._next_token += len(tokens)
            tokens[:num_right] = row.draft_token_ids[:num_right] or tokens[:num_right]
            drawn += tokens
            given.append(tokens[: 1 + min(num_right, len(row.draft_token_ids))])
        reserved = self.drawing.reserve_tokens(rows, inputs.draw_places, torch.tensor(drawn, dtype=torch.int64))
        self.unsettled += zip(reserved, given, strict=True)
        for row, token_ids in zip(rows, given, strict=True):
            for token_id in token_ids:
                self.known.append_token(row.row_id, token_id)

    def _compare_kept_tokens(self, rows):
        for known, draw in zip(self.known.draws_of(rows), self.drawing.draws_of(rows), strict=True):
            assert (draw.kept is not None) == draw.row_sampling.is_penalized
            assert known.kept is None
            if draw.kept is not None:
                token_ids, start = draw.kept
                kept = token_ids[start : start + len(draw.history.token_ids)]
                assert kept.tolist() == known.history.token_ids.tolist()
                self.num_compared += 1

    @staticmethod
    def _compare(expected, uploaded, rows):
        assert uploaded.input_ids.tolist() == expected.input_ids.tolist()
        for field in FIELDS:
            one, other = getattr(uploaded.metadata, field), getattr(expected.metadata, field)
            assert (field, one.tolist(), one.dtype) == (field, other.tolist(), other.dtype)
        assert list(uploaded.draw_rows) == list(expected.draw_rows)
        assert uploaded.is_decode == expected.is_decode
        for index, row in enumerate(rows):
            num_blocks = -(-(row.num_computed_tokens + row.num_scheduled_tokens) // BLOCK_SIZE)
            table = uploaded.metadata.block_tables[index, :num_blocks].tolist()
            assert table == expected.metadata.block_tables[index, :num_blocks].tolist()


def new_row(row_id, num_tokens, first_block, **options):
    num_blocks = -(-(num_tokens + 1) // BLOCK_SIZE)
    return NewRow(
        row_id=row_id,
        child=0,
        token_ids=[(row_id + i) % 90 for i in range(num_tokens)],
        num_prompt_tokens=num_tokens,
        num_computed_tokens=0,
        block_table=list(range(first_block, first_block + num_blocks)),
        sampling=Sampling(**options),
    )


@pytest.mark.parametrize("num_right", [0, 1, 3])
@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.5}])
def test_rows_with_drafts_go_with_rows_whose_tokens_are_unknown(num_right, options):
    batches = TwoBatches()
    batches.step(
        new_rows=[new_row(1, 5, 0, **options), new_row(2, 2, 10), new_row(3, 3, 20, repetition_penalty=1.1)],
        rows=[ScheduledRow(1, 0, 5), ScheduledRow(2, 0, 2), ScheduledRow(3, 0, 3)],
    )
    batches.step(settles=False, rows=[ScheduledRow(3, 3, 1), ScheduledRow(2, 2, 1)])
    checked = ScheduledRow(1, 5, 4, 1, [2], None, [], [61, 62, 63])
    inputs = batches.step(
        settles=False, num_right=num_right, rows=[ScheduledRow(2, 3, 1), checked, ScheduledRow(3, 4, 1, 1, [21])]
    )
    assert not inputs.is_decode
    batches.step(settles=False, rows=[ScheduledRow(3, 5, 1), ScheduledRow(2, 4, 1, 1, [11])])
    batches.settle()
    computed = 6 + num_right
    batches.step(settles=False, rows=[ScheduledRow(1, computed, 1), ScheduledRow(3, 6, 1)])
    batches.step(rows=[ScheduledRow(1, computed + 1, 1), ScheduledRow(3, 7, 1), ScheduledRow(2, 5, 1)])


def test_decodes_of_unknown_tokens_are_decodes():
    batches = TwoBatches()
    batches.step(new_rows=[new_row(1, 5, 0), new_row(2, 2, 10)], rows=[ScheduledRow(1, 0, 5), ScheduledRow(2, 0, 2)])
    batches.step(settles=False, rows=[ScheduledRow(1, 5, 1), ScheduledRow(2, 2, 1)])
    inputs = batches.step(settles=False, rows=[ScheduledRow(2, 3, 1), ScheduledRow(1, 6, 1)])
    assert inputs.is_decode


def test_known_and_unknown_tokens_mix_with_a_chunk_of_a_prompt():
    batches = TwoBatches()
    batches.step(settles=False, new_rows=[new_row(1, 5, 0)], rows=[ScheduledRow(1, 0, 5)])
    batches.step(settles=False, new_rows=[new_row(2, 9, 10)], rows=[ScheduledRow(1, 5, 1), ScheduledRow(2, 0, 6, 0)])
    inputs = batches.step(settles=False, rows=[ScheduledRow(2, 6, 3), ScheduledRow(1, 6, 1)])
    assert not inputs.is_decode


def test_blocks_that_came_while_a_row_was_not_scheduled_are_sent_with_its_next_step():
    batches = TwoBatches()
    batches.step(new_rows=[new_row(1, 3, 7), new_row(2, 2, 20)], rows=[ScheduledRow(2, 0, 2)])
    batches.step(rows=[ScheduledRow(1, 0, 3), ScheduledRow(2, 2, 1)])


def test_replaced_and_appended_blocks_reach_the_device():
    batches = TwoBatches()
    batches.step(new_rows=[new_row(1, 7, 0)], rows=[ScheduledRow(1, 0, 7)])
    batches.step(rows=[ScheduledRow(1, 7, 1, 1, [90, 91], (1, 40))])
    batches.step(rows=[ScheduledRow(1, 8, 1, 1, [], (2, 95))])


def test_more_rows_and_longer_ones_than_were_expected_keep_what_the_device_knows():
    batches = TwoBatches(max_num_seqs=1)
    batches.step(settles=False, new_rows=[new_row(1, 3, 0)], rows=[ScheduledRow(1, 0, 3)])
    batches.step(
        settles=False,
        new_rows=[new_row(2, 1100, 10), new_row(3, 2, 900)],
        rows=[ScheduledRow(1, 3, 1), ScheduledRow(2, 0, 1100), ScheduledRow(3, 0, 2)],
    )
    batches.step(settles=False, rows=[ScheduledRow(1, 4, 1, 1, [899]), ScheduledRow(2, 1100, 1), ScheduledRow(3, 2, 1)])


def test_tokens_of_penalized_rows_are_kept_on_the_device():
    batches = TwoBatches(max_num_seqs=1)
    batches.step(settles=False, new_rows=[new_row(1, 3, 0)], rows=[ScheduledRow(1, 0, 3)])
    penalized = {"presence_penalty": 1.0}
    batches.step(
        settles=False,
        new_rows=[new_row(2, 6, 10, **penalized), new_row(3, 1023, 200, **penalized)],
        rows=[ScheduledRow(1, 3, 1), ScheduledRow(2, 0, 4, 0), ScheduledRow(3, 0, 1023)],
    )
    for step in range(3):  # row 3 outgrows the room that rows have at first
        second = ScheduledRow(2, 4, 2) if step == 0 else ScheduledRow(2, 5 + step, 1)
        batches.step(settles=False, rows=[ScheduledRow(3, 1023 + step, 1, 1, [500 + step]), second])
    assert batches.num_compared == 7
    batches.step(  # a place is taken over while a token for the row before is in flight
        settles=False, removed_row_ids=[2], new_rows=[new_row(4, 9, 10, **penalized)], rows=[ScheduledRow(4, 0, 9)]
    )
    batches.settle()
    batches.step(rows=[ScheduledRow(4, 9, 1), ScheduledRow(3, 1026, 1)])
    assert batches.num_compared == 10


def test_what_is_drawn_is_not_kept_once_the_last_penalized_row_is_gone():
    batches = TwoBatches()
    batches.step(new_rows=[new_row(1, 3, 0, repetition_penalty=1.5)], rows=[ScheduledRow(1, 0, 3)])
    inputs = batches.step(new_rows=[new_row(2, 3, 10)], rows=[ScheduledRow(2, 0, 3), ScheduledRow(1, 3, 1)])
    assert len(inputs.draw_places.tokens) == 2
    inputs = batches.step(removed_row_ids=[1], rows=[ScheduledRow(2, 3, 1)])
    assert len(inputs.draw_places.tokens) == 0


@pytest.mark.parametrize("max_tokens", [1, 1024, 1025, 5000])
def test_tokens_never_take_more_than_was_reckoned(max_tokens):
    table = RowTable(3, BLOCK_SIZE)
    tokens = DeviceTokens(torch.device("cpu"), table)
    index = table.add(np.zeros(1, dtype=np.int32), 1, np.zeros(1, dtype=np.int32))
    sizes = [0]
    while table.num_tokens[index] < max_tokens:
        table.append_token(index, 0)
        tokens.make_room(table.num_tokens[index])
        size = tokens.of(index).token_ids.nbytes
        if size != sizes[-1]:
            sizes.append(size)
    assert sizes[-1] + sizes[max(len(sizes) - 2, 0)] <= most_token_bytes(3, max_tokens)


def test_settled_token_of_a_removed_row_goes_nowhere():
    batches = TwoBatches(max_num_seqs=1)
    batches.step(settles=False, new_rows=[new_row(1, 2, 0)], rows=[ScheduledRow(1, 0, 2)])
    batches.step(settles=False, removed_row_ids=[1], new_rows=[new_row(2, 5, 0)], rows=[ScheduledRow(2, 0, 5)])
    batches.settle()
    assert batches.drawing.history_of(2).token_ids.tolist() == batches.known.history_of(2).token_ids.tolist()


def test_rows_that_read_no_tokens_never_lack_any():
    batches = TwoBatches()
    batches.step(settles=False, new_rows=[new_row(1, 2, 0)], rows=[ScheduledRow(1, 0, 2)])
    assert not batches.drawing.lacks_tokens([1])


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_course_of_rows_is_laid_out_alike(data):
    batches = TwoBatches(max_num_seqs=1)
    lengths, computed, num_rows = {}, {}, 0
    for _ in range(data.draw(st.integers(1, 12))):
        removed = data.draw(st.lists(st.sampled_from(sorted(lengths)), unique=True)) if lengths else []
        for row_id in removed:
            del lengths[row_id], computed[row_id]
        new_rows = []
        for _ in range(data.draw(st.integers(0, 2))):
            num_rows += 1
            lengths[num_rows], computed[num_rows] = data.draw(st.integers(1, 30)), 0
            new_rows.append(new_row(num_rows, lengths[num_rows], 40 * num_rows))
        rows = []
        for row_id in data.draw(st.permutations(sorted(lengths))):
            room = lengths[row_id] - computed[row_id]
            num_tokens = data.draw(st.integers(1, room))
            blocks = []
            if computed[row_id] + num_tokens == lengths[row_id] and lengths[row_id] % BLOCK_SIZE == BLOCK_SIZE - 1:
                blocks = [40 * row_id + 20 + lengths[row_id] // BLOCK_SIZE]  # where its next token goes
            draws = int(num_tokens == room)
            rows.append(ScheduledRow(row_id, computed[row_id], num_tokens, draws, blocks))
            computed[row_id] += num_tokens
            lengths[row_id] += draws
        if rows:
            options = {"removed_row_ids": removed, "new_rows": new_rows, "rows": rows}
            batches.step(settles=data.draw(st.booleans()), **options)
        else:
            for row in new_rows:
                del lengths[row.row_id], computed[row.row_id]
            for batch in (batches.known, batches.drawing):
                batch.remove(removed)
