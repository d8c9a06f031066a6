"""Flags of vLLM for what this engine does not do at all, by the beginnings of their names."""

from __future__ import annotations

from collections.abc import Mapping

_TEXT_ONLY = "prompts are text"
_NO_STATE_MODELS = "models with states instead of attention are not served"
_ONE_SERVER = "--data-parallel-size starts all engines behind one server"
_ON_DEVICE = "KV blocks and weights stay on the device"
_NO_OWN_CODE = "no code of others runs in the engine"

_SWITCHED = ("enable-", "disable-", "no-")

# Beginning of a name, without dashes and without "enable-", "disable-" or "no-" -> why there is no such flag.
FAMILIES: Mapping[str, str] = {
    **dict.fromkeys(("mm-", "video-", "media-io-", "tower-", "default-mm-", "ec-", "trust-request-mm-",
                     "allowed-media-", "chunked-mm-", "skip-mm-"), _TEXT_ONLY),
    **dict.fromkeys(("mamba-", "replayssm-", "use-replayssm", "gdn-", "kda-", "ssm-conv-"), _NO_STATE_MODELS),
    **dict.fromkeys(("data-parallel-", "dp-", "dpn", "dpr", "dpl", "dpa", "dpp", "dpb", "dph", "dpe", "dpm"),
                    _ONE_SERVER),
    **dict.fromkeys(("offload-", "cpu-offload-", "kv-offloading-", "kv-transfer-", "kv-sharing-", "weight-transfer-"),
                    _ON_DEVICE),
    **dict.fromkeys(("dcp-", "dcp", "cp-", "pcp", "decode-context-", "prefill-context-"),
                    "a context is not divided between devices"),
    **dict.fromkeys(("elastic-ep", "ep-weight-", "all2all-", "expert-placement-", "eplb"),
                    "experts stay where they were loaded"),
    **dict.fromkeys(("numa-", "device-ids"), "CPUs and GPUs are divided between ranks in order; taskset and "
                    "CUDA_VISIBLE_DEVICES choose among them"),
    **dict.fromkeys(("lora-", "moe-shared-lora", "mixed-moe-lora", "specialize-active-lora", "max-lora-cls-"),
                    "adapters change the weights that they name"),
    **dict.fromkeys(("pooler-", "reasoning-config", "diffusion-", "engram-", "additional-", "io-processor-",
                     "model-class-"), _NO_OWN_CODE),
    **dict.fromkeys(("grpc", "cohere-", "anthropic-"), "it serves OpenAI's API, and Anthropic's messages, over HTTP"),
    **dict.fromkeys(("logging-config", "log-config-", "log-outputs", "log-deltas", "log-error-", "logging-iteration-",
                     "custom-histogram-", "layerwise-nvtx-", "profiler-", "aux-output-"),
                    "--log-level, --log-format, /metrics and --profile-steps show what the engine does"),
    **dict.fromkeys(("sleep-", "cumem-", "nccl-comm-"), "sleeping needs no flags but --enable-admin"),
    **dict.fromkeys(("fault-tolerance", "watchdog-"), "what dies is always replaced (--stall-limit, --max-restarts)"),
    **dict.fromkeys(("rope-scaling", "rope-theta", "rope-parameters"), "the model's config is taken as it is"),
    **dict.fromkeys(("prompt-adapter", "max-prompt-adapter", "qlora-"), "adapters are LoRA's (--enable-lora)"),
    **dict.fromkeys(("ubatch-size", "num-ubatches"), "a step is one batch"),
    **dict.fromkeys(("typical-acceptance-", "speculative-token-tree", "draft-sample-", "rejection-sample-",
                     "spec-decode-acceptance-"), "a draft is accepted where it equals the model's own draw"),
    **dict.fromkeys(("speculative-model-quantization", "speculative-max-model-len"),
                    "the draft model is taken as its checkpoint says"),
    **dict.fromkeys(("guided-decoding-disable-any-whitespace", "guided-decoding-disable-additional-properties"),
                    "what an answer may hold is for its schema to say (structured_outputs of a request)"),
    "quantization-param-path": "scales of 8-bit keys and values are the checkpoint's, and 1 where it has none",
    "override-pooler-": "requests for embeddings say how they are pooled",
    "override-neuron-": "it computes on CPUs and on GPUs of NVIDIA and AMD",
    "override-attention-dtype": "attention computes in the type that --dtype names",
    "return-routed-experts": "answers hold text, tokens and logprobs",
    "prompt-embeds": "prompts are texts or token ids",
    "tokenizer-info-": "/tokenize and /detokenize tell",
    "sliding-window": "a model's windows are kept: answers would change",
    "fingerprint-": "answers carry no fingerprint",
    "ssl-ciphers": "the ciphers are those that Python's defaults allow",
    "quantization-config": "the checkpoint says how it is quantized",
    "max-num-scheduled-tokens": "--max-num-batched-tokens is the budget of a step",
    "max-num-active-seqs": "--max-num-seqs limits what runs at once",
}  # fmt: skip


def family_reason(name: str) -> str | None:
    """Return why there is no flag of a name (without its dashes), if it belongs to a family."""
    bare = next((name.removeprefix(prefix) for prefix in _SWITCHED if name.startswith(prefix)), name)
    return next((reason for beginning, reason in FAMILIES.items() if bare.startswith(beginning)), None)
