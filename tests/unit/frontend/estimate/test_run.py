"""Exit codes, and the same answers as JSON."""

from __future__ import annotations

import msgspec

from pagewire.frontend.estimate.config import EstimateConfig
from pagewire.frontend.estimate.run import run


def run_with(model: str, config: EstimateConfig) -> tuple[int, str]:
    said: list[str] = []
    code = run(model, config, said.append)
    return code, "\n".join(said)


def test_json_holds_the_question_and_exact_sizes():
    config = EstimateConfig(
        gpu="a100", tensor_parallel_size=2, weights="float16", num_requests=2, json=True, context_len=4096
    )
    code, text = run_with("Llama-3-70B", config)
    found = msgspec.json.decode(text)
    assert code == 0
    assert found["kv"] == {
        "a_token": 327_680,
        "a_request": 1.25 * 2**30,
        "all_requests": 2.5 * 2**30,
        "a_request_with_all_heads": 10 * 2**30,
    }
    assert found["question"] == {
        "model": "llama-3-70b (built-in shape)", "architecture": "LlamaForCausalLM", "gpu": "a100",
        "tensor_parallel_size": 2, "pipeline_parallel_size": 1, "weights": "float16", "kv_cache_dtype": "float16",
        "context_len": 4096, "output_len": 256, "num_requests": 2, "gpu_memory_utilization": 0.9, "efficiency": 0.7,
    }  # fmt: skip
    assert [one["num_requests"] for one in found["asked"]["decodes"]] == [1, 2]
    assert found["options"][0]["placement"] == {"tp": 2, "pp": 1, "divides_experts": False}


def test_without_a_device_nothing_can_fail_to_fit():
    assert run_with("llama-3.1-405b", EstimateConfig())[0] == 0


def test_what_does_not_fit_is_an_answer_with_exit_code_1():
    for as_json in (False, True):
        code, text = run_with("llama-3.1-405b", EstimateConfig(gpu="h100", tensor_parallel_size=8, json=as_json))
        assert code == 1
        assert text
