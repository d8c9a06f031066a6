"""One row of logits and what is asked of it, before and after the draw."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec
from torch import Tensor

from pagewire.ipc.errors import ErrorInfo
from pagewire.ipc.outputs import TokenLogprobs
from pagewire.ipc.sampling_params import GREEDY_BELOW, MIN_TEMPERATURE, Sampling

from ..kernels.draws import Filters
from .logits_processors import LogitsProcessor, Penalties, make_processors
from .row_edits import TokenHistory


@dataclass(frozen=True, slots=True)
class RowSampling:
    """A request's parameters made ready for its draws, once, when its row enters the batch.

    Attributes:
        sampling: as they came; read for logprobs and the seed.
        child: half of the noise key.
        temperature: None for greedy.
        needs_logits: whether the row's best token alone does not settle what it gets.
        reads_token_ids: whether the host looks at the tokens before a draw, and not only at their number.
        is_penalized: whether the draw's logits depend on them: whoever edits the logits looks at them.
    """

    sampling: Sampling
    child: int
    temperature: float | None
    filters: Filters
    processors: tuple[LogitsProcessor, ...]
    needs_logits: bool
    reads_token_ids: bool
    is_penalized: bool

    @classmethod
    def prepare(cls, sampling: Sampling, child: int, vocab_size: int) -> RowSampling:
        """Make the parameters ready.

        Args:
            sampling: the request's parameters, ids in range.
            child: which child of its request.
            vocab_size: ids that can be drawn.
        """
        is_greedy = sampling.temperature < GREEDY_BELOW
        processors = make_processors(sampling, vocab_size)
        return cls(
            sampling=sampling,
            child=child,
            # logits / temperature must stay finite in fp32, whoever sent the request.
            temperature=None if is_greedy else max(sampling.temperature, MIN_TEMPERATURE),
            filters=Filters(top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p),
            processors=processors,
            needs_logits=not is_greedy or bool(processors) or sampling.num_logprobs is not None,
            reads_token_ids=any(processor.reads_token_ids for processor in processors),
            is_penalized=any(isinstance(processor, Penalties) for processor in processors),
        )

    def without_logprobs(self) -> RowSampling:
        """Return the same for draws whose tokens alone are of interest."""
        if self.sampling.num_logprobs is None:
            return self
        return replace(
            self,
            sampling=msgspec.structs.replace(self.sampling, num_logprobs=None),
            needs_logits=self.temperature is not None or bool(self.processors),
        )


class KeptTokens(NamedTuple):
    """Where the device keeps a row's tokens, up to the draw.

    Attributes:
        token_ids: [all rows' room] int32.
        start: of the row's.
    """

    token_ids: Tensor
    start: int


class Draw(NamedTuple):
    """What one row of logits is asked for.

    Attributes:
        row_sampling: the request's parameters.
        history: the tokens before the draw; None where nothing reads them, for a row that needs no logits. Those that
            are not known yet are -1 there: of rows whose `reads_token_ids` is set, only failed ones have any.
        num_draws: draws from this one row: for children row_sampling.child, +1, ...
        kept: for a penalized row whose tokens are kept on the device; otherwise the history has them all.
        is_masked: a mask says which tokens it may give; it comes after the row's logits.
    """

    row_sampling: RowSampling
    history: TokenHistory | None
    num_draws: int = 1
    kept: KeptTokens | None = None
    is_masked: bool = False

    @property
    def needs_logits(self) -> bool:
        """Whether the row's best token alone does not settle what it gets."""
        return self.row_sampling.needs_logits or self.is_masked


@dataclass(slots=True)
class Drawn:
    """What one row of logits gave: a token (and its logprobs, if asked for) a draw, or the reason for none."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    error: ErrorInfo | None = None
