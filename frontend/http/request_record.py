"""What an ended request leaves behind, for metrics and traces."""

from __future__ import annotations

import msgspec


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What an ended request leaves behind. Times are in seconds; None where it never got so far.

    Attributes:
        finish_reasons: one per child: stop, length, abort or error.
        max_tokens: as asked for.
        queue_s: from the core's receipt to its first schedule.
        first_token_s: from arrival to the first token; last_token_s: to the last.
    """

    finish_reasons: tuple[str, ...]
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    max_child_output_tokens: int
    n: int
    max_tokens: int | None
    num_preemptions: int
    e2e_s: float
    queue_s: float | None
    first_token_s: float | None
    last_token_s: float | None
