from __future__ import annotations

import shutil
from pathlib import Path

from pagewire.checkpoint.fingerprint import fingerprint
from pagewire.checkpoint.loading import load_model_config
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf


def test_same_model_elsewhere_is_the_same_and_another_one_is_not(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tiny_checkpoint(), copy)
    paths = [tiny_checkpoint(), copy, tiny_checkpoint("qwen3"), tiny_gguf().path]
    first, second, other, packed = (fingerprint(load_model_config(path)) for path in paths)
    assert first == second
    assert len({first, other, packed}) == 3
