"""How a pipeline stage gets the residual stream from the stage before it, and hands its own on to the next."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from .lost_peers import expecting_peers
from .process_groups import Pending, ProcessGroup
from .share import Share

_TAG = 0  # of all transfers: between two stages they are one row of them, in the order of the steps


class StageLink:
    """The two ends of a stage, of which the first stage lacks one and the last stage the other.

    Each rank of a stage is linked to the rank with the same part of the layers: all ranks of a stage have the same
    stream.

    Args:
        group: one rank of each stage, in the order of the stages.
        stage: this one.
        hidden_size: channels of the stream.
        dtype: of the stream, the compute dtype.
        device: of the stream.
    """

    def __init__(
        self, group: ProcessGroup, stage: Share, *, hidden_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._group = group
        self._stage = stage
        self._hidden_size = hidden_size
        self._dtype = dtype
        self._device = device
        # What is sent is kept until it is gone. The next stage asks for it without waiting for anything that comes
        # later, and it can't be further behind than the steps that are in flight, one a stage.
        self._sent: deque[tuple[Pending, Tensor]] = deque()

    def send(self, stream: Tensor) -> None:
        """Begin to send a step's stream to the next stage.

        Args:
            stream: [num_tokens, hidden_size], contiguous; nobody may write to it any more.

        Raises:
            RankLost: the next stage is gone.
        """
        with expecting_peers():
            self._sent.append((self._group.send([stream], self._stage.rank + 1, _TAG), stream))
            while len(self._sent) > self._stage.size:
                self._sent.popleft()[0].wait()

    def receive(self, num_tokens: int) -> Tensor:
        """Wait for the stream of the stage before, which has the same step: [num_tokens, hidden_size].

        A GPU's stream of work waits, and the host does not.

        Raises:
            RankLost: the stage before is gone.
        """
        stream = torch.empty(num_tokens, self._hidden_size, dtype=self._dtype, device=self._device)
        with expecting_peers():
            self._group.recv([stream], self._stage.rank - 1, _TAG).wait()
        return stream
