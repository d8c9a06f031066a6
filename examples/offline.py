"""Text without a server: `python examples/offline.py [MODEL]`."""

import sys

from pagewire import LLM, SamplingParams


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else None  # None: the packaged model
    with LLM(model, max_model_len=512) as llm:
        # All at once: the engine makes one batch of them.
        prompts = ["The capital of France is", "2 + 2 ="]
        for output in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=8), use_tqdm=False):
            print(repr(output.prompt), "->", repr(output.outputs[0].text))

        # A seed makes a drawn answer reproducible, alone or in any company.
        question = [{"role": "user", "content": "Name a color."}]
        params = SamplingParams(temperature=0.8, seed=7, max_tokens=16)
        print("chat ->", repr(llm.chat(question, params, use_tqdm=False)[0].outputs[0].text))


if __name__ == "__main__":
    main()
