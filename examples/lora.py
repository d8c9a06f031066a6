"""A model and an adapter in one batch: `python examples/lora.py MODEL ADAPTER`, a directory as PEFT writes it."""

import sys

from pagewire import LLM, LoRARequest, SamplingParams


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit("usage: python examples/lora.py MODEL ADAPTER")
    model, adapter = sys.argv[1:]
    with LLM(model, enable_lora=True, max_model_len=256) as llm:
        params = SamplingParams(temperature=0, max_tokens=8)
        prompt = "The capital of France is"
        # The same prompt twice in the same steps: once with the adapter, once without.
        requests = [LoRARequest("mine", 1, adapter), None]
        outputs = llm.generate([prompt, prompt], params, lora_request=requests, use_tqdm=False)
        for name, output in zip(("with the adapter", "without"), outputs, strict=True):
            print(f"{name}: {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
