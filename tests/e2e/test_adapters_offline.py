"""LoRA adapters with `LLM`, in every layout: the tokens are those of a model whose weights have the change in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from pagewire import LLM, InvalidRequest, LoRARequest, NotFound, SamplingParams
from pagewire.frontend.offline.outputs import RequestOutput
from tools.tiny_model.hugging_face import write_hugging_face
from tools.tiny_model.lora_writer import write_adapter
from tools.tiny_model.spec import TinyModelSpec
from tools.tiny_model.weights import make_weights

pytestmark = pytest.mark.slow

SPEC = TinyModelSpec(family="llama")
PARAMS = SamplingParams(temperature=0, max_tokens=8, logprobs=1, ignore_eos=True)
PROMPTS = [{"prompt_token_ids": [5, 6, 7, 8, 9]}, {"prompt_token_ids": list(range(100, 130))}]
EXACT = {"dtype": "float32", "kv_cache_dtype": "float32"}


class Files:
    """A model, two adapters, and the models that they amount to."""

    def __init__(self, directory: Path) -> None:
        self.base = write_hugging_face(SPEC, directory / "base")
        self.requests: list[LoRARequest] = []
        self.merged: list[Path] = []
        for seed in (1, 2):
            adapter = write_adapter(SPEC, directory / f"a{seed}", seed=seed)
            self.requests.append(LoRARequest(f"a{seed}", seed, str(adapter)))
            tensors = load_file(adapter / "adapter_model.safetensors")
            weights = dict(make_weights(SPEC))
            for name in weights:
                prefix = f"base_model.model.{name.removesuffix('.weight')}.lora_"
                if f"{prefix}A.weight" in tensors:
                    change = tensors[f"{prefix}B.weight"] @ tensors[f"{prefix}A.weight"]
                    weights[name] = weights[name] + 2 * change  # alpha is twice the rank
            self.merged.append(write_hugging_face(SPEC, directory / f"m{seed}", weights=weights))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def expected(files: Files) -> list[list[list[int]]]:
    found = []
    for path in (files.base, *files.merged):
        with LLM(str(path), **EXACT) as llm:
            found.append([answer.outputs[0].token_ids for answer in llm.generate(PROMPTS, PARAMS, use_tqdm=False)])
    return found


def bits(outputs: list[RequestOutput]) -> list[object]:
    return [
        (
            output.outputs[0].token_ids,
            [
                {token_id: entry.logprob for token_id, entry in place.items()}
                for place in output.outputs[0].logprobs or []
            ],
        )
        for output in outputs
    ]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tensor_parallel_size": 2},
        {"kernels": "reference", "tensor_parallel_size": 2},
        {"pipeline_parallel_size": 2},
        {"speculative_method": "suffix"},
    ],
)
def test_tokens_are_those_of_merged_weights_and_bits_a_rows_own(
    files: Files, expected: list[list[list[int]]], options: dict[str, Any]
) -> None:
    first, second = files.requests
    modules = (f"{first.lora_name}={first.lora_path}",)  # the other one is loaded when it is asked for
    with LLM(str(files.base), enable_lora=True, lora_modules=modules, **EXACT, **options) as llm:
        answers = [llm.generate(PROMPTS, PARAMS, use_tqdm=False, lora_request=each) for each in (None, first, second)]
        assert [[answer.outputs[0].token_ids for answer in each] for each in answers] == expected
        mixed = llm.generate(
            PROMPTS * 3, PARAMS, use_tqdm=False, lora_request=[None, None, first, first, second, second]
        )
        assert bits(mixed) == [each for part in answers for each in bits(part)]
        with pytest.raises(InvalidRequest, match="another name"):
            llm.generate(PROMPTS[0], PARAMS, lora_request=LoRARequest("a1", 3, second.lora_path))
        with pytest.raises(InvalidRequest, match=r"adapter_config\.json"):
            llm.generate(PROMPTS[0], PARAMS, lora_request=LoRARequest("a3", 3, "/nowhere"))


def test_without_the_flag_there_are_none(files: Files) -> None:
    with LLM(str(files.base)) as llm, pytest.raises((InvalidRequest, NotFound), match="--enable-lora"):
        llm.generate(PROMPTS[0], PARAMS, lora_request=files.requests[0])
