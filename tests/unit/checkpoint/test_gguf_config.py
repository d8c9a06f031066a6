"""GGUF metadata and tensors give the same ModelConfig as the config.json of the same model."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import pytest

from pagewire.checkpoint.loading import load_model_config
from pagewire.checkpoint.model_config import LayerKind, ModelConfig, RopeScaling
from pagewire.ipc.errors import ConfigError
from tests.support.tiny_model import tiny_gguf
from tools.tiny_model.spec import Family

FULL, SLIDING = LayerKind.FULL, LayerKind.SLIDING
Setting = Callable[[gguf.GGUFWriter], None]
LONGROPE = {
    "rope_type": "longrope", "original_max_position_embeddings": 256,
    "short_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5],
    "long_factor": [1.0, 2.0, 4.0, 8.0, 9.5, 10.0, 11.0, 12.0],
}  # fmt: skip
MULTIPLIERS = {
    "embedding_multiplier": 12.0, "attention_multiplier": 0.1, "residual_multiplier": 0.22, "logits_scaling": 8.0
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("gemma2", {"sliding_window": 8, "num_layers": 4, "attention_soft_cap": 50.0, "logit_soft_cap": 30.0}),
        ("gemma2", {"tie_word_embeddings": True}),
        ("gemma3", {"sliding_window": 8, "num_layers": 7, "rope_theta": 1e6}),
        (
            "gemma3",
            {
                "sliding_window": 8,
                "sliding_window_pattern": 2,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                "local_rope_theta": 500.0,
                "logit_soft_cap": 30.0,
            },
        ),
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "rope_theta": 5e5}),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
        ("mistral", {"sliding_window": 8, "head_dim": 32}),
        ("qwen2", {"tie_word_embeddings": True, "sliding_window": 8}),
        ("qwen3", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}}),
        ("phi3", {"sliding_window": 8, "partial_rotary_factor": 0.75}),
        (
            "phi3",
            # The square root of 1 + ln 4 / ln 256, as stored.
            {"rope_scaling": {**LONGROPE, "attention_factor": float(np.float32(np.sqrt(1.25)))}, "max_position": 1024},
        ),
        ("granite", {"attention_bias": True, "mlp_bias": True, **MULTIPLIERS}),
        ("mixtral", {"num_experts": 5, "num_chosen_experts": 3}),
        ("qwen3_moe", {"num_layers": 3, "dense_layers": (1,), "expert_size": 24}),
    ],
)
def test_same_facts_as_config_json(family: Family, options: dict[str, Any]) -> None:
    tiny = tiny_gguf(family, "F32", **options)
    expected = load_model_config(tiny.reference)
    # Mistral's layers are llama's, and so are its files.
    architecture = "LlamaForCausalLM" if family == "mistral" else expected.architecture
    # The converter adds what Gemma leaves off.
    assert load_model_config(tiny.path) == msgspec.structs.replace(
        expected, architecture=architecture, model_path=str(tiny.path), file_format="gguf", norm_weight_offset=0.0
    )


def test_dtype_is_that_of_the_matrices() -> None:
    for quant, dtype in (("F16", "float16"), ("BF16", "bfloat16"), ("Q8_0", "quantized")):
        assert load_model_config(tiny_gguf("llama", quant).path).dtype == dtype
    assert load_model_config(tiny_gguf("llama", "F16", embedding_quant="Q8_0").path).dtype == "quantized"
    assert load_model_config(tiny_gguf("mixtral", "F16").path).dtype == "float16"  # with routers in float32


@pytest.mark.parametrize(
    ("quants", "packed_type"),
    [
        ({"family": "mixtral", "quant": "Q4_0", "value_quant": "Q8_0"}, "Q4_0"),
        ({"family": "llama", "quant": "Q4_1", "embedding_quant": "Q8_0"}, "Q4_1"),
        ({"family": "llama", "quant": "Q4_0", "value_quant": "Q8_0"}, "Q4_0"),
        ({"family": "llama", "quant": "F16", "embedding_quant": "Q8_0"}, "F16"),
        ({"family": "llama", "quant": "F16"}, None),
    ],
)
def test_packed_file_is_named_by_the_type_of_most_of_its_layers(
    quants: dict[str, str], packed_type: str | None
) -> None:
    assert load_model_config(tiny_gguf(**quants).path).packed_type == packed_type


@pytest.mark.slow  # the import of transformers
def test_llama3_scaling_is_read_as_its_factors() -> None:
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    tiny = tiny_gguf("llama", "F32", rope_theta=500.0, rope_scaling={"rope_type": "llama3", **parameters})
    scaling = load_model_config(tiny.path).rope_scaling
    assert scaling is not None
    assert scaling.kind == "llama3"
    # The reference: inverse frequencies with and without scaling.
    config = AutoConfig.from_pretrained(tiny.reference)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1.0 / 500.0 ** (np.arange(0, 16, 2) / 16)
    np.testing.assert_allclose(plain / np.array(scaling.frequency_factors), scaled.numpy(), rtol=1e-6)
    assert len(set(scaling.frequency_factors)) > 2


def minimal(path: Path, arch: str = "llama", *settings: Setting, leave_out: str = "") -> Path:
    """Write a file without weights but the embedding; `settings` add metadata, `leave_out` omits one key."""
    writer = gguf.GGUFWriter(path, arch)
    numbers = {
        "block_count": 4, "context_length": 256, "embedding_length": 32, "feed_forward_length": 64,
        "attention.head_count": 4,
    }  # fmt: skip
    for key, value in numbers.items():
        if key != leave_out:
            writer.add_uint32(f"{arch}.{key}", value)
    if leave_out != "attention.layer_norm_rms_epsilon":
        writer.add_layer_norm_rms_eps(1e-5)
    for setting in settings:
        setting(writer)
    if leave_out != "token_embd.weight":
        writer.add_tensor("token_embd.weight", np.zeros((16, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def read(path: Path, *settings: Setting) -> ModelConfig:
    return load_model_config(minimal(path / "model.gguf", "llama", *settings))


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_model_config(path)
    assert str(path) in caught.value.message
    return caught.value.message


def test_defaults_of_absent_metadata(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert (config.num_kv_heads, config.head_dim, config.rotary_dim, config.rope_theta) == (4, 8, 8, 10_000.0)
    assert config.rms_norm_eps == 1e-5  # not the nearest fp32
    assert (config.tokenizer_size, config.bos_token_id, config.eos_token_ids) == (16, None, ())
    assert config.tie_word_embeddings


@pytest.mark.parametrize("stated", [True, False])
def test_output_layer_is_the_embedding_where_the_file_has_none_whatever_it_states(tmp_path: Path, stated: bool) -> None:
    assert read(tmp_path, lambda writer: writer.add_bool("llama.tie_word_embeddings", stated)).tie_word_embeddings


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.layer_norm_rms_epsilon",
        "token_embd.weight",
    ],
)
def test_missing_fact_is_named(tmp_path: Path, key: str) -> None:
    assert key in refusal(minimal(tmp_path / "model.gguf", leave_out=key))


def test_unsupported_models_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    message = refusal(minimal(path, "gpt2"))
    assert "'gpt2'" in message
    assert "llama, phi3, qwen2, qwen3" in message
    per_layer = [4, 4, 2, 2]
    assert "differs between layers" in refusal(
        minimal(path, "llama", lambda writer: writer.add_head_count_kv(per_layer))
    )
    unknown = ("llama.rope.scaling.type", "ntk")
    assert "'ntk' is not known; known are none, linear, yarn, longrope" in refusal(
        minimal(path, "llama", lambda writer: (writer.add_string(*unknown), writer.add_rope_scaling_factor(2)))
    )


@pytest.mark.parametrize(
    ("arch", "facts", "message"),
    [
        ("granite", {"expert_count": 8}, "'granite' with experts is not supported; supported are llama and qwen3moe"),
        ("qwen3moe", {}, "lacks the metadata key qwen3moe.expert_count"),
        ("llama", {"expert_count": 1 << 20}, "1 to 10000 can be"),
        ("llama", {"expert_count": 8}, "lacks the metadata key 'llama.expert_used_count'"),
        ("llama", {"expert_count": 8, "expert_used_count": 9}, "expert_used_count is 9, of 8 experts"),
        ("llama", {"expert_count": 8, "expert_used_count": 2}, "no layer has the router ffn_gate_inp.weight"),
        ("llama", {"expert_count": 8, "expert_shared_count": 1}, "that all tokens share are not supported"),
        ("llama", {"expert_count": 8, "expert_gating_func": 2}, "another than softmax"),
        ("llama", {"expert_count": 8, "expert_weights_scale": 2.5}, "expert_weights_scale is not 1"),
    ],
)
def test_experts_that_are_chosen_in_another_way_are_refused(
    tmp_path: Path, arch: str, facts: dict[str, float], message: str
) -> None:
    def state(writer: gguf.GGUFWriter) -> None:
        for key, value in facts.items():
            add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
            add(f"{arch}.{key}", value)

    assert message in refusal(minimal(tmp_path / "model.gguf", arch, state))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("block_count", 1 << 31, "at most 10000 can be"),
        ("block_count", 0, "must be at least 1"),
        ("attention.key_length", -8, "must be at least 1"),
        ("rope.dimension_count", 3, "3 channels of each head would rotate"),
        ("rope.dimension_count", 10, "10 channels of each head would rotate"),
        ("rope.freq_base", float("nan"), "must be a number above 0"),
        ("attention.layer_norm_rms_epsilon", -1.0, "must be a number above 0"),
        ("attention.sliding_window", -1, "must be at least 0"),
    ],
)
def test_impossible_fact_is_named(tmp_path: Path, key: str, value: float, message: str) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        if isinstance(value, float):
            writer.add_float32(f"llama.{key}", value)
        elif value < 0:
            writer.add_int32(f"llama.{key}", value)
        else:
            writer.add_uint32(f"llama.{key}", value)

    assert message in refusal(minimal(tmp_path / "model.gguf", "llama", change, leave_out=key))


def test_sizes_per_layer_are_taken_if_they_are_equal(tmp_path: Path) -> None:
    assert read(tmp_path, lambda writer: writer.add_head_count_kv([2] * 4)).num_kv_heads == 2


def test_what_gemma_files_leave_out_is_what_the_model_has(tmp_path: Path) -> None:
    def gemma(name: str, *settings: Setting, num_layers: int = 4) -> ModelConfig:
        def layers(writer: gguf.GGUFWriter) -> None:
            writer.add_block_count(num_layers)

        return load_model_config(minimal(tmp_path / "model.gguf", name, layers, *settings, leave_out="block_count"))

    second = gemma("gemma2")
    assert (second.layer_kinds, second.sliding_window) == ((SLIDING, FULL) * 2, 4096)
    assert (second.attention_soft_cap, second.logit_soft_cap, second.local_rope_theta) == (50.0, 30.0, None)
    assert (second.hidden_act, second.embedding_scale, second.attention_scale) == ("gelu_tanh", 32**0.5, 8**-0.5)
    third = gemma("gemma3", lambda writer: writer.add_sliding_window(8), num_layers=7)
    assert (third.layer_kinds, third.sliding_window) == ((SLIDING,) * 5 + (FULL, SLIDING), 8)
    assert (third.attention_soft_cap, third.logit_soft_cap, third.local_rope_theta) == (None, None, 10_000.0)
    assert gemma("gemma3", num_layers=7).sliding_window is None

    def wide_heads(writer: gguf.GGUFWriter) -> None:
        writer.add_key_length(16)
        writer.add_value_length(16)

    for name, num_layers in (("gemma2", 46), ("gemma3", 62)):  # those of 27b scale attention by other channels
        assert gemma(name, wide_heads).attention_scale == 16**-0.5
        assert gemma(name, wide_heads, num_layers=num_layers).attention_scale == 8**-0.5


def test_turn_of_gemma_ends_an_answer_though_only_its_spelling_is_there(tmp_path: Path) -> None:
    def tokens(writer: gguf.GGUFWriter) -> None:
        writer.add_token_list(["<pad>", "<eos>", "<bos>", *(f"word{i}" for i in range(12)), "<end_of_turn>"])
        writer.add_eos_token_id(1)

    def ends(name: str) -> tuple[int, ...]:
        return load_model_config(minimal(tmp_path / "model.gguf", name, tokens)).eos_token_ids

    assert (ends("gemma2"), ends("gemma3"), ends("llama")) == ((1, 15), (1, 15), (1,))


def test_window_pattern_is_resolved_per_layer(tmp_path: Path) -> None:
    def windows(*settings: Setting) -> tuple[tuple[LayerKind, ...], int | None]:
        config = read(tmp_path, *settings)
        return config.layer_kinds, config.sliding_window

    def window(writer: gguf.GGUFWriter) -> None:
        writer.add_sliding_window(8)

    key = "llama.attention.sliding_window_pattern"
    assert windows() == ((FULL,) * 4, None)
    assert windows(lambda writer: writer.add_sliding_window(0)) == ((FULL,) * 4, None)
    assert windows(window) == ((SLIDING,) * 4, 8)
    assert windows(window, lambda writer: writer.add_uint32(key, 2)) == ((SLIDING, FULL) * 2, 8)
    pattern = [False, True, True, False]
    assert windows(window, lambda writer: writer.add_array(key, pattern)) == ((FULL, SLIDING, SLIDING, FULL), 8)
    assert windows(window, lambda writer: writer.add_array(key, [False] * 4)) == ((FULL,) * 4, None)


def test_end_ids_are_all_that_end_an_answer(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        lambda writer: writer.add_eos_token_id(5),
        lambda writer: writer.add_eot_token_id(6),
        lambda writer: writer.add_uint32("tokenizer.ggml.eom_token_id", 5),
        lambda writer: writer.add_bos_token_id(0xFFFFFFFF),
    )
    assert (config.eos_token_ids, config.bos_token_id) == ((5, 6), None)
    tokens = ("text",) * 12 + ("[PAD]",) * 4

    def padded(writer: gguf.GGUFWriter) -> None:
        writer.add_token_list(tokens)
        writer.add_token_types([5 if token == "[PAD]" else 1 for token in tokens])

    padding = read(tmp_path, padded, lambda writer: writer.add_eos_token_id(12))
    assert (padding.tokenizer_size, padding.eos_token_ids) == (12, ())  # never drawn, and no request may name it
    path = minimal(tmp_path / "model.gguf", "llama", lambda writer: writer.add_eos_token_id(16))
    assert "tokenizer.ggml.eos_token_id is 16, the vocabulary ends at 16" in refusal(path)


def test_yarn_attention_factor_is_a_multiple_of_the_papers(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.YARN),
        lambda writer: writer.add_rope_scaling_factor(4.0),
        lambda writer: writer.add_rope_scaling_orig_ctx_len(64),
        lambda writer: writer.add_float32("llama.rope.scaling.attn_factor", 0.5),
    )
    assert isinstance(config.rope_scaling, RopeScaling)
    assert config.rope_scaling.attention_factor == pytest.approx(0.5 * (0.1 * np.log(4.0) + 1))
    assert config.max_position == 256


def test_longrope_follows_from_its_tensors_and_needs_both(tmp_path: Path) -> None:
    def factors(*values: float, name: str = "long") -> Setting:
        return lambda writer: writer.add_tensor(f"rope_factors_{name}.weight", np.array(values, dtype=np.float32))

    def original(length: int) -> Setting:
        return lambda writer: writer.add_rope_scaling_orig_ctx_len(length)

    path, long, short = tmp_path / "model.gguf", factors(2, 3, 4, 5), factors(1, 1, 1, 1, name="short")
    scaling = load_model_config(minimal(path, "phi3", original(64), long, short)).rope_scaling
    assert scaling == RopeScaling(
        kind="longrope",
        factor=4.0,
        original_max_position=64,
        short_factors=(1.0,) * 4,
        long_factors=(2.0, 3.0, 4.0, 5.0),
    )
    assert "lacks the tensor rope_factors_short.weight" in refusal(minimal(path, "phi3", original(64), long))
    longrope = gguf.RopeScalingType.LONGROPE
    stated = minimal(path, "llama", lambda writer: writer.add_rope_scaling_type(longrope))
    assert "lacks the tensor rope_factors_short.weight" in refusal(stated)
    too_few = minimal(path, "phi3", original(64), factors(2, 3, 4), short)
    assert "rope_factors_long.weight is F32 [3], must be F32 [4]" in refusal(too_few)
    senseless = minimal(path, "phi3", original(64), factors(2, 3, 0, 5), short)
    assert "rope_factors_long.weight has 0.0" in refusal(senseless)
    assert "must be at least 2" in refusal(minimal(path, "phi3", original(1), long, short))
    linear = gguf.RopeScalingType.LINEAR
    both = minimal(path, "phi3", lambda writer: writer.add_rope_scaling_type(linear), long, short)
    assert "has both linear rotary scaling and rope_factors_short.weight" in refusal(both)


def test_scales_that_granite_leaves_out_are_those_of_llama(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    config = load_model_config(minimal(path, "granite"))
    assert (config.embedding_scale, config.residual_scale, config.logit_scale) == (1.0, 1.0, 1.0)
    assert config.attention_scale is None
    negative = minimal(path, "granite", lambda writer: writer.add_logit_scale(-8.0))
    assert "granite.logit_scale is -8.0, must be a number above 0" in refusal(negative)


def test_missing_path_is_one_line(tmp_path: Path) -> None:
    assert "there is no such file or directory" in refusal(tmp_path / "absent.gguf")
    (tmp_path / "short.gguf").write_bytes(b"GGUF" + struct.pack("<I", 3))
    assert "truncated" in refusal(tmp_path / "short.gguf")
