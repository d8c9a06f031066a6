"""`python -m pagewire.checkpoint.tokenizer.convert MODEL_DIR OUTPUT`: tokenizer.model -> tokenizer.json.

A process of its own: `transformers`, which knows the many dialects of such files, is slow to import and may bring torch
along, and the frontend must never hold either.
"""

from __future__ import annotations

import sys
from pathlib import Path


def convert(model_dir: Path, output: Path) -> None:
    """Write the tokenizer.json of a directory that has only a slow tokenizer's files."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(model_dir), local_files_only=True, trust_remote_code=False)
    tokenizer.backend_tokenizer.save(str(output))


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
