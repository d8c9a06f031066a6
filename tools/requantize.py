"""Write a GGUF model's weights in another format: `python -m tools.requantize IN OUT --type q4_0`.

Every matrix of the layers is unpacked and rounded again; the embedding and the output layer become Q8_0 unless
`--embedding-type` says otherwise; vectors, tokenizer and metadata stay as they are. Rounding what was rounded before
loses a little more than rounding the original weights would: the tool is there to compare the speed of formats on the
same weights.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

from tools.dev_extra import dev_extra

with dev_extra():
    import gguf
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, ReaderTensor

# What can be written, and the number by which a file says of itself that most of it is in that format.
FILE_TYPES = {
    "q4_0": LlamaFileType.MOSTLY_Q4_0,
    "q4_1": LlamaFileType.MOSTLY_Q4_1,
    "q5_0": LlamaFileType.MOSTLY_Q5_0,
    "q5_1": LlamaFileType.MOSTLY_Q5_1,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
    "bf16": LlamaFileType.MOSTLY_BF16,
    "f16": LlamaFileType.MOSTLY_F16,
    "f32": LlamaFileType.ALL_F32,
}
_VOCABULARY = ("token_embd.weight", "output.weight")
# The writer makes these itself.
_HEADER_FIELDS = frozenset({"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture"})
_CHUNK_VALUES = 1 << 22  # unpacked at a time: the float32 numbers and their temporaries stay below 100 MB


def main(arguments: list[str] | None = None) -> int:
    """Requantize one file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--type", choices=FILE_TYPES, default="q4_0", help="format of the layers' matrices")
    parser.add_argument("--embedding-type", choices=FILE_TYPES, default="q8_0", help="of embedding and output layer")
    args = parser.parse_args(arguments)
    if args.target.exists() and args.target.samefile(args.source):
        parser.error("source and target are the same file")
    requantize(args.source, args.target, args.type, args.embedding_type)
    before, after = (path.stat().st_size / 1e6 for path in (args.source, args.target))
    print(f"{args.source.name} {before:.1f} MB -> {args.target.name} {after:.1f} MB")
    return 0


def requantize(source: Path, target: Path, matrix_type: str, embedding_type: str) -> None:
    """Write `target`: the tensors of `source` in their order, matrices in the given types (keys of `FILE_TYPES`)."""
    print(f"reading {source}", file=sys.stderr)
    reader = GGUFReader(source)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    _copy_metadata(reader, writer)
    writer.add_file_type(FILE_TYPES[matrix_type])
    with tqdm(reader.tensors, unit="tensor") as tensors:
        for tensor in tensors:
            tensors.set_postfix_str(tensor.name, refresh=False)
            if len(tensor.shape) < 2:
                writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
                continue
            wanted = GGMLQuantizationType[(embedding_type if tensor.name in _VOCABULARY else matrix_type).upper()]
            writer.add_tensor(tensor.name, _convert(tensor, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=True)
    writer.close()


def _copy_metadata(reader: GGUFReader, writer: GGUFWriter) -> None:
    for name, field in reader.fields.items():
        if name in _HEADER_FIELDS or name == "general.file_type":
            continue
        kind = field.types[0]
        writer.add_key_value(
            name, field.contents(), kind, sub_type=field.types[-1] if kind == GGUFValueType.ARRAY else None
        )


def _convert(tensor: ReaderTensor, wanted: GGMLQuantizationType) -> np.ndarray:
    """Return the rows of a matrix in the wanted format: uint8 blocks, or floats."""
    if tensor.tensor_type == wanted:
        return tensor.data
    columns = int(tensor.shape[0])  # ggml counts the innermost dimension first
    step = max(1, _CHUNK_VALUES // columns)
    chunks = []
    for start in range(0, len(tensor.data), step):
        values = gguf.quants.dequantize(tensor.data[start : start + step], tensor.tensor_type)
        chunks.append(gguf.quants.quantize(values, wanted))
    return np.concatenate(chunks)


if __name__ == "__main__":
    sys.exit(main())
