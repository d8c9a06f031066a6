"""A GGUF header is read exactly, and whatever is wrong with a file is a ConfigError that names it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagewire.checkpoint.gguf_file import GGUFFile
from pagewire.checkpoint.loading import load_model_config
from pagewire.ipc.errors import ConfigError
from tests.support.tiny_model import tiny_gguf

U32, U64 = struct.Struct("<I"), struct.Struct("<Q")
UINT32, STRING, ARRAY = 4, 8, 9


def text(value: str) -> bytes:
    return U64.pack(len(value.encode())) + value.encode()


def pair(key: str, value_type: int, value: bytes) -> bytes:
    return text(key) + U32.pack(value_type) + value


def tensor_info(name: str, shape: tuple[int, ...], ggml_type: int, offset: int) -> bytes:
    dimensions = b"".join(U64.pack(size) for size in reversed(shape))
    return text(name) + U32.pack(len(shape)) + dimensions + U32.pack(ggml_type) + U64.pack(offset)


def write(
    path: Path,
    *,
    magic: bytes = b"GGUF",
    version: bytes = U32.pack(3),
    pairs: tuple[bytes, ...] = (),
    tensors: tuple[bytes, ...] = (),
    data: bytes = b"",
    num_pairs: int | None = None,
    num_tensors: int | None = None,
) -> Path:
    counts = U64.pack(len(tensors) if num_tensors is None else num_tensors)
    counts += U64.pack(len(pairs) if num_pairs is None else num_pairs)
    header = magic + version + counts + b"".join(pairs) + b"".join(tensors)
    path.write_bytes(header + bytes(-len(header) % 32) + data)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        GGUFFile(path)
    assert str(path) in caught.value.message
    return caught.value.message


def test_tensor_bytes_and_metadata_are_those_of_the_reference_reader(tmp_path: Path) -> None:
    import gguf

    path = tiny_gguf("qwen3", "Q8_0").path
    reference = gguf.GGUFReader(path)
    with GGUFFile(path) as file:
        assert list(file.tensors) == [tensor.name for tensor in reference.tensors]
        for expected in reference.tensors:
            tensor = file.tensors[expected.name]
            assert tensor.shape == tuple(int(size) for size in reversed(expected.shape))
            assert tensor.ggml_type == expected.tensor_type
            assert tensor.offset == expected.data_offset
            with file.tensor_bytes(expected.name) as data:
                assert data == expected.data.tobytes()
        fields = {key: field for key, field in reference.fields.items() if not key.startswith("GGUF.")}
        assert file.metadata.keys() == fields.keys()
        for key, field in fields.items():
            value = file.metadata[key]
            assert (value if isinstance(value, str | int | float) else value.to_list()) == field.contents()


def test_block_sizes_are_those_of_the_reference_package() -> None:
    import gguf

    from pagewire.checkpoint.ggml_types import GGMLType

    for reference, (values, num_bytes) in gguf.GGML_QUANT_SIZES.items():
        if reference.name == "Q8_1":  # never stored in files; the package has the size of an older layout
            continue
        ours = GGMLType(reference.value)
        assert (ours.name, ours.block_values, ours.block_bytes) == (reference.name, values, num_bytes)


def test_split_files_open_as_one_from_any_shard() -> None:
    whole, split = tiny_gguf("llama", "F16"), tiny_gguf("llama", "F16", num_shards=3)
    with GGUFFile(whole.path) as one, GGUFFile(split.path) as many, GGUFFile(sibling(split.path, 2)) as by_second:
        assert many.tensors.keys() == one.tensors.keys() == by_second.tensors.keys()
        assert len({tensor.path for tensor in many.tensors.values()}) == 3
        for name in one.tensors:
            with one.tensor_bytes(name) as expected, many.tensor_bytes(name) as data:
                assert data == expected
    assert load_model_config(split.path).hidden_size == load_model_config(whole.path).hidden_size


def test_missing_shard_is_named(tmp_path: Path) -> None:
    source = tiny_gguf("llama", "F16", num_shards=3).path
    for number in (1, 3):
        shard = sibling(source, number)
        (tmp_path / shard.name).write_bytes(shard.read_bytes())
    with pytest.raises(ConfigError, match=r"lacks tiny-00002-of-00003\.gguf"):
        GGUFFile(tmp_path / source.name)


def test_renamed_shard_is_not_taken_for_the_whole_model(tmp_path: Path) -> None:
    renamed = tmp_path / "model.gguf"
    renamed.write_bytes(tiny_gguf("llama", "F16", num_shards=3).path.read_bytes())
    assert "is shard 1 of 3" in refusal(renamed)


def sibling(path: Path, number: int) -> Path:
    return path.with_name(path.name.replace("-00001-", f"-{number:05d}-"))


def test_what_is_no_gguf_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    assert "can't be opened" in refusal(tmp_path / "absent.gguf")
    path.write_bytes(b"")
    assert "is empty" in refusal(path)
    assert "is not a GGUF file" in refusal(write(path, magic=b"GGML"))
    assert "big-endian" in refusal(write(path, version=struct.pack(">I", 3)))
    assert "GGUF version 1" in refusal(write(path, version=U32.pack(1)))
    assert "GGUF version 4" in refusal(write(path, version=U32.pack(4)))


def test_absurd_counts_and_lengths_are_refused_before_they_are_used(tmp_path: Path) -> None:
    path, huge = tmp_path / "model.gguf", 1 << 60
    assert f"states {huge} tensors" in refusal(write(path, num_tensors=huge))
    assert f"states {huge} metadata pairs" in refusal(write(path, num_pairs=huge))
    strings = pair("words", ARRAY, U32.pack(STRING) + U64.pack(huge))
    assert f"states {huge} elements of words" in refusal(write(path, pairs=(strings,)))
    inner = pair("words", ARRAY, U32.pack(STRING) + U64.pack(2) + text("a") + U64.pack(huge))
    assert "the strings of words run past" in refusal(write(path, pairs=(inner,)))
    assert "would be" in refusal(write(path, pairs=(pair("name", STRING, U64.pack(huge)),)))
    nested = pair("words", ARRAY, U32.pack(ARRAY) + U64.pack(1) + U32.pack(UINT32) + U64.pack(0))
    assert "array of arrays" in refusal(write(path, pairs=(nested,)))
    assert "value type 99" in refusal(write(path, pairs=(pair("name", 99, b""),)))
    twice = pair("name", UINT32, U32.pack(1))
    assert "metadata key 'name' twice" in refusal(write(path, pairs=(twice, twice)))
    alignment = pair("general.alignment", UINT32, U32.pack(12))
    assert "not a power of two" in refusal(write(path, pairs=(alignment,)))


def test_impossible_tensors_are_named(tmp_path: Path) -> None:
    path, data = tmp_path / "model.gguf", bytes(256)

    def fault(*infos: bytes) -> str:
        return refusal(write(path, tensors=infos, data=data))

    assert "'w' has ggml type 4, which" in fault(tensor_info("w", (2, 32), 4, 0))
    assert "'w' has rows of 40 values, not whole Q8_0 blocks of 32" in fault(tensor_info("w", (2, 40), 8, 0))
    assert "'w' has 0 dimensions" in fault(tensor_info("w", (), 0, 0))
    assert "a dimension of 0" in fault(tensor_info("w", (0, 4), 0, 0))
    assert "not a multiple of 32" in fault(tensor_info("w", (4,), 0, 4))
    assert "truncated: tensor 'w' ends at" in fault(tensor_info("w", (1 << 40, 1 << 20), 0, 0))
    assert "tensors 'v' and 'w' lie in the same bytes" in fault(
        tensor_info("v", (40,), 0, 0), tensor_info("w", (4,), 0, 128)
    )
    assert "lists tensor 'w' twice" in fault(tensor_info("w", (4,), 0, 0), tensor_info("w", (4,), 0, 0))


def test_wrong_types_of_metadata_name_the_key(tmp_path: Path) -> None:
    path = write(
        tmp_path / "model.gguf", pairs=(pair("count", STRING, text("three")), pair("size", UINT32, U32.pack(3)))
    )
    with GGUFFile(path) as file:
        with pytest.raises(ConfigError, match="metadata key 'count' is str, not int"):
            file.get_int("count")
        with pytest.raises(ConfigError, match="lacks the metadata key 'other'"):
            file.require_str("other")
        assert file.get_float("size") == 3.0
        assert file.get_strings("other") is None


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_truncated_or_damaged_file_never_fails_with_anything_but_config_error(
    tmp_path: Path, data: st.DataObject
) -> None:
    whole = tiny_gguf("llama", "Q4_0").path.read_bytes()
    path = tmp_path / "model.gguf"
    header_bytes = 20_000  # the part that is parsed; what follows are weights
    if data.draw(st.booleans(), label="truncate"):
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1), label="length")])
        with pytest.raises(ConfigError) as caught:
            load_model_config(path)
        assert str(path) in caught.value.message
        return
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 8), label="faults")):
        damaged[data.draw(st.integers(0, header_bytes - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(damaged)
    try:
        load_model_config(path)
    except ConfigError as error:
        assert str(path) in error.message  # noqa: PT017 -- some damage is harmless
