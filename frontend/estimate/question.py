"""From the flags to the question: which model that is, and what the defaults mean for it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pagewire.checkpoint.estimate.answer import Question
from pagewire.checkpoint.estimate.devices import DeviceSpec, find_device
from pagewire.checkpoint.estimate.served import KVLayout, Served
from pagewire.checkpoint.estimate.shapes import SHAPES, find_shape
from pagewire.checkpoint.estimate.stored_format import stored_bits
from pagewire.checkpoint.estimate.weights import WeightBits, format_bits
from pagewire.checkpoint.loading import load_model_config
from pagewire.checkpoint.model_config import ModelConfig
from pagewire.checkpoint.placement import Placement
from pagewire.checkpoint.resolve import resolve_config
from pagewire.ipc.config import StepLimits
from pagewire.ipc.errors import ConfigError

from .config import EstimateConfig

_CONTEXT, _OUTPUT = 4096, 256


def make_question(model: str, config: EstimateConfig) -> Question:
    """Return the question.

    Args:
        model: a built-in shape, or whatever `pagewire serve` takes; of a hub model only config.json is fetched.
        config: the flags.

    Raises:
        ConfigError: there is no such model or device, or a length is beyond the model's.
    """
    device = None if config.gpu is None else _with_links(find_device(config.gpu), config)
    name, shape = _find_model(model, config.revision)
    context, output_tokens = _lengths(config, shape)
    bits = _bits(config, shape, device)
    served = Served(
        model=shape,
        bits=bits,
        kv=_kv_layout(config, bits),
        limits=StepLimits(max_num_seqs=config.max_num_seqs, max_num_batched_tokens=config.max_num_batched_tokens),
        utilization=config.gpu_memory_utilization,
    )
    return Question(
        name=name,
        served=served,
        device=device,
        placement=Placement(tp=config.tensor_parallel_size, pp=config.pipeline_parallel_size),
        context=context,
        output_tokens=output_tokens,
        num_requests=config.num_requests,
        share=config.efficiency,
    )


def _with_links(device: DeviceSpec, config: EstimateConfig) -> DeviceSpec:
    asked = {
        "link_bandwidth": (config.link_bandwidth, 1e9),
        "link_delay_s": (config.link_delay, 1e-6),
        "machine_bandwidth": (config.machine_bandwidth, 1e9),
        "machine_delay_s": (config.machine_delay, 1e-6),
    }
    given = {field: number * unit for field, (number, unit) in asked.items() if number is not None}
    return msgspec.structs.replace(device, **given)


def _find_model(model: str, revision: str | None) -> tuple[str, ModelConfig]:
    if revision is None and not Path(model).exists():
        found = find_shape(model)
        if found is not None:
            return f"{found[0]} (built-in shape)", found[1]
        if "/" not in model and not model.lower().startswith("smollm2-135m"):
            raise ConfigError(
                f"model {model!r} is neither a file or directory, nor a hub id like org/repo, nor a built-in shape; "
                f"those are {', '.join(SHAPES)}."
            )
    return model, load_model_config(resolve_config(model, revision=revision))


def _lengths(config: EstimateConfig, shape: ModelConfig) -> tuple[int, int]:
    context = config.context_len or min(_CONTEXT, shape.max_position)
    if context > shape.max_position:
        raise ConfigError(f"--context-len {context} is beyond the model's longest, {shape.max_position}.")
    output_tokens = config.output_len or min(_OUTPUT, context // 2)
    if output_tokens >= context:
        raise ConfigError(f"--output-len {output_tokens} leaves no prompt of --context-len {context}.")
    return context, output_tokens


def _bits(config: EstimateConfig, shape: ModelConfig, device: DeviceSpec | None) -> WeightBits:
    bits = stored_bits(shape) if config.weights == "auto" else format_bits(config.weights)
    if device is not None and not device.has_bfloat16 and bits.name == "bfloat16":
        if config.weights == "bfloat16":
            raise ConfigError(f"--weights bfloat16: the matrix units of {device.title} have none; give float16.")
        return format_bits("float16")
    return bits


def _kv_layout(config: EstimateConfig, bits: WeightBits) -> KVLayout:
    if config.kv_cache_dtype == "fp8":
        return KVLayout(name="fp8", bytes_a_value=1)
    if config.kv_cache_dtype != "auto":
        return KVLayout(name=config.kv_cache_dtype, bytes_a_value=2)
    return KVLayout(name="float16" if bits.name == "float16" else "bfloat16", bytes_a_value=2)
