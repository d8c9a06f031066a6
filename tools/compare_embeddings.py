"""Compare embeddings with `transformers` on the same weights: `python -m tools.compare_embeddings`.

Both sides compute in fp32; pooling is the last token's hidden state and the mean of all tokens'. With `--kernels`, the
engine's own numbers (8-bit activations, ...) show how far they are from it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Literal

import torch

from pagewire.checkpoint.resolve import resolve_model
from pagewire.frontend.offline.llm import LLM
from tools.dev_extra import dev_extra
from tools.prompts import PROMPTS

with dev_extra():
    from transformers import AutoModel, PreTrainedModel

POOLINGS: tuple[Literal["last", "mean"], ...] = ("last", "mean")


def main() -> int:
    """Print the worst of each pooling; return 0 if all vectors are as close as `--least` asks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--kernels", default="reference", help="of the engine; others than reference round more")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--least", type=float, default=0.99999, help="least cosine that passes")
    args = parser.parse_args()
    prompts = PROMPTS[: args.prompts]
    with LLM(
        model=args.model, dtype=args.dtype, kv_cache_dtype="float32", kernels=args.kernels, max_model_len=512
    ) as llm:
        ours = {pooling: llm.embed(prompts, pooling=pooling, use_tqdm=False) for pooling in POOLINGS}
    model = load_model(args.model)
    is_close = True
    for pooling, outputs in ours.items():
        cosines: list[float] = []
        largest = 0.0
        for output in outputs:
            expected = embed(model, output.prompt_token_ids, pooling)
            vector = torch.tensor(output.outputs.embedding)
            cosines.append(float(vector @ expected))
            largest = max(largest, float((vector - expected).abs().max()))
        is_close = is_close and min(cosines) >= args.least
        print(f"{pooling:5} {len(outputs)} prompts: least cosine {min(cosines):.7f}, largest difference {largest:.2e}")
    return 0 if is_close else 1


def load_model(name: str) -> PreTrainedModel:
    """Return the same weights as `transformers` reads them."""
    path = Path(resolve_model(name).path)
    is_gguf = path.suffix == ".gguf"
    model: PreTrainedModel = AutoModel.from_pretrained(
        path.parent if is_gguf else path, gguf_file=path.name if is_gguf else None, dtype=torch.float32
    )
    return model


def embed(model: torch.nn.Module, token_ids: list[int], pooling: Literal["last", "mean"]) -> torch.Tensor:
    """Return a prompt's vector [hidden_size], of length 1."""
    with torch.inference_mode():
        states: torch.Tensor = model(torch.tensor([token_ids])).last_hidden_state[0]
    vector = states[-1] if pooling == "last" else states.mean(0)
    return torch.nn.functional.normalize(vector, dim=0)


if __name__ == "__main__":
    sys.exit(main())
