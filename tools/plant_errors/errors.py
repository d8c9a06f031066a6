"""The errors that are planted: one slip each, of the kind that is made when a kernel is written or tuned."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
# Tell the pytest plugin which module to take from which file.
MODULE_VARIABLE = "PAGEWIRE_PLANTED_MODULE"
FILE_VARIABLE = "PAGEWIRE_PLANTED_FILE"

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
        ("the soft cap is an eighth too narrow", "soft_cap - 2.0 * soft_cap", "soft_cap - 1.75 * soft_cap"),
        tests="test_paged_attention",
    ),
    *_slips(
        "attention_kernel",
        ("all heads read the first one's keys", "key_cache += kv_head * (BLOCK_SIZE", "key_cache += 0 * (BLOCK_SIZE"),
        ("splits are not shared out", "first_key // SPLIT_LEN + tl.program_id(2)", "first_key // SPLIT_LEN"),
        ("the scale of cached values is forgotten", "value_scale / tl.where", "1.0 / tl.where"),
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
        ("values go where keys belong", "tl.store(value_out + written", "tl.store(key_out + written"),
        (
            "blocks go back where they came from",
            "_launch(buffer, cache, None, destination)",
            "_launch(buffer, cache, None, source)",
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
        "activation",
        ("the gate is linear", "gate / (1.0 + tl.exp(-exponent)) * up", "gate * up"),
        ("the cube is forgotten", "gate * (1.0 + 0.044715 * gate * gate)", "gate"),
        ("another row is read", "row * (2 * SIZE)", "row * SIZE"),
    ),
    *_slips(
        "bound_logits",
        ("the scale is forgotten", ".to(tl.float32) * scale", ".to(tl.float32)"),
        ("the cap is an eighth too narrow", "soft_cap - 2.0 * soft_cap", "soft_cap - 1.75 * soft_cap"),
        ("infinity is bounded", ", values, bounded)", ", bounded, bounded)"),
    ),
    *_slips(
        "unpack",
        ("the high four bits are taken for the low", "half & 0x00F0", "half & 0x000F"),
        ("8-bit codes are off by one", "- 1152.0", "- 1151.0"),
        ("minimums are forgotten", "code * scale[:, None] + minimum[:, None]", "code * scale[:, None]"),
        ("both halves of a word have the first scale", "2 * second + 1)", "1)"),
        ("the sign of an e4m3 number is lost", "| (words & -0x8000)", "| 0"),
        tests="test_quantized_matmul",
    ),
    *_slips(
        "quantized_matmul",
        ("all splits multiply the first channels", "first_unit * padded_rows * WIDTH", "0 * first_unit"),
        ("the last step of a split is left out", "range(first_step, last_step)", "range(first_step, last_step - 1)"),
        ("channels beyond the last are read", "(channel + word < in_features)", "(channel + word < in_features + 1)"),
        ("tiles are added unscaled", " * step_scales[:, None] if IS_FLOAT and IS_STEPWISE else partial", ""),
        ("a split begins with the first step's scales", "first_step.to(tl.int64) * padded_rows", "0 * first_step"),
        ("the scale of rows is forgotten", "total *= tl.load(scale_tile)[:, None]", "pass"),
        ("the bias is forgotten", "total += tl.load(bias + n, mask=is_real, other=0.0)[:, None]", "pass"),
    ),
    *_slips(
        "products",
        ("activations are not brought into order", "x if wanted is None else x.index_select(1, wanted)", "x"),
        ("a permutation goes on to the parts behind it", "if wanted is not permutation:", "if wanted is not None:"),
    ),
    *_slips(
        "packed_weight",
        (
            "groups that differ are taken for alike",
            "if torch.equal(entries, first.expand_as(entries)) else None",
            "",
        ),
        tests="test_quantized_matmul",
    ),
    *_slips(
        "split_sum",
        ("the bias is forgotten", "total += tl.load(bias + channels", "total += 0 * tl.load(bias + channels"),
        ("the last part is left out", "tl.static_range(1, NUM_SPLITS)", "tl.static_range(1, NUM_SPLITS - 1)"),
        tests="test_quantized_matmul",
    ),
    *_slips(
        "dense_matmul",
        ("channels of a split begin at the first", "first_step * BLOCK_K + tl.arange", "0 * first_step + tl.arange"),
        ("weights beyond the last channel are read", "weight_mask & is_channel[None, :]", "weight_mask"),
    ),
    *_slips(
        "mixture/choose",
        ("the best expert alone is taken", "tl.static_range(NUM_CHOSEN)", "tl.static_range(1)"),
        (
            "the last of equal experts is taken",
            "tl.min(tl.where(is_best, expert, PADDED_EXPERTS)",
            "tl.max(tl.where(is_best, expert, -1)",
        ),
        ("weights are not made to add up to 1", "shares / tl.sum(shares, axis=0)", "shares"),
        tests="mixture/test_choose",
    ),
    *_slips(
        "mixture/group",
        ("other ranks' pairs count as those before", "(ids >= 0) & ", ""),
        (
            "a block's pairs overwrite those of the block before",
            "place += tl.sum(is_own.to(tl.int32), axis=0)",
            "place += 0",
        ),
        ("tiles begin with the expert's first pair", " + (tile - tiles_before) * BLOCK_M", ""),
        tests="mixture/test_group",
    ),
    *_slips(
        "mixture/grouped_product",
        ("all tiles multiply by the first expert", "tl.load(matrices + expert)", "tl.load(matrices + 0 * expert)"),
        (
            "each pair reads the row of its number",
            "x + pairs // PAIRS_A_ROW * x_stride, matrix",
            "x + pairs * x_stride, matrix",
        ),
        ("scales are those of the first expert", "tl.load(scales + expert)", "tl.load(scales + 0 * expert)"),
        tests="mixture/test_experts",
    ),
    *_slips(
        "mixture/combine",
        ("experts are added unweighed", "output.to(tl.float32) * weight", "output.to(tl.float32)"),
        ("other ranks' experts are added", "tl.where(is_here, hidden_size, 0)", "hidden_size"),
        tests="mixture/test_experts",
    ),
    *_slips(
        "dequantize",
        ("the first row is always the matrix's", "unit * padded_rows + first_row + n", "unit * padded_rows + n"),
        ("the first tile's scale is taken for all", "first_channel // scale_channels * padded_rows", "0 * padded_rows"),
    ),
    *_slips(
        "embedding",
        ("the first tile's scale is taken for all", "first_channel // scale_channels * padded_rows", "0 * unit"),
        ("columns stay where they are packed", ".index_copy_(1, weight.permutation, out)", ".copy_(out)"),
        ("units beyond a program's first are left out", "tl.program_id(1).to(tl.int64) * BLOCK_UNITS", "0"),
    ),
    *_slips(
        "sampling/noise",
        (
            "the position is forgotten",
            "tl.philox(seed, counters, position, child,",
            "tl.philox(seed, counters, child, child,",
        ),
        tests="sampling/test_noise",
    ),
    *_slips(
        "sampling/best_tokens",
        (
            "of equals the last one is taken",
            "tl.min(tl.where(x == best, tokens, num_drawable - 1)",
            "tl.max(tl.where(x == best, tokens, 0)",
        ),
        ("NaN is overlooked", 'tl.where(x != x, float("inf"), x)', "tl.where(x != x, 0.0, x)"),
        tests="sampling/test_best_tokens",
    ),
    *_slips(
        "sampling/bounds",
        (
            "min_p is forgotten where there is top_k",
            "bound_score = tl.maximum(kth_score, bound_score)",
            "bound_score = kth_score",
        ),
        (
            "all tokens as good as the k-th are kept",
            "bound_id = tl.where(kth_score >= bound_score, kth_id, bound_id)",
            "pass",
        ),
        tests="sampling/test_draw",
    ),
    *_slips(
        "sampling/nucleus",
        (
            "top_p is forgotten",
            "target = total.to(tl.float64) * tl.load(top_ps + owner)",
            "target = total.to(tl.float64)",
        ),
        tests="sampling/test_draw",
    ),
    *_slips(
        "sampling/penalties",
        (
            "negative logits are divided, too",
            "tl.where(x > 0, tl.div_rn(x, repetition), x * repetition)",
            "tl.div_rn(x, repetition)",
        ),
        ("tokens of the prompt cost as well", "tl.where(num_outputs > 0, x - cost, x)", "x - cost"),
        tests="sampling/test_penalties",
    ),
    *_slips(
        "sampling/token_logprobs",
        (
            "equals before a token do not count",
            "is_before = (x > value) | ((x == value) & (ids < token_id))",
            "is_before = x > value",
        ),
        tests="sampling/test_token_logprobs",
    ),
)
