"""The likeliest answers instead of drawn ones: `python examples/beam_search.py [MODEL]`."""

import sys

from pagewire import LLM, BeamSearchParams


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else None
    with LLM(model, max_model_len=512) as llm:
        (output,) = llm.beam_search(["The sky is"], BeamSearchParams(beam_width=3, max_tokens=6))
        for answer in output.sequences:  # best first
            print(f"{answer.cum_logprob:8.2f}  {answer.text!r}")


if __name__ == "__main__":
    main()
