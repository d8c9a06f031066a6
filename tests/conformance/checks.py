"""What the conformance scripts share: where the server is, and a run of a module's checks."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Mapping

URL = os.environ.get("CONFORMANCE_URL", "http://127.0.0.1:8000")
KEY = os.environ.get("CONFORMANCE_KEY", "none")
MODEL = os.environ.get("CONFORMANCE_MODEL", "SmolLM2-135M-Instruct")

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer briefly."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "London"]}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


def run(module: Mapping[str, object]) -> None:
    """Run each `check_*` of a module, print how it went, and exit with 1 if one failed.

    Args:
        module: its `globals()`.
    """
    chosen = sys.argv[1:]
    num_failed = 0
    for name, check in list(module.items()):
        if not name.startswith("check_") or not callable(check) or (chosen and name not in chosen):
            continue
        start = time.perf_counter()
        try:
            check()
        except Exception:  # whatever it is, the others are worth knowing too
            num_failed += 1
            print(f"FAILED  {name}\n{traceback.format_exc(limit=-4)}", flush=True)
        else:
            print(f"ok      {name}  {time.perf_counter() - start:.1f} s", flush=True)
    sys.exit(1 if num_failed else 0)
