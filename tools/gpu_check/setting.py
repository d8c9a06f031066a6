"""The sizes that a check runs with: those of Llama 3.1 8B on a GPU, tiny ones to try the check itself on a CPU."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from pagewire.checkpoint.estimate.shapes import SHAPES
from pagewire.checkpoint.model_config import LayerKind, ModelConfig

T = TypeVar("T")


class Share(NamedTuple):
    """What one of several processes does of a part: each `step`-th thing from the `first` on."""

    first: int
    step: int


WHOLE = Share(0, 1)
"""All of a part."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all parts go by.

    Attributes:
        device: "cuda" or "cpu".
        model: the shape.
        batches: requests at once.
        context: tokens of a request in the middle of its output.
        output_tokens: of each request.
        generate_batch: the batch that transformers is measured with.
        served_rate: requests a second.
        served_requests: how many.
        ceiling_bytes: size of the copies that measure bandwidth.
        ceiling_rows: rows, columns and depth of the product that measures operations.
        directory: for the checkpoint and intermediate files.
        share: of a part that several processes do.
    """

    device: str
    model: ModelConfig
    batches: tuple[int, ...]
    context: int
    output_tokens: int
    generate_batch: int
    served_rate: float
    served_requests: int
    served_prompt_tokens: int
    served_output_tokens: int
    ceiling_bytes: int
    ceiling_rows: int
    directory: Path
    share: Share = WHOLE

    @property
    def is_tiny(self) -> bool:
        """Whether figures mean nothing."""
        return self.device == "cpu"

    @property
    def prompt_tokens(self) -> int:
        """Of each request: half of the output brings it to `context`."""
        return self.context - self.output_tokens // 2

    def own(self, things: Iterable[T]) -> Iterator[T]:
        """Yield those that fall to this process."""
        return itertools.islice(things, self.share.first, None, self.share.step)


def make_setting(device: str, directory: Path, share: Share = WHOLE) -> Setting:
    """Return the sizes for a device, and the share of a part that a process does."""
    model = SHAPES["llama-3.1-8b"].config
    if device == "cuda":
        return Setting(
            device=device,
            model=model,
            batches=(1, 64, 256),
            context=1024,
            output_tokens=128,
            generate_batch=64,
            served_rate=10.0,
            served_requests=120,
            served_prompt_tokens=256,
            served_output_tokens=240,
            ceiling_bytes=1 << 30,
            ceiling_rows=8192,
            directory=directory,
            share=share,
        )
    tiny = msgspec.structs.replace(
        model, hidden_size=64, intermediate_size=96, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16,
        rotary_dim=16, vocab_size=1024, tokenizer_size=1024, max_position=512, rope_scaling=None, dtype="float16",
        layer_kinds=(LayerKind.FULL,) * 2,
    )  # fmt: skip
    return Setting(
        device=device,
        model=tiny,
        batches=(1, 3),
        context=24,
        output_tokens=8,
        generate_batch=3,
        served_rate=20.0,
        served_requests=4,
        served_prompt_tokens=8,
        served_output_tokens=4,
        ceiling_bytes=1 << 20,
        ceiling_rows=64,
        directory=directory,
        share=share,
    )
