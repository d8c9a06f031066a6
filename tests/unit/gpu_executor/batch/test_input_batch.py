"""A step's inputs are laid out from rows that outlive it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.gpu_executor.batch.input_batch import InputBatch
from pagewire.gpu_executor.batch.row_table import RowTable
from pagewire.gpu_executor.batch.step_plan import RowLimits
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import ExecuteStep, NewRow, ScheduledRow

BLOCK_SIZE = 4
LIMITS = RowLimits(num_blocks=5000, block_size=BLOCK_SIZE, vocab_size=100, num_drawable=90)


def make_batch(max_num_seqs=4):
    return InputBatch(max_num_seqs, LIMITS, torch.device("cpu"))


def new_row(row_id, token_ids, block_table, *, num_prompt_tokens=None, **sampling):
    return NewRow(
        row_id=row_id,
        child=0,
        token_ids=token_ids,
        num_prompt_tokens=num_prompt_tokens or len(token_ids),
        num_computed_tokens=0,
        block_table=block_table,
        sampling=Sampling(**sampling),
    )


def apply(batch, **options):
    step = ExecuteStep(executor_epoch=1, step_id=1, **options)
    plan = batch.plan(step)
    assert plan.errors == {}
    batch.remove(step.removed_row_ids)
    batch.add(plan.new_rows.values())
    return batch.build_inputs(plan.rows)


def test_prefill_chunk_and_decode_lie_back_to_back():
    batch = make_batch()
    apply(batch, new_rows=[new_row(1, [11, 12, 13], [7])], rows=[ScheduledRow(1, 0, 3)])
    batch.append_token(1, 14)
    inputs = apply(
        batch,
        new_rows=[new_row(2, [21, 22, 23, 24, 25, 26, 27], [9, 3])],
        rows=[ScheduledRow(2, 2, 4, 0), ScheduledRow(1, 3, 1)],
    )
    metadata = inputs.metadata
    assert inputs.input_ids.tolist() == [23, 24, 25, 26, 14]
    assert metadata.positions.tolist() == [2, 3, 4, 5, 3]
    assert metadata.slot_mapping.tolist() == [9 * 4 + 2, 9 * 4 + 3, 3 * 4, 3 * 4 + 1, 7 * 4 + 3]
    assert metadata.query_start_loc.tolist() == [0, 4, 5]
    assert metadata.seq_lens.tolist() == [6, 4]
    assert metadata.logits_indices.tolist() == [4]
    assert metadata.block_tables[0].tolist() == [9, 3]
    assert int(metadata.block_tables[1, 0]) == 7
    assert inputs.draw_rows == [1]
    dtypes = [
        getattr(metadata, name).dtype
        for name in ("positions", "slot_mapping", "block_tables", "query_start_loc", "seq_lens", "logits_indices")
    ]
    assert dtypes == [torch.int64, torch.int64, torch.int32, torch.int32, torch.int32, torch.int64]


def test_new_and_replaced_blocks_are_there_before_the_slots_are_made():
    batch = make_batch()
    apply(batch, new_rows=[new_row(1, list(range(6)), [7, 8])], rows=[ScheduledRow(1, 0, 6)])
    for token_id in (31, 32, 33):
        batch.append_token(1, token_id)
    inputs = apply(batch, rows=[ScheduledRow(1, 6, 3, 1, [40], (1, 20))])
    assert inputs.metadata.slot_mapping.tolist() == [20 * 4 + 2, 20 * 4 + 3, 40 * 4]
    assert batch.block_table_of(1) == [7, 20, 40]


def test_prompt_logprobs_add_their_positions_after_the_draws():
    batch = make_batch()
    inputs = apply(
        batch,
        new_rows=[
            new_row(1, [11, 12, 13], [7], num_prompt_logprobs=0),
            new_row(2, [21, 22], [8]),
            new_row(3, [31, 32, 33, 34], [9], num_prompt_logprobs=0),
        ],
        rows=[ScheduledRow(1, 0, 3), ScheduledRow(2, 0, 2), ScheduledRow(3, 0, 2, 0)],
    )
    assert inputs.metadata.logits_indices.tolist() == [2, 4, 0, 1, 5, 6]
    assert [(span.row, span.start, span.token_ids) for span in inputs.prompt_spans] == [
        (0, 1, [12, 13]),
        (2, 1, [32, 33]),
    ]


def test_output_tokens_of_a_resumed_row_are_no_prompt():
    batch = make_batch()
    row = new_row(1, [11, 12, 13, 14], [7], num_prompt_tokens=2, num_prompt_logprobs=0)
    inputs = apply(batch, new_rows=[row], rows=[ScheduledRow(1, 0, 4)])
    assert [span.token_ids for span in inputs.prompt_spans] == [[12]]
    assert batch.history_of(1).output_token_ids.tolist() == [13, 14]


def test_planning_changes_nothing():
    batch = make_batch()
    apply(batch, new_rows=[new_row(1, [11, 12], [7])], rows=[ScheduledRow(1, 0, 2)])
    batch.append_token(1, 13)
    step = ExecuteStep(
        executor_epoch=1,
        step_id=2,
        removed_row_ids=[1],
        new_rows=[new_row(2, [5], [6])],
        rows=[ScheduledRow(2, 0, 1), ScheduledRow(1, 2, 1, 1, [9], (0, 3))],
    )
    assert sorted(batch.plan(step).errors) == [1]
    assert (batch.row_ids, batch.block_table_of(1)) == ([1], [7])


def test_preempted_row_may_come_back_in_the_step_that_removes_it():
    batch = make_batch()
    apply(batch, new_rows=[new_row(1, [11, 12], [7])], rows=[ScheduledRow(1, 0, 2)])
    inputs = apply(batch, removed_row_ids=[1], new_rows=[new_row(1, [11, 12, 13], [2])], rows=[ScheduledRow(1, 0, 3)])
    assert inputs.metadata.slot_mapping.tolist() == [8, 9, 10]


@pytest.mark.parametrize("num_tokens", [1023, 1024, 1025, 5000])
def test_row_grows_beyond_the_first_columns(num_tokens):
    batch = make_batch(1)
    token_ids = [i % 90 for i in range(num_tokens)]
    blocks = list(range(-(-(num_tokens + 1) // BLOCK_SIZE)))
    apply(batch, new_rows=[new_row(1, token_ids, blocks)], rows=[ScheduledRow(1, 0, num_tokens)])
    batch.append_token(1, 77)
    inputs = apply(batch, rows=[ScheduledRow(1, num_tokens, 1)])
    assert (inputs.input_ids.tolist(), inputs.metadata.slot_mapping.tolist()) == ([77], [num_tokens])
    assert batch.history_of(1).token_ids.tolist() == [*token_ids, 77]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 9), st.lists(st.integers(0, 89), min_size=1, max_size=2000)),
        max_size=20,
    )
)
def test_row_table_keeps_rows_apart(actions):
    table, rows = RowTable(1, BLOCK_SIZE), {}
    for is_add, key, values in actions:
        if is_add and key not in rows:
            array = np.array(values, dtype=np.int32)
            rows[key] = (table.add(array, len(values), array[:1]), list(values), values[:1])
        elif key in rows and len(values) % 3 == 0:
            table.free(rows.pop(key)[0])
        elif key in rows:
            table.append_tokens(rows[key][0], values)
            table.append_blocks(rows[key][0], values[:2])
            rows[key][1].extend(values)
            rows[key][2].extend(values[:2])
    for index, token_ids, block_ids in rows.values():
        assert table.tokens_of(index).tolist() == token_ids
        assert table.blocks_of(index).tolist() == block_ids


def test_a_stage_that_does_not_draw_is_told_the_tokens():
    batch = InputBatch(4, LIMITS, torch.device("cpu"), draws=False)
    inputs = apply(batch, new_rows=[new_row(1, [11, 12], [7], num_prompt_logprobs=1)], rows=[ScheduledRow(1, 0, 2)])
    assert (list(inputs.draw_rows), list(inputs.prompt_spans)) == ([], [])
    inputs = apply(batch, rows=[ScheduledRow(1, 2, 1, drawn_token_ids=[13])])
    assert inputs.input_ids.tolist() == [13]
    assert list(inputs.draw_rows) == []
    inputs = apply(batch, rows=[ScheduledRow(1, 3, 1, new_block_ids=[8], drawn_token_ids=[14])])
    assert (inputs.input_ids.tolist(), inputs.metadata.positions.tolist()) == ([14], [3])
    assert batch.history_of(1).token_ids.tolist() == [11, 12, 13, 14]


def test_a_told_token_outside_of_the_vocabulary_fails_its_row():
    batch = InputBatch(4, LIMITS, torch.device("cpu"), draws=False)
    apply(batch, new_rows=[new_row(1, [11, 12], [7])], rows=[ScheduledRow(1, 0, 2)])
    step = ExecuteStep(executor_epoch=1, step_id=2, rows=[ScheduledRow(1, 2, 1, drawn_token_ids=[100])])
    assert "0 to 99" in batch.plan(step).errors[1].message


def test_a_stage_that_draws_has_what_it_is_told_already():
    batch = make_batch()
    apply(batch, new_rows=[new_row(1, [11, 12], [7])], rows=[ScheduledRow(1, 0, 2)])
    batch.append_token(1, 13)
    inputs = apply(batch, rows=[ScheduledRow(1, 2, 1, drawn_token_ids=[13])])
    assert inputs.input_ids.tolist() == [13]
    assert batch.history_of(1).token_ids.tolist() == [11, 12, 13]
