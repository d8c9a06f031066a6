"""The scales that a checkpoint holds for an 8-bit KV cache are the ones that its cache works with."""

from __future__ import annotations

import functools
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.models.llama.modeling_llama import eager_attention_forward

from pagewire.checkpoint.loading import load_model_config
from pagewire.gpu_executor.host_limits import HostLimits
from pagewire.gpu_executor.kernels.cpu.cpu_ops import CpuOps
from pagewire.gpu_executor.kernels.cpu.native_library import LibraryMissing
from pagewire.gpu_executor.kv_scales import KVScales, choose_scales
from pagewire.gpu_executor.loading import LoadedExecutor, StartupClock, load_executor
from pagewire.ipc.config import CacheConfig, EngineConfig, ModelOptions
from pagewire.ipc.errors import ConfigError
from pagewire.ipc.sampling_params import Sampling
from pagewire.ipc.steps import LoadModel
from tests.support.runner import Row, RunnerDriver
from tests.support.tiny_model import tiny_checkpoint

NUM_LAYERS = 2
# Of the largest log-probability. Measured: 1.3e-7, and 0.04 or more where one of the scales is not used.
MAX_ERROR = 1e-5
PROMPT = torch.randint(0, 500, (40,), generator=torch.Generator().manual_seed(1)).tolist()


def with_scales(tmp_path: Path, scales: Mapping[str, torch.Tensor], layers: range = range(NUM_LAYERS)) -> Path:
    """Return a tiny checkpoint whose layers have some scales beside their weights."""
    directory = Path(shutil.copytree(tiny_checkpoint("llama"), tmp_path / "model"))
    tensors = load_file(directory / "model.safetensors")
    for layer in layers:
        tensors |= {f"model.layers.{layer}.self_attn.{name}": scale.clone() for name, scale in scales.items()}
    save_file(tensors, directory / "model.safetensors")
    return directory


def load(path: Path, kv_cache_dtype: str = "fp8", kernels: str = "reference") -> LoadedExecutor:
    config = EngineConfig(
        model=ModelOptions(model_path=str(path), device="cpu", kernels=kernels, max_model_len=64),  # type: ignore[arg-type]
        cache=CacheConfig(kv_cache_dtype=kv_cache_dtype, num_gpu_blocks_override=8),  # type: ignore[arg-type]
    )
    return load_executor(LoadModel(executor_epoch=1, config=config), HostLimits(), StartupClock())


def scales_of(path: Path, kv_cache_dtype: str = "fp8") -> list[tuple[float, float]]:
    layers = load(path, kv_cache_dtype).runner.kv_cache.layers
    return [(layer.key_scale, layer.value_scale) for layer in layers]


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ({"k_scale": 0.5, "v_scale": 0.25}, (0.5, 0.25)),
        ({"k_scale": 0.5}, (0.5, 0.5)),
        ({"v_scale": 0.25}, (0.25, 0.25)),
        ({"k_proj.k_scale": 0.5, "v_proj.v_scale": 0.25}, (0.5, 0.25)),
        ({"k_proj.output_scale": 0.5, "v_proj.output_scale": 0.25}, (0.5, 0.25)),
        ({"attn.v_scale": 0.25}, (0.25, 0.25)),
        ({"kv_scale": 2.0}, (2.0, 2.0)),
        ({}, (1.0, 1.0)),
    ],
)
def test_an_8_bit_cache_has_the_scales_of_the_checkpoint(
    tmp_path: Path, stored: dict[str, float], expected: tuple[float, float], shape: tuple[int, ...]
) -> None:
    path = with_scales(tmp_path, {name: torch.full(shape, value) for name, value in stored.items()})
    assert scales_of(path) == [expected] * NUM_LAYERS


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scales_may_be_stored_in_16_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    path = with_scales(tmp_path, {"k_scale": torch.tensor(0.5, dtype=dtype)})
    assert scales_of(path) == [(0.5, 0.5)] * NUM_LAYERS


def test_a_wider_cache_needs_no_scales_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = with_scales(tmp_path, {"k_scale": torch.tensor(0.5)})
    with caplog.at_level(logging.INFO):
        assert scales_of(path, "float16") == [(1.0, 1.0)] * NUM_LAYERS
    assert "are not needed: they are kept in float16" in caplog.text


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_unusable_scale_is_refused_with_its_name_and_value(tmp_path: Path, value: float) -> None:
    path = with_scales(tmp_path, {"attn.v_scale": torch.tensor(value)}, range(1, 2))
    with pytest.raises(ConfigError, match=rf"layers\.1\.self_attn\.attn\.v_scale.*is {value}"):
        load(path, "float16")


@pytest.mark.parametrize("name", ["q_scale", "k_zero_point", "k_proj.v_scale", "q_proj.output_scale"])
def test_leftover_scale_is_refused_by_name(tmp_path: Path, name: str) -> None:
    path = with_scales(tmp_path, {"k_scale": torch.tensor(0.5), name: torch.tensor(0.5)})
    with pytest.raises(ConfigError, match=f"self_attn.{name}.*no such tensor"):
        load(path)


def test_scales_of_some_layers_only_are_refused_where_they_are_needed(tmp_path: Path) -> None:
    path = with_scales(tmp_path, {"k_scale": torch.tensor(0.5)}, range(1))
    with pytest.raises(ConfigError, match=r"lacks model\.layers\.1\.self_attn\.k_scale"):
        load(path)
    assert scales_of(path, "float16") == [(1.0, 1.0)] * NUM_LAYERS


def test_layers_keep_their_own_scales() -> None:
    stored = [KVScales(0.5, 0.25), KVScales(2.0, 1.0)]
    assert choose_scales(stored, torch.float8_e5m2, "here") == stored


def test_dummy_weights_have_no_scales() -> None:
    config = EngineConfig(
        model=ModelOptions(
            model_path=str(tiny_checkpoint()), device="cpu", kernels="reference", max_model_len=64, load_format="dummy"
        ),
        cache=CacheConfig(kv_cache_dtype="fp8", num_gpu_blocks_override=8),
    )
    loaded = load_executor(LoadModel(executor_epoch=1, config=config), HostLimits(), StartupClock())
    assert {layer.key_scale for layer in loaded.runner.kv_cache.layers} == {1.0}


@pytest.mark.parametrize("kernels", ["reference", "cpu"])
@pytest.mark.parametrize(("kv_cache_dtype", "dtype"), [("fp8", torch.float8_e4m3fn), ("fp8_e5m2", torch.float8_e5m2)])
def test_answers_are_those_of_keys_and_values_rounded_at_their_scales(
    tmp_path: Path, kv_cache_dtype: str, dtype: torch.dtype, kernels: str
) -> None:
    if kernels == "cpu":
        try:
            CpuOps(num_threads=1)
        except LibraryMissing as exc:
            pytest.skip(str(exc))
    # So small that large keys and values are cut off at the largest number of the cache: scales of 1 would show.
    scales = KVScales(0.002, 0.0005) if dtype == torch.float8_e4m3fn else KVScales(2e-5, 1e-5)
    path = with_scales(tmp_path, {"k_scale": torch.tensor(scales.key), "v_scale": torch.tensor(scales.value)})
    row = Row(1, PROMPT, Sampling(temperature=0.0, num_logprobs=20), [1, 2, 3])
    RunnerDriver(load(path, kv_cache_dtype, kernels).runner).run([row], num_tokens=1)
    (drawn,) = row.results[-1].logprobs
    ours = dict(zip(drawn.top_token_ids, drawn.top_logprobs, strict=True))
    assert relative_difference(ours, reference_logprobs(dtype, scales)) < MAX_ERROR
    for wrong in (scales._replace(key=1.0), scales._replace(value=1.0)):
        assert relative_difference(ours, reference_logprobs(dtype, wrong)) > 1000 * MAX_ERROR


def relative_difference(ours: dict[int, float], expected: torch.Tensor) -> float:
    largest = float(expected.abs().max())
    return max(abs(logprob - float(expected[token_id])) for token_id, logprob in ours.items()) / largest


def reference_logprobs(dtype: torch.dtype, scales: KVScales) -> torch.Tensor:
    """Return what `transformers` answers in float64 where attention reads rounded keys and values."""
    AttentionInterface.register("rounded_kv", functools.partial(rounded_attention, dtype, scales))
    model = AutoModelForCausalLM.from_pretrained(
        tiny_checkpoint("llama"), dtype=torch.float64, attn_implementation="rounded_kv"
    )
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([PROMPT])).logits[0, -1]
    num_drawable = load_model_config(tiny_checkpoint("llama")).tokenizer_size
    return logits[:num_drawable].log_softmax(dim=0)


def rounded_attention(
    dtype: torch.dtype, scales: KVScales, module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any
) -> Any:
    key, value = rounded(key, scales.key, dtype), rounded(value, scales.value, dtype)
    num_tokens = query.shape[2]
    causal = torch.full((num_tokens, num_tokens), -torch.inf, dtype=query.dtype).triu(1)[None, None]
    return eager_attention_forward(module, query, key, value, causal, **options)


def rounded(values: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    largest = torch.finfo(dtype).max
    return (values / scale).clamp(-largest, largest).float().to(dtype).double() * scale
