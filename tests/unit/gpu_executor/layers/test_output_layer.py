"""Logits are float32, whatever the weights are, and go where the caller wants them."""

from __future__ import annotations

import msgspec
import pytest
import torch

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.kernels.draws import OutputRows
from pagewire.gpu_executor.kernels.select import select_ops
from pagewire.gpu_executor.layers.build_context import BuildContext
from pagewire.gpu_executor.layers.embedding import VocabEmbedding
from pagewire.gpu_executor.layers.output_layer import OutputLayer
from pagewire.gpu_executor.parallel.rank_group import ALONE, RankGroup
from pagewire.gpu_executor.parallel.share import Share
from pagewire.gpu_executor.quantization.dense import DenseMethod
from tests.support.memory_tensor import load_target
from tests.support.rank_threads import ThreadedRanks
from tests.support.tiny_model import tiny_checkpoint

CPU = torch.device("cpu")


def make_output_layer(
    rows: torch.Tensor, scale: float = 1.0, soft_cap: float | None = None, group: RankGroup = ALONE
) -> OutputLayer:
    """A layer tied to an embedding of these rows, or a rank's part of it."""
    ops = select_ops("reference")
    ops.join(group)
    share = Share(group.rank, group.size)
    context = BuildContext(ops, DenseMethod(ops), rows.dtype, rows.dtype, CPU, share)
    vocab_size, hidden_size = rows.shape
    embedding = VocabEmbedding("embedding", vocab_size, hidden_size, context)
    (target,) = embedding.weight_targets()
    load_target(target, rows)
    config = msgspec.structs.replace(
        load_model_config(tiny_checkpoint()),
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        tie_word_embeddings=True,
        logit_scale=scale,
        logit_soft_cap=soft_cap,
    )
    return OutputLayer("output", embedding, config, context)


def test_logits_of_16_bits_are_written_to_the_callers_float32() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = make_output_layer(torch.randn(48, 16, generator=generator).bfloat16())
    hidden = torch.randn(5, 16, generator=generator).bfloat16()
    out = torch.full((8, 48), torch.nan)
    logits = layer.forward(hidden)
    assert logits.dtype == torch.float32
    written = layer.forward(hidden, out[:5])
    assert written.data_ptr() == out.data_ptr()
    assert torch.equal(out[:5], logits)
    assert out[5:].isnan().all()


@pytest.mark.parametrize(("scale", "soft_cap"), [(0.125, None), (1.0, 5.0), (3.0, 5.0)])
def test_logits_are_scaled_and_bounded_once_on_every_way_out(scale: float, soft_cap: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    rows, hidden = torch.randn(48, 16, generator=generator), torch.randn(5, 16, generator=generator)
    layer = make_output_layer(rows, scale, soft_cap)
    expected = scale * (hidden.double() @ rows.double().t())
    if soft_cap is not None:
        expected = soft_cap * torch.tanh(expected / soft_cap)
    expected = expected.float()
    out = torch.full((5, 48), torch.nan)
    chosen = layer.choose(hidden, 40, kept_rows=[1, 4])
    torch.testing.assert_close(layer.forward(hidden), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(layer.forward(hidden, out), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(chosen.logits, expected[[1, 4], :40], rtol=1e-5, atol=1e-5)
    assert chosen.best_ids == expected[:, :40].argmax(dim=1).tolist()
    raw = hidden.double() @ rows[:40].double().t()
    assert chosen.best_values == pytest.approx((scale * raw.amax(dim=1)).tolist(), rel=1e-5)


@pytest.mark.parametrize("num_drawable", [40, 48])
def test_kept_logits_have_the_bits_of_all_logits(num_drawable: int) -> None:
    generator = torch.Generator().manual_seed(0)
    layer = make_output_layer(torch.randn(48, 16, generator=generator), 3.0, 5.0)
    hidden = torch.randn(5, 16, generator=generator)
    every = layer.forward(hidden)[:, :num_drawable]
    for kept_rows in ([0, 1, 2, 3, 4], [1, 4]):
        chosen = layer.choose(hidden, num_drawable, kept_rows)
        assert chosen.logits is not None
        assert torch.equal(chosen.logits, every[kept_rows])


def test_infinite_best_logit_is_not_hidden_by_the_bound() -> None:
    hidden = torch.ones(2, 16)
    hidden[1] = torch.finfo(torch.float32).max
    best_values = make_output_layer(torch.ones(4, 16), 1.0, 4.0).choose(hidden, 4, kept_rows=[0, 1]).best_values
    assert best_values == [16.0, torch.inf]


@pytest.mark.parametrize("soft_cap", [None, 4.0])
def test_best_logit_that_overflows_by_its_scale_shows_on_every_way_out(soft_cap: float | None) -> None:
    layer, hidden = make_output_layer(torch.ones(4, 16), 8.0, soft_cap), torch.ones(2, 16)
    hidden[1] = torch.finfo(torch.float32).max / 64  # 16 of them are finite
    chosen = layer.choose(hidden, 4, kept_rows=[0, 1])
    assert chosen.best_values == [128.0, torch.inf]
    assert layer.choose(hidden, 4, kept_rows=[]).best_values == chosen.best_values
    assert chosen.logits is not None
    for logits in (chosen.logits, layer.forward(hidden)):
        assert logits[0].isfinite().all()
        assert logits[1].isposinf().all()


def test_bounded_logits_have_the_same_bits_alone_and_in_any_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = make_output_layer(torch.randn(53, 16, generator=generator), 0.7, 4.0)
    hidden = torch.randn(29, 16, generator=generator)
    together = layer.forward(hidden)
    assert all(torch.equal(layer.forward(hidden[i : i + 1]), together[i : i + 1]) for i in range(29))


def test_logits_that_are_not_finite_stay_so_behind_a_bound() -> None:
    layer = make_output_layer(torch.ones(4, 16), 1.0, 4.0)
    hidden = torch.ones(4, 16)
    hidden[1:, 3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    logits = layer.forward(hidden)
    assert torch.equal(logits[:1], layer.forward(hidden[:1]))
    assert logits[1].isnan().all()
    assert logits[2].isposinf().all()
    assert logits[3].isneginf().all()


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("num_drawable", [1, 9, 30, 53])
@pytest.mark.parametrize("bounds", [(1.0, None), (0.7, 4.0)])
def test_ranks_of_a_divided_vocabulary_get_what_one_rank_gets(
    size: int, num_drawable: int, bounds: tuple[float, float | None]
) -> None:
    generator = torch.Generator().manual_seed(0)
    rows, hidden = torch.randn(53, 16, generator=generator), torch.randn(7, 16, generator=generator)
    rows[45], rows[20] = rows[3], rows[3]  # equals on several ranks: the lowest id wins
    hidden[2] = 5 * rows[3]
    hidden[4, 1] = torch.nan
    whole = make_output_layer(rows, *bounds)
    expected, expected_best = whole.forward(hidden), whole.choose(hidden, num_drawable, [1, 2, 4])
    ranks = ThreadedRanks(size)
    out = torch.full((7, 53), torch.nan)

    def compute(rank: int) -> tuple[torch.Tensor, OutputRows, OutputRows]:
        layer = make_output_layer(rows, *bounds, group=ranks.groups[rank])
        logits = layer.forward(hidden, out if rank == 0 else None)
        return logits, layer.choose(hidden, num_drawable, [1, 2, 4]), layer.choose(hidden, num_drawable, [])

    for logits, best, unkept in ranks.run(compute):
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, expected, equal_nan=True)
        assert best.logits is not None
        torch.testing.assert_close(best.logits, expected[[1, 2, 4], :num_drawable], equal_nan=True)
        assert best.best_values == pytest.approx(expected_best.best_values, nan_ok=True)
        assert best.best_ids == expected_best.best_ids
        assert unkept.logits is None
        assert unkept.best_ids == best.best_ids
    torch.testing.assert_close(out, expected, equal_nan=True)
    assert torch.tensor(expected_best.best_values)[4].isnan()


@pytest.mark.parametrize("last", [torch.nan, torch.inf, -torch.inf])
def test_a_logit_that_is_not_finite_wins_wherever_it_is(last: float) -> None:
    rows, hidden = torch.ones(8, 16), torch.ones(1, 16)
    rows[7, 0] = last
    ranks = ThreadedRanks(4)
    best = ranks.run(lambda rank: make_output_layer(rows, group=ranks.groups[rank]).choose(hidden, 8, []))
    for chosen in best:
        assert chosen.best_values == pytest.approx([16.0 if last == -torch.inf else last], nan_ok=True)
        assert chosen.best_ids == [0 if last == -torch.inf else 7]


def test_logits_of_a_divided_vocabulary_have_the_same_bits_alone_and_in_any_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, hidden = torch.randn(53, 16, generator=generator), torch.randn(29, 16, generator=generator)
    ranks = ThreadedRanks(3)
    layers = [make_output_layer(rows, group=group) for group in ranks.groups]
    together = ranks.run(lambda rank: layers[rank].forward(hidden))[0]
    for i in range(29):
        alone = ranks.run(lambda rank, i=i: layers[rank].forward(hidden[i : i + 1]))[0]
        assert torch.equal(alone, together[i : i + 1])
