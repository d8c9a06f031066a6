"""Samples of text for `pagewire quantize --calibrate`, as token ids: only the frontend has tokenizers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from pagewire.checkpoint.loading import load_model_config
from pagewire.ipc.errors import ConfigError

from ..tokenizer.tokenizer import load_tokenizer
from .config import LEAST_CALIBRATION_TOKENS

# Longer ones would have attention look farther back, and the pass take more time for it.
_MAX_SEQUENCE_TOKENS = 512


@contextmanager
def calibration_ids(model: Path, text: Path, num_tokens: int) -> Iterator[Path]:
    """Give a file of token ids, JSON, a list of a list for each sequence; it is gone after the context.

    Args:
        model: a Hugging Face directory.
        text: a file of text; what follows the tokens that are asked for is not used.
        num_tokens: at most as many are taken, in whole sequences.

    Raises:
        ConfigError: the text can't be read or is too short, or the model has no tokenizer.
    """
    sequences = read_sequences(model, text, num_tokens)
    with TemporaryDirectory(prefix="pagewire-quantize-") as directory:
        path = Path(directory) / "calibration.json"
        path.write_bytes(msgspec.json.encode(sequences))
        yield path


def read_sequences(model: Path, text: Path, num_tokens: int) -> list[list[int]]:
    """Return the head of a text cut into sequences of up to 512 tokens, each begun as the model wants texts begun."""
    try:
        content = text.read_text(encoding="utf-8")
    except OSError as exc:
        raise ConfigError(f"--calibrate {text} can't be read: {exc.strerror}; name a file of text.") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"--calibrate {text} is no text in UTF-8; name a file of plain text.") from exc
    tokenizer = load_tokenizer(model)
    try:
        start = tokenizer.encode("", add_special_tokens=True)
        token_ids = tokenizer.encode(content, add_special_tokens=False)
    finally:
        tokenizer.close()
    if len(token_ids) < LEAST_CALIBRATION_TOKENS:
        raise ConfigError(
            f"--calibrate {text} has {len(token_ids):,} tokens, and {LEAST_CALIBRATION_TOKENS:,} are the least that "
            "say what a layer is given; name a longer text."
        )
    sequence_tokens = min(_MAX_SEQUENCE_TOKENS, load_model_config(model).max_position)
    length = sequence_tokens - len(start)
    num_sequences = min(num_tokens // sequence_tokens, len(token_ids) // length)
    return [start + token_ids[begin : begin + length] for begin in range(0, num_sequences * length, length)]
