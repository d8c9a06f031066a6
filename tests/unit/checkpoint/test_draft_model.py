"""Which models can guess for which."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pagewire.checkpoint.draft_model import check_draft_model
from pagewire.checkpoint.loading import load_model_config
from pagewire.ipc.errors import ConfigError
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf


def check(draft: Path, target: Path, max_model_len: int = 512) -> None:
    check_draft_model(load_model_config(draft), load_model_config(target), max_model_len)


def test_models_of_one_vocabulary_can_guess_for_each_other() -> None:
    check(tiny_checkpoint(num_layers=1), tiny_checkpoint())
    gguf = tiny_gguf()
    check(gguf.path, gguf.path)
    check(gguf.path, gguf.reference)


def test_another_size_of_vocabulary_and_a_shorter_context_are_refused_with_both_values() -> None:
    with pytest.raises(ConfigError, match=r"of 256 tokens, than .* with 500"):
        check(tiny_checkpoint(vocab_size=256), tiny_checkpoint())
    with pytest.raises(ConfigError, match=r"contexts of 256 tokens, and .* with 512"):
        check(tiny_checkpoint(max_position=256), tiny_checkpoint())
    check(tiny_checkpoint(max_position=256), tiny_checkpoint(), max_model_len=256)


def test_another_token_is_refused_by_its_id(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    shutil.copytree(tiny_checkpoint(), draft)
    path = draft / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    text = next(text for text, token_id in content["model"]["vocab"].items() if token_id == 77)
    content["model"]["vocab"]["another"] = content["model"]["vocab"].pop(text)
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ConfigError, match="token id 77 is another token"):
        check(draft, tiny_checkpoint())
