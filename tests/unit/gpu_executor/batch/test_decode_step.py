"""A step of decodes that was rewritten in place is the step that would be built anew."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagewire.gpu_executor.batch.decode_step import is_decode_step
from pagewire.gpu_executor.batch.input_batch import InputBatch
from pagewire.gpu_executor.batch.step_inputs import StepInputs
from pagewire.gpu_executor.batch.step_plan import RowLimits
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import ExecuteStep, NewRow, ScheduledRow

BLOCK_SIZE = 4
LIMITS = RowLimits(num_blocks=100_000, block_size=BLOCK_SIZE, vocab_size=1000, num_drawable=1000)


@dataclass
class KnownRow:
    """A row as the core knows it."""

    row_id: int
    tokens: list[int]
    blocks: list[int]
    scheduled: list[int] = field(default_factory=list)


class Driver:
    """Sends steps to a batch and knows what each must look like."""

    def __init__(self) -> None:
        self.batch = InputBatch(2, LIMITS, torch.device("cpu"))
        self.rows: list[KnownRow] = []
        self.num_rows = self.num_blocks = 0

    def new_block(self) -> int:
        self.num_blocks += 1
        return self.num_blocks

    def step(self, *, removed: list[int] | None = None, num_new: int = 0, replaces: bool = False) -> None:
        """One step: rows go, rows come with a prompt of 5, each row computes what it has not, and draws."""
        gone = [self.rows.pop(index % len(self.rows)) for index in removed or [] if self.rows]
        scheduled, new_rows = [], []
        for row in self.rows:
            new_blocks = [self.new_block()] if len(row.tokens) > len(row.blocks) * BLOCK_SIZE else []
            row.blocks += new_blocks
            replaced = None
            if replaces and not new_blocks:
                replaced = (len(row.blocks) - 1, self.new_block())
                row.blocks[-1] = replaced[1]
            scheduled.append(ScheduledRow(row.row_id, len(row.tokens) - 1, 1, 1, new_blocks, replaced))
        for _ in range(num_new):
            self.num_rows += 1
            row = KnownRow(self.num_rows, [self.num_rows % 1000] * 5, [self.new_block(), self.new_block()])
            self.rows.append(row)
            new_rows.append(
                NewRow(
                    row_id=row.row_id,
                    child=0,
                    token_ids=row.tokens,
                    num_prompt_tokens=5,
                    num_computed_tokens=0,
                    block_table=row.blocks,
                    sampling=Sampling(),
                )
            )
            scheduled.append(ScheduledRow(row.row_id, 0, 5))
        self._apply([row.row_id for row in gone], new_rows, scheduled)

    def _apply(self, removed_row_ids: list[int], new_rows: list[NewRow], scheduled: list[ScheduledRow]) -> None:
        step = ExecuteStep(
            executor_epoch=1, step_id=1, removed_row_ids=removed_row_ids, new_rows=new_rows, rows=scheduled
        )
        plan = self.batch.plan(step)
        assert plan.errors == {}
        self.batch.remove(removed_row_ids)
        self.batch.add(plan.new_rows.values())
        if not scheduled:
            return
        self._check(self.batch.build_inputs(plan.rows), scheduled)
        for row in self.rows:
            token_id = (row.row_id * 7 + len(row.tokens)) % 1000
            self.batch.append_token(row.row_id, token_id)
            row.tokens.append(token_id)

    def _check(self, inputs: StepInputs, scheduled: list[ScheduledRow]) -> None:
        places = [
            (row, place)
            for row, share in zip(self.rows, scheduled, strict=True)
            for place in range(share.num_computed_tokens, share.num_computed_tokens + share.num_scheduled_tokens)
        ]
        metadata = inputs.metadata
        assert inputs.input_ids.tolist() == [row.tokens[place] for row, place in places]
        assert metadata.positions.tolist() == [place for _, place in places]
        assert metadata.slot_mapping.tolist() == [
            row.blocks[place // BLOCK_SIZE] * BLOCK_SIZE + place % BLOCK_SIZE for row, place in places
        ]
        assert metadata.seq_lens.tolist() == [len(row.tokens) for row in self.rows]
        for row, table in zip(self.rows, metadata.block_tables.tolist(), strict=True):
            needed = -(-len(row.tokens) // BLOCK_SIZE)
            assert table[:needed] == row.blocks[:needed]
        assert list(inputs.draw_rows) == list(range(len(self.rows)))
        ends = metadata.query_start_loc[1:].tolist()
        assert metadata.logits_indices.tolist() == [end - 1 for end in ends]
        assert ends == [sum(row.num_scheduled_tokens for row in scheduled[: i + 1]) for i in range(len(scheduled))]


STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "removed": st.one_of(st.just([]), st.lists(st.integers(0, 9), max_size=2)),
            "num_new": st.sampled_from([0, 0, 0, 1, 3]),
            "replaces": st.booleans(),
        }
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=60)
@given(STEPS)
def test_every_step_has_its_rows_tokens_and_blocks(steps):
    driver = Driver()
    driver.step(num_new=2)
    for options in steps:
        driver.step(**options)


def test_rows_that_outgrow_the_tables_keep_their_tokens_and_blocks():
    driver = Driver()
    driver.step(num_new=2)
    for _ in range(1100):
        driver.step()


def test_step_of_the_same_rows_reuses_the_memory_of_the_one_before():
    batch = Driver()
    batch.step(num_new=2)
    rows = [ScheduledRow(1, 5, 1), ScheduledRow(2, 5, 1)]
    first = batch.batch.build_inputs(rows)
    second = batch.batch.build_inputs(rows)
    assert second.metadata is not first.metadata, "what is planned for a step is kept by its metadata's identity"
    assert second.metadata.positions.data_ptr() == first.metadata.positions.data_ptr()


def test_only_rows_that_compute_one_token_and_draw_are_decodes():
    decode, chunk, undrawn = ScheduledRow(1, 5, 1), ScheduledRow(2, 0, 3), ScheduledRow(3, 0, 1, 0)
    assert is_decode_step([decode, decode])
    assert not is_decode_step([decode, chunk])
    assert not is_decode_step([decode, undrawn])
