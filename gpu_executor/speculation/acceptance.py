"""Which drafts were right: those that are what was drawn in their place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from pagewire.ipc.steps import ScheduledRow

from ..sampling.draw import Drawn


def accept_all(rows: Sequence[ScheduledRow], draws: Iterable[Drawn]) -> list[Drawn]:
    """Return what each of a step's rows gets of its draws, see `accept`.

    Args:
        rows: that draw, in order.
        draws: the step's, in order: of each row one, and one behind each of its drafts.
    """
    remaining = iter(draws)
    return [
        accept(row.draft_token_ids, list(islice(remaining, 1 + len(row.draft_token_ids))))
        if row.draft_token_ids
        else next(remaining)
        for row in rows
    ]


def accept(drafts: Sequence[int], drawn: Sequence[Drawn]) -> Drawn:
    """Return what a row gets of the draws behind its last token and behind each draft.

    A draw is the row's own as long as all drafts before it were right; with the first that was wrong, what was drawn in
    its place ends the row's share. That is what it would have drawn one token at a time.

    Args:
        drafts: [num_drafts] that were computed behind the row's last token.
        drawn: [num_drafts + 1] what was drawn behind that token and behind each draft.

    Returns:
        At least one token, or the reason why nothing could be drawn behind the last one.
    """
    if drawn[0].error is not None:
        return drawn[0]
    accepted = Drawn()
    for index, one in enumerate(drawn):
        if one.error is not None:
            break  # the row's next step draws here again, and fails then
        accepted.token_ids += one.token_ids
        accepted.logprobs += one.logprobs
        if index < len(drafts) and one.token_ids[0] != drafts[index]:
            break
    return accepted
