"""The errors that are planted: one slip each, of the kind that is made when a kernel is written or tuned."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_KERNELS = "gpu_executor/kernels/triton"
_TESTS = "tests/unit/gpu_executor/kernels/triton"


class PlantedError(NamedTuple):
    """One slip.

    Attributes:
        what: what it is, for people.
        file: the kernel's source, from the project's root.
        right: a piece of it that occurs once.
        wrong: what stands there instead.
        tests: the file or folder of tests that have to notice.
    """

    what: str
    file: str
    right: str
    wrong: str
    tests: str

    def planted(self) -> str:
        """Return the source with the error in it.

        Raises:
            ValueError: the source has changed, and the piece is not there, or more than once.
        """
        source = (ROOT / self.file).read_text(encoding="utf-8")
        if (count := source.count(self.right)) != 1:
            raise ValueError(
                f"{self.file} has {self.right!r} {count} times, not once: {self.what!r} needs another piece"
            )
        return source.replace(self.right, self.wrong)

    @property
    def module(self) -> str:
        """The module's name."""
        return "pagewire." + self.file.removesuffix(".py").replace("/", ".")


def _slips(file: str, *slips: tuple[str, str, str], tests: str | None = None) -> tuple[PlantedError, ...]:
    """Return the errors of a kernel's file; its tests are those of the same name unless others are named.

    Args:
        file: its name without .py.
        slips: what it is, the right piece, the wrong one.
        tests: name of the tests' file without .py.
    """
    path, its_tests = f"{_KERNELS}/{file}.py", f"{_TESTS}/{tests or f'test_{file}'}.py"
    return tuple(PlantedError(what, path, right, wrong, its_tests) for what, right, wrong in slips)


ERRORS: tuple[PlantedError, ...] = (
    *_slips(
        "attention_tile",
        ("a token sees the next one", "keys[None, :] <= positions[:, None]", "keys[None, :] <= positions[:, None] + 1"),
        ("the window has a key too many", "positions[:, None] - window", "positions[:, None] - window - 1"),
        ("a slot that nobody wrote is read", "is_stored = keys < num_keys", "is_stored = keys <= num_keys"),
        ("a split is merged unscaled", "total_sums * before[:, None]", "total_sums"),
        (
            "the weights before a larger logit are kept",
            "tl.fma(weight, before, tl.sum(weights, axis=1))",
            "weight + tl.sum(weights, axis=1)",
        ),
        ("the soft cap is an eighth too narrow", "logits = soft_cap - 2.0", "logits = 0.875 * soft_cap - 2.0"),
        tests="test_paged_attention",
    ),
    *_slips(
        "attention_kernel",
        ("all heads read the first one's keys", "key_cache += kv_head * (BLOCK_SIZE", "key_cache += 0 * (BLOCK_SIZE"),
        ("splits are not shared out", "first_key // SPLIT_LEN + tl.program_id(2)", "first_key // SPLIT_LEN"),
        ("the scale of cached values is forgotten", "value_scale / weight", "1.0 / weight"),
        (
            "the last split is left out",
            "num_splits = tl.cdiv(position + 1, SPLIT_LEN)",
            "num_splits = tl.cdiv(position, SPLIT_LEN)",
        ),
        tests="test_paged_attention",
    ),
    *_slips(
        "store_kv",
        ("values go where keys belong in the block", "slot % BLOCK_SIZE", "(slot + 1) % BLOCK_SIZE"),
        ("the scale is forgotten", "tl.div_rn(values.to(tl.float32), scale)", "values.to(tl.float32)"),
    ),
    *_slips(
        "copy_blocks",
        ("a block's last word stays behind", "mask = offsets < block_words", "mask = offsets < block_words - 1"),
        (
            "blocks go back where they came from",
            "_launch(words, buffer, destination,",
            "_launch(words, buffer, source,",
        ),
    ),
    *_slips(
        "rms_norm",
        ("epsilon is forgotten", "mean_square + eps", "mean_square"),
        ("the last channel is masked out", "(channels < SIZE)[None, :]", "(channels < SIZE - 1)[None, :]"),
        ("the sum is normed before it is rounded", "values = rounded.to(tl.float32)", "pass"),
    ),
    *_slips(
        "rotary",
        ("half a pair turns the wrong way", "second * cos[None, :] + first", "second * cos[None, :] - first"),
        ("channels that don't turn are not copied", "if HEAD_DIM > 2 * HALF:", "if False:"),
    ),
    *_slips(
        "silu_and_mul",
        ("the gate is linear", "gate / (1.0 + tl.exp(-gate)) * up", "gate * up"),
        ("another row is read", "row * (2 * SIZE)", "row * SIZE"),
    ),
)
