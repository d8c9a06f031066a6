"""What a step's rows come to: token ids and where they sit, and which of them give logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from ..devices.base import Marker
from ..kernels.low_rank import AdapterTokens
from .device_inputs import DrawPlaces
from .forward_metadata import ForwardMetadata


@dataclass(frozen=True, slots=True)
class PromptSpan:
    """Prompt positions of a step whose next tokens' logprobs are wanted.

    Attributes:
        row: index into the step's rows.
        start: the first reported position, one past the first computed one.
        token_ids: [num_positions] the prompt tokens at start, start + 1, ...
        first_token: index of position start - 1 among the step's tokens.
    """

    row: int
    start: int
    token_ids: list[int]
    first_token: int


@dataclass(frozen=True, slots=True)
class PoolSpan:
    """A step's tokens of a row whose prompt becomes one vector.

    Attributes:
        row_id: the row.
        pooling: of what the vector is made.
        first_token: index of the first among the step's tokens.
        num_tokens: how many they are.
        end: position behind the last.
        is_last: whether that is the prompt's end.
    """

    row_id: int
    pooling: Literal["last", "mean"]
    first_token: int
    num_tokens: int
    end: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the model and the sampler need of a step.

    Attributes:
        input_ids: [num_tokens] int64.
        metadata: where they sit. Its logits_indices are those of the draws, in row order, then of the prompt spans.
        draw_rows: rows (indices into the step's rows) that draw here, in order; one with drafts draws behind each too.
        prompt_spans: positions that want prompt logprobs.
        pool_spans: tokens of rows that are pooled.
        is_decode: whether each row computes one token and draws from it.
        draw_places: where the drawn tokens are kept; None where draws are made on the host.
        start: the point in the device's work from which the step's own begins; None as well.
    """

    input_ids: Tensor
    metadata: ForwardMetadata
    draw_rows: Sequence[int]
    prompt_spans: Sequence[PromptSpan]
    pool_spans: Sequence[PoolSpan] = ()
    is_decode: bool = False
    draw_places: DrawPlaces | None = None
    start: Marker | None = None

    def with_adapters(self, adapters: tuple[AdapterTokens, ...]) -> StepInputs:
        """Return the step with what adapters change of it."""
        return replace(self, metadata=replace(self.metadata, adapters=adapters)) if adapters else self
