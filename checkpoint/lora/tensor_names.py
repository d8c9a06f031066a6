"""What PEFT calls an adapter's tensors."""

from __future__ import annotations

import re
from typing import NamedTuple

FILE_NAME = "adapter_model.safetensors"
PICKLED_NAME = "adapter_model.bin"

_PREFIX = "base_model.model."
_NAME = re.compile(r"(?P<module>.+)\.lora_(?P<matrix>[AB])(\.default)?(\.weight)?")


class AdapterTensor(NamedTuple):
    """Which of a module's two matrices a tensor is: "A", which comes first, or "B"."""

    module: str
    matrix: str


def parse_name(name: str) -> AdapterTensor | None:
    """Return what a tensor is, by its name; None: no matrix of LoRA."""
    found = _NAME.fullmatch(name.removeprefix(_PREFIX))
    return None if found is None else AdapterTensor(found["module"], found["matrix"])
