"""How often a child's drafts were right."""

from __future__ import annotations

from dataclasses import dataclass

# A proposer of text guesses wrong where nothing is repeated, and is soon known to be right where something is.
_PRIOR_ACCEPTANCE = 0.2
_PRIOR_WEIGHT = 2.0  # drafts that the prior counts for
_MEMORY = 0.9  # what was accepted is half forgotten after 7 drafts


@dataclass(slots=True)
class Acceptance:
    """How often a child's drafts were right, those that came after a wrong one not counted."""

    _num_right: float = _PRIOR_ACCEPTANCE * _PRIOR_WEIGHT
    _num_tried: float = _PRIOR_WEIGHT

    @classmethod
    def expecting(cls, rate: float) -> Acceptance:
        """Return one that takes so much to be right until it has seen better."""
        return cls(rate * _PRIOR_WEIGHT, _PRIOR_WEIGHT)

    @property
    def is_untried(self) -> bool:
        """Whether no draft was checked yet."""
        return self._num_tried == _PRIOR_WEIGHT

    @property
    def rate(self) -> float:
        """Share of drafts that are right if all before them are."""
        return self._num_right / self._num_tried

    def observe(self, num_drafts: int, num_accepted: int) -> None:
        """Learn from guesses that were checked, or compared with what was drawn."""
        for index in range(min(num_accepted + 1, num_drafts)):
            self._num_right = _MEMORY * self._num_right + (index < num_accepted)
            self._num_tried = _MEMORY * self._num_tried + 1
