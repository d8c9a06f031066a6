"""The tiny checkpoints are what other tests take them for: deterministic, valid, and with logits of unit size."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.support.tiny_model import tiny_checkpoint, tiny_gguf
from tools.make_tiny_model import main
from tools.tiny_model.gguf_writer import write_gguf
from tools.tiny_model.hugging_face import write_hugging_face
from tools.tiny_model.small_quants import PACKERS
from tools.tiny_model.spec import FAMILIES, GGUF_TYPES, Family, TinyModelSpec
from tools.tiny_model.tokenizer import build_tokenizer

# The step of a type's grid relative to the largest value, with room for rounded scales.
MAX_ERRORS = {"Q2_K": 0.45, "Q3_K": 0.3, "Q4_K": 0.07, "Q5_K": 0.035, "Q6_K": 0.02, "IQ4_NL": 0.12, "IQ4_XS": 0.14}


@pytest.mark.parametrize("type_name", PACKERS)
def test_packed_blocks_restore_the_values_they_were_packed_from(type_name: str) -> None:
    values = np.random.default_rng(0).standard_normal((8, 512)).astype(np.float32)
    values[1] = 0  # scales of zero
    values[2] += 3  # minimum above zero
    values[3, :32] = -4  # a sub-block of one negative value
    packed = PACKERS[type_name](values)
    restored = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType[type_name])
    assert np.abs(restored - values).max() < MAX_ERRORS[type_name] * np.abs(values).max()
    assert not restored[1].any()


def test_rows_that_do_not_divide_into_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="blocks of 256 values"):
        PACKERS["Q4_K"](np.zeros((4, 64), dtype=np.float32))


def test_equal_specs_give_equal_files(tmp_path: Path) -> None:
    spec = TinyModelSpec(family="qwen3", num_shards=2)
    first, second = write_hugging_face(spec, tmp_path / "1"), write_hugging_face(spec, tmp_path / "2")
    assert {path.name: path.read_bytes() for path in first.iterdir()} == {
        path.name: path.read_bytes() for path in second.iterdir()
    }
    write_gguf(spec, tmp_path / "1.gguf", "Q8_0")
    write_gguf(spec, tmp_path / "2.gguf", "Q8_0")
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "2.gguf").read_bytes()


@pytest.mark.parametrize("type_name", GGUF_TYPES)
def test_reference_holds_the_weights_of_the_file(type_name: str) -> None:
    tiny = tiny_gguf("qwen2", type_name)  # qwen: no reordered rows
    reference = load_file(tiny.reference / "model.safetensors")
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(tiny.path).tensors}
    tensor = stored["blk.1.ffn_down.weight"]
    assert tensor.tensor_type.name == type_name
    restored = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    assert torch.equal(reference["model.layers.1.mlp.down_proj.weight"], torch.from_numpy(restored.copy()))


@pytest.mark.parametrize("family", FAMILIES)
def test_tokenizer_restores_any_text(family: Family) -> None:
    tokenizer = build_tokenizer(family, 512)
    for text in ("Hello  world\n\n 123", "naïve 日本語 🙂‍↔️", "it's\tme <|im_end|>"):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert tokenizer.get_vocab_size() == 500
    assert tokenizer.encode("<|im_end|>").ids == [2]


def test_command_writes_both_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["mistral", str(tmp_path / "hf"), "--set", "sliding_window=8", "--set", "dtype=bfloat16"])
    assert '"sliding_window": 8' in (tmp_path / "hf" / "config.json").read_text()
    main(["llama", str(tmp_path / "x.gguf"), "--gguf", "Q8_0", "--reference", str(tmp_path / "reference")])
    assert (tmp_path / "x.gguf").is_file()
    assert (tmp_path / "reference" / "model.safetensors").is_file()
    assert capsys.readouterr().out.split() == [str(tmp_path / "hf"), str(tmp_path / "x.gguf")]
    with pytest.raises(SystemExit):
        main(["llama", str(tmp_path / "y"), "--set", "colour=red"])
    assert "colour" in capsys.readouterr().err


@pytest.mark.slow  # the import of transformers
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_have_about_unit_variance_and_depend_on_the_context(family: Family) -> None:
    from transformers import AutoModelForCausalLM

    for options in ({}, {"tie_word_embeddings": True}):
        model = AutoModelForCausalLM.from_pretrained(tiny_checkpoint(family, **options), dtype=torch.float32)
        ids = torch.randint(0, 500, (1, 48), generator=torch.Generator().manual_seed(1))
        other = ids.clone()
        other[0, 0] = (ids[0, 0] + 1) % 500
        with torch.inference_mode():
            logits, others = model(ids).logits, model(other).logits
        assert 0.8 < logits.std() < 1.25
        assert (logits[0, -1] - others[0, -1]).abs().max() > 0.01


@pytest.mark.slow  # the import of transformers
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_file_and_reference_give_equal_logits_in_transformers(family: Family) -> None:
    from transformers import AutoModelForCausalLM

    # transformers doesn't read a GGUF file's head size: that of qwen3 must be the family's own.
    tiny = tiny_gguf(family, "Q8_0", head_dim=128 if family == "qwen3" else 16)
    ids = torch.randint(0, 500, (1, 32), generator=torch.Generator().manual_seed(1))
    # Nor the size of experts, nor that their weights add up to 1, which every file of qwen3_moe means.
    stated = {"moe_intermediate_size": 64, "norm_topk_prob": True} if family == "qwen3_moe" else {}
    by_file = AutoModelForCausalLM.from_pretrained(
        tiny.path.parent, gguf_file=tiny.path.name, dtype=torch.float32, **stated
    )
    reference = AutoModelForCausalLM.from_pretrained(tiny.reference, dtype=torch.float32)
    with torch.inference_mode():
        torch.testing.assert_close(by_file(ids).logits, reference(ids).logits, atol=1e-5, rtol=1e-5)
