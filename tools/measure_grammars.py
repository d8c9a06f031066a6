"""Draw documents of JSON schemas and validate them: `python -m tools.measure_grammars [MODEL]`.

Ten generations at temperature 1 for each of 20 schemas, all validated with `jsonschema`, but for those that were cut by
length. Then a batch of 16 that draws by grammar, and the same batch without: what masks cost, in the core that makes
them, in the executor that waits for them, and in a step's time. Exit code 1 if a document is not valid, or masks make a
step longer by more than a tenth.
"""

from __future__ import annotations

import argparse
import bisect
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema

from pagewire.frontend.offline.llm import LLM
from pagewire.ipc.sampling_params import SamplingParams
from pagewire.ipc.structured_outputs import StructuredOutputs
from tools.grammar_schemas import LONG, SCHEMAS

_MAX_TOKENS = 400
_BATCH = 16
_MOST_COST = 0.10


def main() -> int:
    """Print the figures, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="SmolLM2-135M-Instruct")
    parser.add_argument("--generations", type=int, default=10, help="of each schema")
    parser.add_argument("--rounds", type=int, default=5, help="of the batch, with grammars and without")
    parser.add_argument("--tokens", type=int, default=48, help="of each of the batch's answers")
    args = parser.parse_args()
    num_invalid = check_documents(args.model, args.generations)
    cost = measure_cost(args.model, args.rounds, args.tokens)
    return int(num_invalid > 0 or cost > _MOST_COST)


def check_documents(model: str, num_generations: int) -> int:
    """Draw and validate; return how many documents are not what was asked for."""
    asked = [item for item in SCHEMAS for _ in range(num_generations)]
    params = [
        SamplingParams(
            temperature=1.0, seed=seed, max_tokens=_MAX_TOKENS, structured_outputs=StructuredOutputs(json=item.schema)
        )
        for seed, item in enumerate(asked)
    ]
    chats = [[{"role": "user", "content": f"{item.prompt} Answer in JSON."}] for item in asked]
    with LLM(model=model, max_model_len=1024) as llm:
        started = time.perf_counter()
        answers = llm.chat(chats, params, use_tqdm=False)
        took_s = time.perf_counter() - started
    found: Counter[str] = Counter()
    for item, answer in zip(asked, answers, strict=True):
        output = answer.outputs[0]
        if output.finish_reason == "length":
            found["cut by length"] += 1
            continue
        fault = find_fault(output.text, item.schema)
        found["valid" if fault is None else "invalid"] += 1
        if fault is not None:
            print(f"{item.name}: {output.text!r}: {fault}")
    print(f"{len(asked)} generations over {len(SCHEMAS)} schemas in {took_s:.1f} s: {dict(found)}")
    return found["invalid"]


def find_fault(text: str, schema: object) -> str | None:
    """Return what is wrong with a document, None if nothing is."""
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError) as exc:
        return str(exc).splitlines()[0]
    return None


def measure_cost(model: str, num_rounds: int, num_tokens: int) -> float:
    """Print what masks cost in a batch, and return by what share they make a step longer."""
    with tempfile.TemporaryDirectory() as directory:
        trace = Path(directory) / "steps.json"
        free_s: list[float] = []
        masked_s: list[float] = []
        with LLM(model=model, max_model_len=512, enable_prefix_caching=False, profile_steps=str(trace)) as llm:
            draw_batch(llm, num_tokens, StructuredOutputs(json=LONG))  # compiles, and warms up
            for _ in range(num_rounds):  # in turn: a machine whose speed drifts slows both alike
                free_s.append(draw_batch(llm, num_tokens, None) / num_tokens)
                masked_s.append(draw_batch(llm, num_tokens, StructuredOutputs(json=LONG)) / num_tokens)
        events = [event for event in json.loads(trace.read_text()) if "dur" in event]
    free_ms, masked_ms, waited_ms = _steps_of(events)
    making_ms = sum(event["dur"] for event in events if event["name"] == "make masks") / 1000 / len(masked_ms)
    # Lower quartiles: whatever else runs on the machine makes steps longer, and none shorter.
    free, masked, waited = (statistics.quantiles(values, n=4)[0] for values in (free_ms, masked_ms, waited_ms))
    cost = masked / free - 1
    print(f"a step of {_BATCH} rows in the executor: {free:.2f} ms free, {masked:.2f} ms by grammar ({cost:+.1%})")
    print(f"its masks: made in {making_ms:.2f} ms of the core meanwhile, waited for {waited:.2f} ms")
    whole_free, whole_masked = 1000 * statistics.median(free_s), 1000 * statistics.median(masked_s)
    print(f"a token of each row, prompts and text included: {whole_free:.2f} ms free, {whole_masked:.2f} ms by grammar")
    return cost


def _steps_of(events: list[dict[str, Any]]) -> tuple[list[float], list[float], list[float]]:  # Any: JSON
    """Return the milliseconds of a whole batch's decodes, free and by grammar, and of the latter's waits for masks."""
    waits = sorted((event["ts"], event["dur"]) for event in events if event["name"] == "wait for masks")
    starts = [start for start, _ in waits]
    free, masked, waited = list[float](), list[float](), list[float]()
    for event in events:
        details = event.get("args", {})
        if event["name"] != "step" or details["rows"] != _BATCH or details["tokens"] != _BATCH:
            continue
        place = bisect.bisect_left(starts, event["ts"])
        if place < len(waits) and starts[place] < event["ts"] + event["dur"]:
            masked.append(event["dur"] / 1000)
            waited.append(waits[place][1] / 1000)
        else:
            free.append(event["dur"] / 1000)
    return free, masked, waited


def draw_batch(llm: LLM, num_tokens: int, asked: StructuredOutputs | None) -> float:
    """Return the seconds that a batch takes."""
    params = [
        SamplingParams(temperature=1.0, seed=seed, max_tokens=num_tokens, ignore_eos=True, structured_outputs=asked)
        for seed in range(_BATCH)
    ]
    started = time.perf_counter()
    answers = llm.generate(["List some things."] * _BATCH, params, use_tqdm=False)
    took_s = time.perf_counter() - started
    assert all(len(answer.outputs[0].token_ids) == num_tokens for answer in answers), "an answer ended early"
    return took_s


if __name__ == "__main__":
    sys.exit(main())
