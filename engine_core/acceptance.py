"""How often a child's drafts were right."""

from __future__ import annotations

from dataclasses import dataclass

# A proposer of text mostly guesses right where it guesses at all, and is soon known where it does not.
_PRIOR_ACCEPTANCE = 0.6
_PRIOR_WEIGHT = 2.0  # drafts that the prior counts for
_MEMORY = 0.9  # what was accepted is half forgotten after 7 drafts


@dataclass(slots=True)
class Acceptance:
    """How often a child's drafts were right, those that came after a wrong one not counted.

    Attributes:
        num_chances: drafts in a row that were passed over because they would not have paid.
    """

    _num_right: float = _PRIOR_ACCEPTANCE * _PRIOR_WEIGHT
    _num_tried: float = _PRIOR_WEIGHT
    num_chances: int = 0

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
        """Learn from a step that checked drafts."""
        for index in range(min(num_accepted + 1, num_drafts)):
            self._num_right = _MEMORY * self._num_right + (index < num_accepted)
            self._num_tried = _MEMORY * self._num_tried + 1
