from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from pagewire.checkpoint.ggml_types import GGMLType
from pagewire.checkpoint.gguf_file import GGUFFile
from pagewire.checkpoint.gguf_header import GGUFArray
from tests.support.tiny_model import tiny_gguf
from tools.requantize import main


def plain(value: object) -> object:
    return value.to_list() if isinstance(value, GGUFArray) else value


def test_matrices_change_their_type_and_everything_else_stays(tmp_path: Path) -> None:
    source, target = tiny_gguf("llama", "Q4_1", embedding_quant="Q8_0").path, tmp_path / "out.gguf"
    assert main([str(source), str(target), "--type", "q4_0"]) == 0
    with GGUFFile(source) as before, GGUFFile(target) as after:
        kept = {key: plain(value) for key, value in before.metadata.items() if key != "general.file_type"}
        assert {key: plain(value) for key, value in after.metadata.items() if key != "general.file_type"} == kept
        assert after.metadata["general.file_type"] == gguf.LlamaFileType.MOSTLY_Q4_0
        assert list(after.tensors) == list(before.tensors)
        for name, tensor in after.tensors.items():
            stored = before.tensors[name].ggml_type
            assert tensor.shape == before.tensors[name].shape
            assert tensor.ggml_type == (GGMLType.Q4_0 if stored == GGMLType.Q4_1 else stored)
            if tensor.ggml_type == stored:
                assert after.tensor_bytes(name) == before.tensor_bytes(name)


def test_values_are_those_of_the_source_rounded(tmp_path: Path) -> None:
    source, target = tiny_gguf("llama", "F32").path, tmp_path / "out.gguf"
    main([str(source), str(target), "--type", "q5_1"])
    before, after = (
        {
            tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            for tensor in gguf.GGUFReader(path).tensors
        }
        for path in (source, target)
    )
    for name, values in before.items():
        spread = np.ptp(values.reshape(-1, 32), axis=1).max() if values.ndim > 1 else 0.0
        assert np.abs(after[name] - values).max() <= spread / 31, name


def test_a_file_is_not_written_onto_itself(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_gguf("llama", "F32").path.read_bytes())
    with pytest.raises(SystemExit):
        main([str(path), str(path)])
