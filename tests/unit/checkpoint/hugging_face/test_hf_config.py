"""config.json in all its spellings becomes one ModelConfig, and what can't be served is refused by key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pagewire.checkpoint.hugging_face.hf_config import read_hf_config
from pagewire.checkpoint.model_config import LayerKind, ModelConfig
from pagewire.ipc.errors import ConfigError
from tests.support.tiny_model import tiny_checkpoint
from tools.tiny_model.hugging_face import config_json
from tools.tiny_model.spec import ARCHITECTURES, FAMILIES, Family, TinyModelSpec

FULL, SLIDING = LayerKind.FULL, LayerKind.SLIDING
ABSENT = object()


def read(directory: Path, family: Family = "llama", **changes: Any) -> ModelConfig:
    """Read a config.json with some keys changed, or left out (ABSENT); there are no other files."""
    config = config_json(TinyModelSpec(family=family, num_layers=4)) | changes
    config = {key: value for key, value in config.items() if value is not ABSENT}
    (directory / "config.json").write_text(json.dumps(config))
    return read_hf_config(directory)


def refusal(directory: Path, family: Family = "llama", **changes: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read(directory, family, **changes)
    assert str(directory) in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.slow  # the import of transformers
@pytest.mark.parametrize("family", FAMILIES)
def test_facts_are_those_that_transformers_reads(family: Family) -> None:
    from transformers import AutoConfig

    directory = tiny_checkpoint(family, dtype="bfloat16", sliding_window=8, tie_word_embeddings=True, rope_theta=5e5)
    ours, reference = read_hf_config(directory), AutoConfig.from_pretrained(directory)
    assert ours.architecture == ARCHITECTURES[family]
    assert ours.vocab_size == reference.vocab_size
    assert ours.hidden_size == reference.hidden_size
    assert ours.intermediate_size == reference.intermediate_size
    assert ours.num_layers == reference.num_hidden_layers
    assert ours.num_heads == reference.num_attention_heads
    assert ours.num_kv_heads == reference.num_key_value_heads
    assert ours.head_dim == ours.rotary_dim == reference.head_dim
    assert ours.rms_norm_eps == reference.rms_norm_eps
    rope = reference.rope_parameters
    assert ours.rope_theta == rope.get("full_attention", rope)["rope_theta"] == 5e5
    assert ours.local_rope_theta == rope.get("sliding_attention", {}).get("rope_theta")
    assert ours.max_position == reference.max_position_embeddings
    assert ours.tie_word_embeddings == reference.tie_word_embeddings
    assert ours.dtype == str(reference.dtype).removeprefix("torch.")
    assert ours.bos_token_id == reference.bos_token_id
    assert ours.eos_token_ids == (reference.eos_token_id,)
    assert ours.qkv_bias == (family == "qwen2")
    assert ours.qk_norm == (family in ("gemma3", "qwen3", "qwen3_moe"))
    layer_types = getattr(reference, "layer_types", None)
    if layer_types is not None:
        assert [f"{kind}_attention" for kind in ours.layer_kinds] == layer_types


def test_unknown_architecture_lists_the_known_ones(tmp_path: Path) -> None:
    message = refusal(tmp_path, architectures=["GPT2LMHeadModel"])
    assert "GPT2LMHeadModel" in message
    assert all(name in message for name in ARCHITECTURES.values())


def test_architecture_follows_from_model_type_where_it_is_not_stated(tmp_path: Path) -> None:
    assert read(tmp_path, "qwen3", architectures=ABSENT).architecture == "Qwen3ForCausalLM"
    assert "lacks the key architectures" in refusal(tmp_path, architectures=ABSENT, model_type="gpt2")


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
    ],
)
def test_missing_or_senseless_key_is_named(tmp_path: Path, key: str) -> None:
    assert f"lacks the key {key}" in refusal(tmp_path, **{key: ABSENT})
    assert f"{key} must be" in refusal(tmp_path, **{key: "many"})
    assert f"{key} must be" in refusal(tmp_path, **{key: 0})


def test_unsupported_values_are_refused(tmp_path: Path) -> None:
    assert "hidden_act is 'gelu'" in refusal(tmp_path, hidden_act="gelu")
    assert "torch_dtype is 'float8'" in refusal(tmp_path, torch_dtype="float8")
    assert "at most 10000 can be" in refusal(tmp_path, num_hidden_layers=1 << 40)
    assert "not a multiple of 3 key-value heads" in refusal(tmp_path, num_key_value_heads=3)
    assert "not a multiple of 4 heads" in refusal(tmp_path, head_dim=ABSENT, hidden_size=66)
    assert "rms_norm_eps must be a number" in refusal(tmp_path, rms_norm_eps=True)


def test_defaults_are_those_of_the_family(tmp_path: Path) -> None:
    assert read(tmp_path, head_dim=ABSENT).head_dim == 16
    assert read(tmp_path, "qwen3", head_dim=ABSENT).head_dim == 128
    assert read(tmp_path, num_key_value_heads=ABSENT).num_kv_heads == 4
    assert read(tmp_path, rms_norm_eps=ABSENT).rms_norm_eps == 1e-6
    assert read(tmp_path, "phi3", rms_norm_eps=ABSENT).rms_norm_eps == 1e-5
    assert read(tmp_path, rope_theta=ABSENT).rope_theta == 10_000.0
    assert read(tmp_path).tokenizer_size == 512  # no tokenizer.json


def test_biases_are_those_that_the_family_has(tmp_path: Path) -> None:
    def biases(family: Family, **changes: Any) -> tuple[bool, bool, bool]:
        config = read(tmp_path, family, **changes)
        return config.qkv_bias, config.output_bias, config.mlp_bias

    assert biases("llama") == (False, False, False)
    assert biases("llama", attention_bias=True, mlp_bias=True) == (True, True, True)
    assert biases("granite", attention_bias=True, mlp_bias=True) == (True, True, True)
    assert biases("phi3", attention_bias=True, mlp_bias=True) == (False, False, False)
    assert biases("mistral", attention_bias=True) == (False, False, False)
    assert biases("qwen2") == (True, False, False)
    assert biases("qwen3", attention_bias=True) == (True, True, False)


def test_multipliers_of_granite_are_read(tmp_path: Path) -> None:
    stated = {"embedding_multiplier": 12, "attention_multiplier": 0.1, "residual_multiplier": 0.3, "logits_scaling": 8}
    config = read(tmp_path, "granite", **stated)
    scalars = (config.embedding_scale, config.attention_scale, config.residual_scale, config.logit_scale)
    assert scalars == (12.0, 0.1, 0.3, 0.125)
    absent = read(tmp_path, "granite", **dict.fromkeys(stated, ABSENT))
    # As transformers has it: attention logits are not scaled by the size of a head then.
    assert (absent.embedding_scale, absent.attention_scale, absent.residual_scale, absent.logit_scale) == (1, 1, 1, 1)
    assert read(tmp_path, "llama", **stated).attention_scale is None
    assert "logits_scaling must be above 0" in refusal(tmp_path, "granite", logits_scaling=0)


def test_scalars_of_gemma_are_read(tmp_path: Path) -> None:
    names = ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "hidden_activation")
    absent = dict.fromkeys(
        (*names, "head_dim", "tie_word_embeddings", "sliding_window", "rope_theta", "layer_types"), ABSENT
    )

    def scalars(family: Family, **changes: Any) -> tuple[float | None, float | None, float | None]:
        config = read(tmp_path, family, **(absent | changes))
        assert config.tie_word_embeddings
        assert (config.norm_weight_offset, config.hidden_act, config.embedding_scale) == (1.0, "gelu_tanh", 8.0)
        assert (config.head_dim, config.sliding_window) == (256, 4096)
        return config.attention_scale, config.attention_soft_cap, config.logit_soft_cap

    assert scalars("gemma2") == (1 / 16, 50.0, 30.0)
    assert scalars("gemma3") == (1 / 16, None, None)
    none = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    assert scalars("gemma2", query_pre_attn_scalar=144, **none) == (1 / 12, None, None)
    assert scalars("gemma3", final_logit_softcapping=20) == (1 / 16, None, 20.0)
    assert "attn_logit_softcapping must be above 0" in refusal(tmp_path, "gemma2", attn_logit_softcapping=0)
    assert "hidden_activation is 'gelu'" in refusal(tmp_path, "gemma2", hidden_activation="gelu")
    assert "use_bidirectional_attention is true" in refusal(tmp_path, "gemma3", use_bidirectional_attention=True)


def test_gemma_3_that_reads_images_is_refused_saying_why(tmp_path: Path) -> None:
    name = "Gemma3ForConditionalGeneration"
    for changes in ({"architectures": [name]}, {"architectures": ABSENT, "model_type": "gemma3"}):
        message = refusal(tmp_path, "gemma3", **changes)
        assert name in message
        assert "images" in message
        assert "Gemma3ForCausalLM" in message


def test_longrope_factors_must_fit_the_rotating_channels(tmp_path: Path) -> None:
    def phi3(num_factors: int) -> dict[str, Any]:
        factors = [1.0] * num_factors
        scaling = {"type": "longrope", "short_factor": factors, "long_factor": factors}
        return {"rope_scaling": scaling, "original_max_position_embeddings": 64, "partial_rotary_factor": 0.75}

    config = read(tmp_path, "phi3", **phi3(6))
    assert (config.rotary_dim, config.head_dim, config.max_position) == (12, 16, 512)
    message = refusal(tmp_path, "phi3", **phi3(8))
    assert "rope_scaling.short_factor has 8 numbers; 12 rotating channels need 6" in message


def test_window_holds_only_on_layers_so_marked(tmp_path: Path) -> None:
    def windows(family: Family, **changes: Any) -> tuple[tuple[LayerKind, ...], int | None]:
        config = read(tmp_path, family, **changes)
        return config.layer_kinds, config.sliding_window

    all_full = ((FULL,) * 4, None)
    mixed = ["full_attention", "sliding_attention"] * 2
    assert windows("mistral", sliding_window=8) == ((SLIDING,) * 4, 8)
    assert windows("mistral", sliding_window=ABSENT) == ((SLIDING,) * 4, 4096)
    assert windows("mistral", sliding_window=None) == all_full
    assert windows("mistral", sliding_window=8, layer_types=["full_attention"] * 4) == all_full
    assert windows("mistral", sliding_window=8, layer_types=mixed) == ((FULL, SLIDING) * 2, 8)
    assert windows("phi3", sliding_window=8) == ((SLIDING,) * 4, 8)
    for absent in (None, ABSENT):
        assert windows("phi3", sliding_window=absent) == all_full
    assert windows("llama", sliding_window=8) == all_full
    gemma = {"sliding_window": 8, "layer_types": ABSENT}
    assert windows("gemma2", **gemma) == ((SLIDING, FULL) * 2, 8)
    assert windows("gemma3", **gemma) == ((SLIDING,) * 4, 8)
    assert windows("gemma3", **gemma, sliding_window_pattern=3) == ((SLIDING, SLIDING, FULL, SLIDING), 8)
    assert windows("gemma3", **gemma, sliding_window_pattern=1) == all_full
    assert windows("gemma3", sliding_window=8, layer_types=mixed) == ((FULL, SLIDING) * 2, 8)
    assert windows("gemma2", sliding_window=None, layer_types=ABSENT) == all_full
    assert windows("granite", sliding_window=8) == all_full
    for family in ("qwen2", "qwen3"):
        on = {"use_sliding_window": True, "sliding_window": 8}
        assert windows(family, **on, max_window_layers=3) == ((FULL, FULL, FULL, SLIDING), 8)
        assert windows(family, **on, max_window_layers=0) == ((SLIDING,) * 4, 8)
        assert windows(family, **on, max_window_layers=ABSENT) == all_full
        assert windows(family, **on, layer_types=mixed) == ((FULL, SLIDING) * 2, 8)
        assert windows(family, **on, layer_types=["full_attention"] * 4) == all_full
        assert windows(family, use_sliding_window=True, sliding_window=None) == all_full
        assert windows(family, use_sliding_window=False, sliding_window=8, max_window_layers=0) == all_full
        assert windows(family, use_sliding_window=ABSENT, sliding_window=8, max_window_layers=0) == all_full
    assert "has 1 entries for 4 layers" in refusal(tmp_path, "qwen2", **on, layer_types=["full_attention"])
    assert "'linear_attention'" in refusal(tmp_path, "qwen2", **on, layer_types=["linear_attention"] * 4)


def test_dtype_comes_from_the_weights_where_the_configuration_is_silent(tmp_path: Path) -> None:
    source = tiny_checkpoint("llama", dtype="float16")
    (tmp_path / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    assert read(tmp_path, torch_dtype=ABSENT).dtype == "float16"
    assert read(tmp_path, torch_dtype=ABSENT, dtype="bfloat16").dtype == "bfloat16"
    assert read(tmp_path, torch_dtype="torch.float32").dtype == "float32"


def test_end_ids_of_all_sources_are_merged_in_order(tmp_path: Path) -> None:
    assert read(tmp_path, eos_token_id=None).eos_token_ids == ()
    assert read(tmp_path, eos_token_id=[7, 8]).eos_token_ids == (7, 8)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [8, 9]}))
    assert read(tmp_path, eos_token_id=7).eos_token_ids == (7, 8, 9)
    source = tiny_checkpoint("llama")
    for name in ("tokenizer.json", "tokenizer_config.json"):  # eos_token is <|im_end|>, id 2
        (tmp_path / name).write_bytes((source / name).read_bytes())
    assert read(tmp_path, eos_token_id=7).eos_token_ids == (7, 8, 9, 2)
    assert "eos_token_id must be a token id" in refusal(tmp_path, eos_token_id="</s>")


def test_end_id_that_can_not_be_drawn_is_left_out(tmp_path: Path) -> None:
    """A cut vocabulary under the full one's ids: every request names the end ids, and would be refused."""
    assert read(tmp_path, vocab_size=512, eos_token_id=[7, 511, 512, 151645]).eos_token_ids == (7, 511)


def test_tokenizer_size_counts_added_tokens_and_ends_at_the_embedding(tmp_path: Path) -> None:
    tokenizer: dict[str, Any] = {"model": {"vocab": {"a": 0, "b": 1}}, "added_tokens": [{"id": 9, "content": "<x>"}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert read(tmp_path).tokenizer_size == 10
    assert read(tmp_path, vocab_size=5).tokenizer_size == 5
    tokenizer["model"] = {"type": "Unigram", "vocab": [["a", -1.0]] * 20}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert read(tmp_path).tokenizer_size == 20
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "is not a tokenizer file" in refusal(tmp_path)


def test_quantization_is_read_by_its_method(tmp_path: Path) -> None:
    assert read(tmp_path).quantization is None
    stated = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}
    for key in ("quantization_config", "compression_config"):
        quantization = read(tmp_path, **{key: stated}).quantization
        assert quantization is not None
        assert quantization.method == "gptq"
        assert quantization.scheme_of("model.layers.0.mlp.down_proj") == quantization.default
    assert "quant_method is 'quip'; readable are" in refusal(tmp_path, quantization_config={"quant_method": "quip"})
    assert "lacks the key quantization_config.quant_method" in refusal(tmp_path, quantization_config={"bits": 4})


def test_unreadable_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: can't be read"):
        read_hf_config(tmp_path)
    for content, message in (
        (b"{", "is not valid JSON"),
        (b"[]", "holds no JSON object"),
        (b'"\xff"', "not valid JSON"),
    ):
        (tmp_path / "config.json").write_bytes(content)
        with pytest.raises(ConfigError, match=message):
            read_hf_config(tmp_path)
