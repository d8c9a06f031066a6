"""The ranks that an executor computes with, as it sees them."""

from __future__ import annotations

from dataclasses import dataclass

from .process_groups import ProcessGroup
from .rank_group import ALONE, RankGroup
from .share import WHOLE, Share


@dataclass(frozen=True, slots=True)
class Peers:
    """This rank's place, and what joins it to the others.

    Attributes:
        share: its part of each layer.
        stage: its part of the layers.
        of_layers: the ranks that share its layers.
        everyone: all ranks of the engine; for numbers, not for tensors.
        of_stages: the ranks that have its part of each layer, stage by stage; None where there is one stage.
    """

    share: Share = WHOLE
    stage: Share = WHOLE
    of_layers: RankGroup = ALONE
    everyone: RankGroup = ALONE
    of_stages: ProcessGroup | None = None


NO_PEERS = Peers()
