"""The engine behind its HTTP server, with requests that arrive at a rate: what users would see."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

from tools.gpu_check.checkpoint import write_checkpoint
from tools.gpu_check.offline import engine_options
from tools.gpu_check.records import ServedRun
from tools.gpu_check.setting import Setting
from tools.gpu_check.settling import settle
from tools.serving import serving

_RESULT = "served.json"
_SETTLING_S = 15.0


def run(setting: Setting) -> Iterator[ServedRun]:
    """The part of the check."""
    directory = write_checkpoint(setting.model, setting.directory / "checkpoint")
    flags = [part for name, value in engine_options(setting).items() for part in (_flag(name), str(value))]
    with serving(str(directory), *flags) as served:
        settle(lambda: _ask(served.url), _SETTLING_S)
        bench = [
            sys.executable, "-m", "pagewire", "bench", "serve", "--base-url", served.url, "--ignore-eos",
            "--dataset-name", "random", "--random-input-len", str(setting.served_prompt_tokens),
            "--random-output-len", str(setting.served_output_tokens), "--num-prompts", str(setting.served_requests),
            "--request-rate", str(setting.served_rate), "--num-warmups", str(min(32, setting.served_requests)),
            "--metric-percentiles", "50,99", "--disable-tqdm", "--save-result", "--result-dir", str(setting.directory),
            "--result-filename", _RESULT,
        ]  # fmt: skip
        subprocess.run(bench, check=True, stdout=subprocess.DEVNULL)
    figures = json.loads((setting.directory / _RESULT).read_bytes())
    yield ServedRun(
        request_rate=setting.served_rate,
        num_requests=figures["completed"],
        prompt_tokens=setting.served_prompt_tokens,
        output_tokens=setting.served_output_tokens,
        output_tokens_per_s=figures["output_throughput"],
        ttft_ms=(figures["p50_ttft_ms"], figures["p99_ttft_ms"]),
        itl_ms=(figures["p50_itl_ms"], figures["p99_itl_ms"]),
    )


def _ask(url: str) -> None:
    body = json.dumps({"prompt": [5, 6, 7], "max_tokens": 1}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        response.read()


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
