"""Compare greedy text with `transformers` on the same weights: `python -m tools.compare_with_transformers`.

Both sides run the packaged model in fp32 (KV cache too). A mismatch is printed with both sides' top two logprobs at
the first differing token.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from pagewire.checkpoint.resolve import resolve_model
from pagewire.frontend.offline.llm import LLM
from pagewire.ipc.sampling_params import SamplingParams
from tools.dev_extra import dev_extra
from tools.prompts import PROMPTS

with dev_extra():
    from transformers import AutoModelForCausalLM, GenerationMixin


def main() -> int:
    """Print one line a prompt and a summary; return 0 if all are equal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    prompts = PROMPTS[: args.prompts]
    params = SamplingParams(temperature=0.0, max_tokens=args.tokens, ignore_eos=True, logprobs=2)
    with LLM(
        model=args.model, dtype="float32", kv_cache_dtype="float32", kernels="reference", max_model_len=512
    ) as llm:
        outputs = llm.generate(prompts, params)
    path = Path(resolve_model(args.model).path)
    started = time.perf_counter()
    is_gguf = path.suffix == ".gguf"
    model = AutoModelForCausalLM.from_pretrained(
        path.parent if is_gguf else path, gguf_file=path.name if is_gguf else None, dtype=torch.float32
    )
    print(f"transformers loaded in {time.perf_counter() - started:.1f} s")
    num_equal = 0
    for number, output in enumerate(outputs):
        ours = list(output.outputs[0].token_ids)
        prompt_ids = output.prompt_token_ids
        theirs = greedy(model, prompt_ids, args.tokens)
        if ours == theirs:
            num_equal += 1
            continue
        at = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
        reference = torch.log_softmax(logits_after(model, prompt_ids + theirs[:at]), -1).topk(2)
        entries = output.outputs[0].logprobs
        assert entries is not None
        mine = {token: round(entry.logprob, 5) for token, entry in entries[at].items()}
        print(
            f"prompt {number} differs at token {at}: here {mine}, transformers "
            f"{dict(zip(reference.indices.tolist(), reference.values.tolist(), strict=True))}"
        )
    print(f"{num_equal}/{len(prompts)} prompts x {args.tokens} tokens are equal")
    return 0 if num_equal == len(prompts) else 1


def greedy(model: GenerationMixin, prompt_ids: list[int], num_tokens: int) -> list[int]:
    """Greedy ids of `transformers`, end tokens ignored."""
    prompt = torch.tensor([prompt_ids])
    # A None given to `generate` is filled in from here again, so the model's own end token must go here.
    assert model.generation_config is not None
    model.generation_config.eos_token_id = None
    ids: torch.Tensor = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=num_tokens, pad_token_id=0
    )
    return ids[0, len(prompt_ids) :].tolist()


def logits_after(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    """Logits [vocab] after a token sequence."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids])).logits[0, -1]
    return logits


if __name__ == "__main__":
    sys.exit(main())
