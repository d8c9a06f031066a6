"""The first layers of a GGUF file, as a GGUF file: see `tools.first_layers`."""

from __future__ import annotations

from pathlib import Path

from gguf import GGUFReader, GGUFValueType, GGUFWriter

from tools.first_layers import check_number, is_kept

_WRITTEN_BY_THE_WRITER = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture")


def write_gguf(model: Path, num_layers: int, path: Path) -> None:
    """Write a model of another one's first layers; its tensors are copied as they are packed.

    Raises:
        ValueError: the model has fewer layers.
    """
    reader = GGUFReader(model)
    architecture = str(reader.fields["general.architecture"].contents())
    count_key = f"{architecture}.block_count"
    check_number(num_layers, int(reader.fields[count_key].contents()))
    writer = GGUFWriter(path, architecture)
    for key, field in reader.fields.items():
        if key in _WRITTEN_BY_THE_WRITER:
            continue
        value = num_layers if key == count_key else field.contents()
        sub_type = field.types[-1] if field.types[0] is GGUFValueType.ARRAY else None
        writer.add_key_value(key, value, field.types[0], sub_type)
    for tensor in reader.tensors:
        if is_kept(tensor.name, num_layers):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
