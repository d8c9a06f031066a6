"""What follows from configuration, model and a loaded executor: bounds of requests, and what clients are told."""

from __future__ import annotations

from pagewire.checkpoint.model_config import ModelConfig
from pagewire.ipc.config import EngineConfig, StepLimits
from pagewire.ipc.outputs import EngineInfo
from pagewire.ipc.steps import ExecutorReady
from pagewire.ipc.validation import RequestLimits

from ..kv.sizing import fit_max_model_len


def request_limits(config: EngineConfig, model: ModelConfig, step_limits: StepLimits, num_blocks: int) -> RequestLimits:
    """Return the bounds of a valid request.

    Args:
        config: as the engine was started.
        model: what is served.
        step_limits: of the executors' device.
        num_blocks: of the pool, which any one request has to fit.

    Raises:
        StartError: the pool does not hold what the configuration promises.
    """
    return RequestLimits(
        max_model_len=fit_max_model_len(
            config.model.max_model_len, model.max_position, num_blocks, config.cache.block_size
        ),
        vocab_size=model.tokenizer_size,
        max_logprobs=config.model.max_logprobs,
        has_priorities=config.scheduler.scheduling_policy == "priority",
        max_num_seqs=step_limits.max_num_seqs,
    )


def engine_info(
    config: EngineConfig,
    model: ModelConfig,
    step_limits: StepLimits,
    limits: RequestLimits,
    executor: ExecutorReady,
    loading_s: float,
) -> EngineInfo:
    """Return what a client must know of the engine.

    Args:
        config: as the engine was started.
        model: what is served.
        step_limits: of the executors' device.
        limits: of the engine's requests.
        executor: the first one's answer to `LoadModel`.
        loading_s: seconds from the core's start until that answer.
    """
    process_s = loading_s - sum(seconds for _, seconds in executor.startup)
    return EngineInfo(
        model=config.model.model,
        model_path=config.model.model_path,
        served_model_names=config.model.served_model_name or (config.model.model,),
        max_model_len=limits.max_model_len,
        vocab_size=model.tokenizer_size,
        eos_token_ids=model.eos_token_ids,
        bos_token_id=model.bos_token_id,
        max_logprobs=config.model.max_logprobs,
        block_size=config.cache.block_size,
        num_blocks=executor.num_blocks,
        device=executor.device,
        dtype=executor.dtype,
        kv_cache_dtype=executor.kv_cache_dtype,
        scheduling_policy=config.scheduler.scheduling_policy,
        max_num_seqs=step_limits.max_num_seqs,
        max_num_batched_tokens=step_limits.max_num_batched_tokens,
        enable_prefix_caching=config.cache.enable_prefix_caching,
        seed=config.model.seed,
        startup=(("start executor process", max(process_s, 0.0)), *executor.startup),
        memory=executor.memory,
        device_name=executor.device_name,
        tensor_parallel_size=config.parallel.tensor_parallel_size,
        pipeline_parallel_size=config.parallel.pipeline_parallel_size,
        data_parallel_size=config.parallel.data_parallel_size,
        data_parallel_rank=config.parallel.data_parallel_rank,
        speculative_method=config.speculative.method or "",
        num_speculative_tokens=config.speculative.num_tokens,
        has_adapters=config.lora.enable_lora,
        max_loras=config.lora.max_loras if config.lora.enable_lora else 0,
        gpu_memory_utilization=config.cache.gpu_memory_utilization,
    )
