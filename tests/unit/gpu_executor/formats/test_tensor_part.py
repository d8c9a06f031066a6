"""Parts of plain tensors: of a file, of one that is not there, of GGUF blocks; and what a part says of itself."""

from __future__ import annotations

from pathlib import Path

import gguf
import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from pagewire.checkpoint.gguf_file import GGUFFile
from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.formats.checkpoint_tensor import CheckpointTensor
from pagewire.gpu_executor.formats.dummy import DummyTensor
from pagewire.gpu_executor.formats.gguf import iterate_gguf
from pagewire.gpu_executor.formats.safetensors import open_safetensors
from pagewire.gpu_executor.formats.tensor_part import WHOLE_TENSOR, TensorPart
from pagewire.gpu_executor.kernels.layouts import DenseWeight, Int4Weight, Int8Weight
from tests.support.one_layer import unpacked
from tests.support.parts import check_part, part_of, parts
from tests.support.tiny_model import tiny_gguf

SHAPE = (24, 512)
QUERY = "blk.0.attn_q.weight"  # the rows of its heads are interleaved in the file
DOWN = "blk.0.ffn_down.weight"


def test_a_part_knows_its_shape_and_its_runs() -> None:
    part = TensorPart((range(2, 4), range(6, 9)), range(8, 24))
    assert part.shape_of((10, 32)) == (5, 16)
    assert part.shape_of((10, 32, 3)) == (5, 16, 3)
    assert TensorPart(rows=(range(3),)).shape_of((10,)) == (3,)
    assert not part.is_whole
    assert WHOLE_TENSOR.is_whole
    assert WHOLE_TENSOR.shape_of((10, 32)) == (10, 32)
    assert (WHOLE_TENSOR.row_runs(10), WHOLE_TENSOR.column_run(32)) == ((range(10),), range(32))
    assert TensorPart(rows=()).row_runs(10) == (range(0),)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("plain")
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(SHAPE, generator=generator)
    large = torch.arange(2048 * 2048, dtype=torch.int32).view(2048, 2048)
    save_file(
        {"odd": torch.zeros(3, dtype=torch.uint8), "matrix": matrix.bfloat16(), "vector": matrix[0], "large": large},
        directory / "model.safetensors",
    )
    return directory


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_part_of_a_stored_matrix_is_that_of_the_whole(plain: Path, data: st.DataObject) -> None:
    with open_safetensors(plain) as tensors:
        (matrix,) = (tensor for tensor in tensors if tensor.name == "matrix")
        assert isinstance(check_part(matrix, data.draw(parts(SHAPE))), DenseWeight)


def test_a_vector_has_rows_and_a_rank_may_have_none(plain: Path) -> None:
    part = TensorPart(rows=(range(3, 5), range(500, 512)))
    with open_safetensors(plain) as tensors:
        vector, matrix = ({t.name: t for t in tensors}[name] for name in ("vector", "matrix"))
        whole = unpacked(vector)
        assert torch.equal(unpacked(vector.sliced(part)), torch.cat((whole[3:5], whole[500:])))
        assert unpacked(matrix.sliced(TensorPart(rows=()))).shape == (0, 512)


@pytest.mark.parametrize(
    "part",
    [TensorPart(rows=(range(100, 228), range(900, 1028))), TensorPart(columns=range(1000, 1256))],
    ids=["rows", "columns"],
)
def test_no_more_than_the_part_is_copied(plain: Path, part: TensorPart) -> None:
    with open_safetensors(plain) as tensors:
        (large,) = (tensor for tensor in tensors if tensor.name == "large")
        whole, piece = large.read(), large.sliced(part)
        values = piece.read()
        assert torch.equal(values, part_of(whole, part))
        assert sum(chunk.nbytes for chunk in piece._chunks(4)) == values.nbytes


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_random_numbers_of_a_part_are_those_of_the_whole(data: st.DataObject) -> None:
    check_part(DummyTensor("a.weight", SHAPE, torch.bfloat16), data.draw(parts(SHAPE)))


def test_random_numbers_of_a_part_repeat_where_those_of_the_whole_do() -> None:
    tensor = DummyTensor("a.weight", (2200, 1024), torch.float32)  # more than are drawn
    check_part(tensor, TensorPart((range(10, 12), range(1000, 2100)), range(512, 1024)))
    bias = DummyTensor("a.bias", (64,), torch.float32)
    assert torch.equal(unpacked(bias.sliced(TensorPart(rows=(range(8, 16),)))), unpacked(bias)[8:16])
    norm = DummyTensor("a.weight", (64,), torch.float32)
    assert torch.equal(unpacked(norm.sliced(TensorPart(rows=(range(8, 16),)))), torch.ones(8))


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files of two matrices and a bias each, by the type of the matrices."""
    directory = tmp_path_factory.mktemp("blocks")
    matrix = np.random.default_rng(0).standard_normal((64, 512), dtype=np.float32)
    files = {}
    for name in ("F16", "Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "Q3_K"):
        kind = gguf.GGMLQuantizationType[name]
        writer = gguf.GGUFWriter(directory / f"{name}.gguf", "llama")
        for tensor in (QUERY, DOWN):
            writer.add_tensor(tensor, _stored(matrix, kind), raw_dtype=kind)
        writer.add_tensor("blk.0.attn_q.bias", matrix[0, :64])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        files[name] = directory / f"{name}.gguf"
    return files


def _stored(matrix: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    if kind.name.endswith("_K"):  # that library packs none of these: random bytes, small scales in both halves
        size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
        raw = np.random.default_rng(1).integers(0, 256, (64, 512 // size, num_bytes), dtype=np.uint8)
        raw[:, :, -1] = raw[:, :, 1] = raw[:, :, 3] = 0x20
        return raw.reshape(64, -1)
    return gguf.quants.quantize(matrix, kind)


def _open(file: GGUFFile, path: Path) -> dict[str, CheckpointTensor]:
    config = msgspec.structs.replace(load_model_config(tiny_gguf().path), model_path=str(path))
    return {tensor.source.split("'")[1]: tensor for tensor in iterate_gguf(file, config)}


@pytest.mark.parametrize("kind", ["F16", "Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "Q3_K"])
@pytest.mark.parametrize("name", [QUERY, DOWN])
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_part_of_blocks_is_that_of_the_whole(
    blocks: dict[str, Path], kind: str, name: str, data: st.DataObject
) -> None:
    with GGUFFile(blocks[kind]) as file:
        check_part(_open(file, blocks[kind])[name], data.draw(parts((64, 512))))


@pytest.mark.parametrize(
    ("kind", "size", "layout"),
    [
        ("Q4_0", 32, Int4Weight), ("Q8_0", 32, Int8Weight), ("Q4_K", 32, Int4Weight),
        ("Q6_K", 16, Int8Weight), ("Q3_K", 16, Int8Weight),
    ],
)  # fmt: skip
def test_blocks_stay_packed_where_groups_are_whole(
    blocks: dict[str, Path], kind: str, size: int, layout: type, caplog: pytest.LogCaptureFixture
) -> None:
    with GGUFFile(blocks[kind]) as file, caplog.at_level("INFO"):
        tensor = _open(file, blocks[kind])[DOWN]
        assert type(check_part(tensor, TensorPart(columns=range(size, 512 - 3 * size)))) is layout
        assert not caplog.records
        assert type(check_part(tensor, TensorPart(columns=range(size // 2, size)))) is DenseWeight
        assert [record.name for record in caplog.records] == ["pagewire.gpu_executor.formats.gguf"]


def test_a_bias_of_interleaved_heads_is_cut_after_it_is_put_in_order(blocks: dict[str, Path]) -> None:
    part = TensorPart(rows=(range(16, 32), range(48, 64)))
    with GGUFFile(blocks["F16"]) as file:
        bias = _open(file, blocks["F16"])["blk.0.attn_q.bias"]
        whole = unpacked(bias)
        assert torch.equal(unpacked(bias.sliced(part)), torch.cat((whole[16:32], whole[48:])))
