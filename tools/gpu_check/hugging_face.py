"""The same requests in transformers' `generate`, one call for all: what a script without an engine would have."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from tools.gpu_check.checkpoint import write_checkpoint
from tools.gpu_check.offline import make_prompts
from tools.gpu_check.parts import SkipPart
from tools.gpu_check.records import GenerateRun
from tools.gpu_check.setting import Setting


def run(setting: Setting) -> Iterator[GenerateRun]:
    """The part of the check.

    Raises:
        SkipPart: transformers is missing.
    """
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as exc:
        raise SkipPart(f"transformers can't be imported ({exc}); pip install transformers") from exc
    directory = write_checkpoint(setting.model, setting.directory / "checkpoint")
    dtype = torch.float32 if setting.is_tiny else torch.bfloat16
    torch.set_default_dtype(dtype)
    with torch.device(setting.device):
        config = AutoConfig.from_pretrained(directory)
        model = AutoModelForCausalLM.from_config(config).eval()  # type: ignore[no-untyped-call]  # transformers'
    batch, output_tokens = setting.generate_batch, setting.output_tokens
    prompts = torch.tensor(make_prompts(setting, batch, setting.prompt_tokens, seed=3), device=setting.device)

    def generate(num_tokens: int) -> None:
        model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        if setting.device == "cuda":
            torch.cuda.synchronize()

    with torch.inference_mode():
        generate(2)
        started = time.perf_counter()
        generate(output_tokens)
        elapsed_s = time.perf_counter() - started
    yield GenerateRun(
        num_requests=batch,
        prompt_tokens=setting.prompt_tokens,
        output_tokens=output_tokens,
        output_tokens_per_s=batch * output_tokens / elapsed_s,
    )
