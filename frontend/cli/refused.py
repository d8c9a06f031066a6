"""Flags that users of vLLM know and this engine does not take, each with what to tell them.

A flag that is silently ignored costs its user an afternoon, and "unknown flag" reads like a typing error. So each
has its line here, until a version builds it and it becomes a field of `pagewire.ipc.config`. Those that would change
nothing are taken instead (`needless.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from . import needless
from .needless import Needless
from .refused_families import family_reason


class RefusedFlags(NamedTuple):
    """Flags without their dashes that a command does not have, but whose users it knows.

    Attributes:
        not_yet: refused; to why there is no such flag.
        renamed: refused; to the flag that is meant.
        needless: taken, with a line that says why they have no meaning here.
        redundant: to the values with which they ask for what the command does anyway. With such a value a flag is
            taken, and with any other refused. The key of a JSON flag is `flag.key`.
    """

    not_yet: Mapping[str, str]
    renamed: Mapping[str, str] = {}
    needless: Mapping[str, Needless] = {}
    redundant: Mapping[str, Sequence[str]] = {}


# Flag without dashes -> what it would do. These are to come.
_NOT_YET: Mapping[str, str] = {
    flag: what
    for flags, what in (
        ("tokenizer tokenizer-mode tokenizer-revision skip-tokenizer-init", "the tokenizer is the model's own"),
        ("hf-overrides hf-config-path config-format", "the model's config is taken as it is"),
        ("hf-token", "set HF_TOKEN in the environment"),
        ("model-loader-extra-config model-impl", "the format of the weights is found by looking"),
        ("runner convert task", "one engine generates text and embeds; it does not classify, score or rank"),
        ("logprobs-mode", "logprobs are those of the unfiltered distribution"),
        ("data-parallel-rank data-parallel-address data-parallel-rpc-port", "--data-parallel-size starts all engines"),
        ("headless", "--node-rank tells a host that serves from one that only computes"),
        ("tool-parser-plugin reasoning-parser-plugin", "no code of others runs in the server"),
        ("tool-server", "tools are run by who asked for them"),
        ("structured-outputs-config", "of its keys, backend alone is known"),
        ("limit-mm-per-prompt mm-processor-kwargs mm-encoder-tp-mode allowed-local-media-path interleave-mm-strings",
         "images, audio and video"),
        ("cpu-offload-gb kv-offloading-size kv-offloading-backend kv-transfer-config kv-events-config",
         "KV blocks and weights stay on the device"),
        ("logits-processors logits-processor-pattern",
         "no code of others runs in the engine; requests may bring logit_bias, bad_words and allowed_token_ids"),
        ("worker-cls worker-extension-cls scheduler-cls", "no code of others runs in the engine"),
        ("calculate-kv-scales", "scales of 8-bit keys and values are the checkpoint's, and 1 where it has none"),
        ("middleware", "no code of others runs in the server; put a reverse proxy in front"),
        ("enable-ssl-refresh", "start the server again when its certificate changes"),
        ("collect-detailed-traces", "traces have queue, prefill and decode (--otlp-traces-endpoint)"),
        ("kv-cache-metrics kv-cache-metrics-sample cudagraph-metrics enable-mfu-metrics enable-log-outputs",
         "/metrics and --profile-steps show what the engine does"),
        ("enable-per-request-metrics", "/metrics has the times of all requests together"),
        ("tokens-only", "`pagewire engine` serves token ids, to EngineClient"),
        ("h11-max-incomplete-event-size h11-max-header-count", "heads and bodies are limited as they are"),
        ("enable-dbo dbo-decode-token-threshold dbo-prefill-token-threshold", "a step is one batch"),
        ("enable-eplb num-redundant-experts eplb-config", "experts stay where they were loaded"),
        ("speculative-draft-tensor-parallel-size", "the draft model is split as the model is"),
        ("disable-sliding-window", "a model's windows are kept: answers would change"),
        ("lora-extra-vocab-size long-lora-scaling-factors", "adapters change weights, and add no tokens"),
        ("max-num-partial-prefills max-long-partial-prefills stream-interval watermark",
         "the scheduler shares steps by --max-num-batched-tokens and --max-num-seqs"),
    )
    for flag in flags.split()
}  # fmt: skip

# Flag -> the flag that is meant: llama.cpp's, SGLang's, those of Text Generation Inference and a few of vLLM's.
_RENAMED: Mapping[str, str] = {
    **dict.fromkeys(("ngl", "gpu-layers", "n-gpu-layers"), "all layers are on the device that --device names"),
    **dict.fromkeys(("c", "ctx-size", "context-length"), "use --max-model-len"),
    **dict.fromkeys(("np", "parallel", "max-running-requests"), "use --max-num-seqs"),
    **dict.fromkeys(("t", "threads"), "use --cpu-threads"),
    "model-path": "use --model",
    "tp-size": "use --tensor-parallel-size",
    "pp-size": "use --pipeline-parallel-size",
    "dp-size": "use --data-parallel-size",
    "mem-fraction-static": "use --gpu-memory-utilization",
    "chunked-prefill-size": "use --max-num-batched-tokens",
    "schedule-policy": "use --scheduling-policy",
    "disable-radix-cache": "use --no-enable-prefix-caching",
    "random-seed": "use --seed",
    "dist-init-addr": "use --master-addr and --master-port",
    "num-shard": "use --tensor-parallel-size",
    **dict.fromkeys(("max-input-length", "max-input-tokens", "max-total-tokens"), "use --max-model-len"),
    "max-batch-prefill-tokens": "use --max-num-batched-tokens",
    "max-concurrent-requests": "use --max-num-seqs, and --max-waiting-requests for those that wait",
    "hostname": "use --host",
    **dict.fromkeys(("cache-type-k", "cache-type-v"), "use --kv-cache-dtype"),
    "cpu-kvcache-space-bytes": "use --kv-cache-memory-bytes",
}

_REDUNDANT: Mapping[str, Sequence[str]] = {
    "task": ("generate", "auto", "embed", "embedding"),
    "runner": ("generate", "auto"),
    "convert": ("none", "auto", "embed"),
    "model-impl": ("auto", "vllm"),
    "tokenizer-mode": ("auto", "hf"),
    "config-format": ("auto", "hf"),
    "logprobs-mode": ("raw_logprobs",),
    "cpu-offload-gb": ("0", "0.0"),
    "kv-offloading-size": ("0", "0.0"),
    "watermark": ("0", "0.0"),
    "stream-interval": ("1",),
    "max-num-partial-prefills": ("1",),
    "max-long-partial-prefills": ("1",),
    # Any of these backends constrains answers to the same language.
    "structured-outputs-config.backend": ("auto", "guidance", "llguidance", "xgrammar", "outlines",
                                          "lm-format-enforcer"),
}  # fmt: skip

SERVING = RefusedFlags(_NOT_YET, _RENAMED, needless.OF_SERVING, _REDUNDANT)

BENCH_SERVE = RefusedFlags(
    not_yet={
        flag: what
        for flags, what in (
            ("plot-timeline plot-dataset-stats timeline-itl-thresholds", "it draws sweeps only (--plot)"),
            ("ramp-up-strategy ramp-up-start-rps ramp-up-end-rps", "the rate is the same throughout"),
            ("random-prefix-len", "use --dataset-name prefix_repetition"),
            ("input-len output-len", "use the flags of the dataset, like --random-input-len"),
            ("custom-output-len hf-name hf-split hf-subset hf-output-len no-stream spec-bench-output-len",
             "the datasets are random, sharegpt and prefix_repetition"),
            ("top-p top-k min-p frequency-penalty presence-penalty repetition-penalty logprobs use-beam-search n",
             "requests bring a temperature and nothing else for sampling"),
            ("header extra-body", "requests bring the fields of the benchmark only"),
            ("label metadata append-result request-id-prefix", "a result is one file of the run's own figures"),
            ("ready-check-timeout-sec", "it sends one test request, and waits for no server to start"),
            ("insecure", "certificates are always checked"),
            ("profile", "it starts no profile on the server"),
            ("lora-modules", "LoRA adapters"),
        )
        for flag in flags.split()
    },
    renamed={"served-model-name": "--model is the name to ask for", "endpoint-type": "use --backend"},
    needless=needless.OF_BENCH_SERVE,
)  # fmt: skip

BENCH_OFFLINE = RefusedFlags(
    not_yet={
        **_NOT_YET,
        "n": "one answer a request",
        "use-beam-search": "beam search",
        "profile": "see --profile-steps of `pagewire serve`",
        "lora-path": "LoRA adapters",
        "hf-subset": "the datasets are random, sharegpt and prefix_repetition",
        "hf-split": "the datasets are random, sharegpt and prefix_repetition",
        "prefix-len": "use --dataset-name prefix_repetition",
        "random-prefix-len": "use --dataset-name prefix_repetition",
    },
    renamed={**_RENAMED, "dataset": "use --dataset-name and --dataset-path"},
    needless=needless.OF_BENCH_OFFLINE,
    redundant=_REDUNDANT,
)

_COMMANDS_NOT_YET = ("launch",)

# Command -> what does that here: other engines' names, and those of other tools.
_COMMANDS_RENAMED: Mapping[str, str] = {
    "run": "pagewire chat",
    "generate": "pagewire complete",
    "ps": "pagewire top",
    **dict.fromkeys(("list", "ls"), "pagewire models list"),
    **dict.fromkeys(("pull", "download"), "pagewire models pull"),
    **dict.fromkeys(("rm", "remove"), "pagewire models rm"),
    **dict.fromkeys(("show", "info"), "pagewire models show"),
    **dict.fromkeys(("start", "launch-server"), "pagewire serve"),
    "help": "pagewire --help",
    "version": "pagewire --version",
}
_MODELS_COMMANDS_RENAMED: Mapping[str, str] = {
    "ls": "pagewire models list",
    **dict.fromkeys(("download", "get", "add"), "pagewire models pull"),
    **dict.fromkeys(("remove", "delete"), "pagewire models rm"),
    **dict.fromkeys(("info", "inspect"), "pagewire models show"),
}

_BENCH_COMMANDS_NOT_YET = ("sweep", "mm-processor")

# Field -> word -> what to say of it; see Choice.
REFUSED_CHOICES: Mapping[str, Mapping[str, str]] = {
    "quantization": dict.fromkeys(
        ("bitsandbytes", "modelopt", "modelopt_fp4", "quark", "torchao", "mxfp4", "nvfp4", "experts_int8", "fp_quant",
         "fbgemm_fp8", "ptpc_fp8", "aqlm", "hqq", "marlin", "deepspeedfp", "ipex", "inc", "rtn", "moe_wna16",
         "fp8_per_tensor", "fp8_per_block", "int8_per_channel_weight_only"),
        "there is no reader for it",
    ),
    "kv_cache_dtype": dict.fromkeys(("fp8_inc", "fp8_ds_mla", "int8", "nvfp4"), "8-bit KV is fp8, e4m3 or e5m2"),
    "device": dict.fromkeys(("xpu", "mps", "tpu", "hpu"), "it computes on CPUs and on GPUs of NVIDIA and AMD"),
    "load_format": dict.fromkeys(
        ("pt", "npcache", "mistral", "bitsandbytes", "tensorizer", "sharded_state"),
        "weights are safetensors or GGUF, and which they are is found by looking",
    ),
    "attention_backend": dict.fromkeys(
        ("torch_sdpa", "flex_attention", "flashattn_mla", "flashinfer_mla", "flashmla", "cutlass_mla", "triton_mla",
         "rocm_attn", "rocm_aiter_fa", "rocm_aiter_unified_attn", "xformers", "tree_attn"),
        "triton serves every device",
    ),
    "backend": dict.fromkeys(
        ("sglang", "tgi", "tensorrt-llm", "lmdeploy", "llama.cpp", "deepspeed-mii", "scalellm"),
        "openai is for any server with OpenAI's API",
    )
    | dict.fromkeys(("openai-audio", "openai-embeddings", "vllm-rerank"), "it measures streams of text"),
    "to": dict.fromkeys(("awq", "smoothquant"), "no channels are rescaled (int4 --calibrate takes samples of text)")
    | dict.fromkeys(("int2", "int3", "int5", "int6", "nf4", "nvfp4", "mxfp4", "fp4"), "there is no layout for it"),
    "speculative_method": dict.fromkeys(
        ("eagle", "eagle3", "medusa", "mlp_speculator", "mtp", "deepseek_mtp", "mimo_mtp", "glm4_moe_mtp", "ernie_mtp",
         "qwen3_next_mtp", "longcat_flash_mtp", "pangu_ultra_moe_mtp", "nextn", "dflash"),
        "it needs heads that are trained for one model",
    )
    | {"ngram_gpu": "lookup in text takes the CPU no time beside a step; use ngram",
       "custom_class": "no code of others runs in the engine"},
    "tool_call_parser": dict.fromkeys(
        ("qwen3_coder", "qwen3_xml", "deepseek_v3", "deepseek_v31", "deepseek_v32", "glm45", "glm47", "granite",
         "granite4", "internlm", "jamba", "kimi_k2", "minimax", "minimax_m2", "openai", "olmo3", "phi4_mini_json",
         "seed_oss", "step3", "xlam", "hunyuan_a13b", "ernie45", "longcat", "gigachat3", "functiongemma"),
        "its calls are not read (yet)",
    ),
    "reasoning_parser": dict.fromkeys(
        ("granite", "hunyuan_a13b", "mistral", "minimax_m2", "openai_gptoss", "olmo3", "seed_oss", "step3", "ernie45",
         "gptoss", "cohere_command3", "kimi_k2", "identity"),
        "its marks are not read (yet)",
    ),
    "dataset_name": dict.fromkeys(
        ("burstgpt", "hf", "custom", "sonnet", "spec_bench", "random-mm", "random-rerank", "custom_mm"),
        "there is no reader for it",
    ),
}  # fmt: skip

# Field -> other spelling -> the word that the config has.
CHOICE_ALIASES: Mapping[str, Mapping[str, str]] = {
    "dtype": {"half": "float16", "float": "float32", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"},
    "kv_cache_dtype": {"half": "float16", "float": "float32", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"},
    "device": {"gpu": "cuda", "rocm": "cuda", "hip": "cuda"},
    "attention_backend": {"triton_attn": "triton", "flash-attn": "flash_attn"},
    "quantization": {
        **dict.fromkeys(("awq_marlin", "awq_triton"), "awq"),
        **dict.fromkeys(("gptq_marlin", "gptq_marlin_24", "gptq_bitblas", "exllama"), "gptq"),
        "compressed_tensors": "compressed-tensors",
    },
    "load_format": dict.fromkeys(
        ("safetensors", "hf", "gguf", "fastsafetensors", "runai_streamer", "runai_streamer_sharded"), "auto"
    ),
    "distributed_executor_backend": {"uni": "mp"},
    "speculative_method": {"[ngram]": "ngram", "draft-model": "draft_model", "draft": "draft_model"},
    "log_level": {"warn": "warning"},
    "tool_call_parser": {
        "qwen": "hermes",
        "qwen2": "hermes",
        "qwen3": "hermes",
        "llama": "llama3_json",
        "llama3": "llama3_json",
        "llama4_json": "llama3_json",
        "llama4_pythonic": "pythonic",
    },
    "reasoning_parser": {"deepseek-r1": "deepseek_r1", "deepseek_v3": "qwen3", "glm45": "qwen3", "holo2": "qwen3"},
    "to": {"w4a16": "int4", "w8a16": "int8", "4bit": "int4", "8bit": "int8", "fp8_e4m3": "fp8"},
    "dataset_name": dict.fromkeys(("shared-prefix", "shared_prefix", "prefix-repetition"), "prefix_repetition"),
}

_KERNELS_BY_DEVICE = "the device's own kernels compute the format"
# Field -> alias that says more than its word does -> why that is left out.
ALIAS_NOTES: Mapping[str, Mapping[str, str]] = {
    "quantization": dict.fromkeys(
        ("awq_marlin", "awq_triton", "gptq_marlin", "gptq_marlin_24", "gptq_bitblas", "exllama"), _KERNELS_BY_DEVICE
    ),
    "load_format": dict.fromkeys(
        CHOICE_ALIASES["load_format"], "the format of the weights is found by looking, and they are read in order"
    ),
    "distributed_executor_backend": {"uni": "an executor is always a process of its own"},
}


def explain_unknown_flag(
    flag: str, known: Iterable[str], elsewhere: Mapping[str, str], refused: RefusedFlags = SERVING
) -> str:
    """Return one line on a flag that the command does not have.

    Args:
        flag: as it was typed, with its dashes; underscores count as dashes.
        known: the command's own flags, for a guess at what was meant.
        elsewhere: flags of other commands, to the command that has them.
        refused: what the command does not take.
    """
    dashed = flag.partition("=")[0].replace("_", "-")
    name = dashed.lstrip("-").partition(".")[0]  # --compilation-config.level is a part of --compilation-config
    shown = dashed if dashed.startswith("-") else f"--{dashed}"
    for candidate in (name, name.removeprefix("no-")):
        if candidate in refused.renamed:
            return f"{shown} is not taken: {refused.renamed[candidate]}."
        if candidate in refused.not_yet:
            return f"{shown} is not supported yet: {refused.not_yet[candidate]}."
        if f"--{candidate}" in elsewhere:
            return f"{shown} is a flag of `{elsewhere[f'--{candidate}']}`."
    reason = family_reason(name) if refused is SERVING else None
    if reason is not None:
        return f"{shown} is not supported: {reason}."
    return f"unknown flag {shown}{_guess(shown, known)}"


def explain_unknown_command(name: str, known: Iterable[str]) -> str:
    """Return one line on a command that there is not."""
    return _explain_command(name, known, _COMMANDS_NOT_YET, "", _COMMANDS_RENAMED)


def explain_unknown_benchmark(name: str, known: Iterable[str]) -> str:
    """Return one line on a command of `pagewire bench` that there is not."""
    return _explain_command(name, known, _BENCH_COMMANDS_NOT_YET, "bench ")


def explain_unknown_keys_command(name: str, known: Iterable[str]) -> str:
    """Return one line on a command of `pagewire keys` that there is not."""
    return _explain_command(name, known, (), "keys ")


def explain_unknown_models_command(name: str, known: Iterable[str]) -> str:
    """Return one line on a command of `pagewire models` that there is not."""
    return _explain_command(name, known, (), "models ", _MODELS_COMMANDS_RENAMED)


def _explain_command(
    name: str, known: Iterable[str], not_yet: Iterable[str], group: str, renamed: Mapping[str, str] | None = None
) -> str:
    dashed = name.lower().replace("_", "-")
    if dashed in not_yet:
        return f"the command {group}{name} is not supported yet."
    if renamed and dashed in renamed:
        return f"unknown command {name!r}; that is `{renamed[dashed]}` here."
    names = list(known)
    guess = _guess(name, names)
    return f"unknown command {name!r}{guess}" + ("" if guess != "." else f" There are: {', '.join(sorted(names))}.")


def _guess(word: str, known: Iterable[str]) -> str:
    matches = get_close_matches(word, list(known), n=1)
    return f"; did you mean {matches[0]}?" if matches else "."
