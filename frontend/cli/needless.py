"""Flags that other engines' users bring along and that have no meaning here: taken, with one line that says why.

A start script moves over as it is. What would change the answers that users get is not among them: that is refused, in
`refused.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec


class Needless(NamedTuple):
    """A flag that is taken and does nothing.

    Attributes:
        reason: why it has no meaning here.
        num_values: values that stand behind it: 0 of a switch, 1, or None for all up to the next flag.
    """

    reason: str
    num_values: int | None = 1


def switches(names: str, reason: str) -> dict[str, Needless]:
    """Return switches, which take no value and may begin with "no-"."""
    return dict.fromkeys(names.split(), Needless(reason, 0))


def valued(names: str, reason: str) -> dict[str, Needless]:
    """Return flags with one value."""
    return dict.fromkeys(names.split(), Needless(reason, 1))


def lists(names: str, reason: str) -> dict[str, Needless]:
    """Return flags with values up to the next flag."""
    return dict.fromkeys(names.split(), Needless(reason, None))


_COMPILED = "nothing is compiled at start"
_GRAPHS = "graphs are captured for the batches that come; --enforce-eager turns them off"
_NO_FOREIGN_CODE = "code that comes with a checkpoint is never run, and no model that is served needs any"
_SINGLE_STEPS = "a step is one token of each request, and the next one is prepared meanwhile (--async-scheduling)"
_DRAFTS = "drafts are made where they pay and accepted where they equal the model's own draw"
_RECOMPUTED = "a preempted request is recomputed, mostly from the prefix cache"
_COUNTED_BY_SERVER = "tokens are counted by the server"

OF_SERVING: Mapping[str, Needless] = {
    **switches("enable-chunked-prefill", "long prompts are always prefilled in chunks (--max-num-batched-tokens)"),
    **switches("disable-chunked-mm-input disable-mm-preprocessor-cache", "prompts are text"),
    **valued("mm-processor-cache-gb mm-processor-cache-type", "prompts are text"),
    **valued("compilation-config cc O optimization-level", _COMPILED),
    **lists("cudagraph-capture-sizes cuda-graph-sizes", _GRAPHS),
    **valued("max-cudagraph-capture-size max-seq-len-to-capture max-context-len-to-capture", _GRAPHS),
    **valued("swap-space preemption-mode", _RECOMPUTED),
    **valued("prefix-caching-hash-algo", "blocks are always found by a cryptographic digest"),
    **switches("trust-remote-code", _NO_FOREIGN_CODE),
    **valued("code-revision", _NO_FOREIGN_CODE),
    **switches("fully-sharded-loras", "each rank has its part of an adapter, as of the weights"),
    **switches("enable-prompt-tokens-details", "usage always says how many prompt tokens came from the prefix cache"),
    **switches("disable-log-requests", "requests are logged only with --enable-log-requests"),
    **valued("max-log-len", "prompts are never logged, only how long they are (--enable-log-requests)"),
    **switches("disable-uvicorn-access-log", "there is no access log; --enable-log-requests turns a request log on"),
    **valued("uvicorn-log-level", "the HTTP server logs as all processes do (--log-level)"),
    **switches("enable-server-load-tracking", "what runs is always counted: /load and /metrics"),
    **switches("enable-request-id-headers", "answers always carry X-Request-Id"),
    **switches("disable-frontend-multiprocessing", "frontend and engine core are always processes of their own"),
    **switches("disable-custom-all-reduce", "sums over ranks are gathered and added in rank order, or left to nccl"),
    **switches("use-v2-block-manager disable-hybrid-kv-cache-manager", "there is one block manager"),
    **switches("use-tqdm-on-load", "the load is reported in the log"),
    **valued("speculative-disable-by-batch-size spec-decoding-acceptance-method", _DRAFTS),
    **switches("speculative-disable-mqa-scorer disable-logprobs-during-spec-decoding", _DRAFTS),
    **switches("disable-async-output-proc multi-step-stream-outputs", _SINGLE_STEPS),
    **valued("num-scheduler-steps num-lookahead-slots", _SINGLE_STEPS),
    **valued("scheduler-delay-factor delay-factor", "a prompt waits for nothing but its room in a step"),
    **switches("worker-use-ray engine-use-ray", "--distributed-executor-backend ray places executors on a Ray cluster"),
    **valued("max-parallel-loading-workers", "weights are read in order, each by the ranks that hold it"),
    **switches("disable-cascade-attn", "attention has one form, with the same bits for whoever shares a step"),
    **valued("performance-mode", "prefills and decodes share steps by --target-itl-ms"),
    **valued("show-hidden-metrics-for-version", "no metrics are hidden"),
    **switches("enable-auto-tool-choice", "tool_choice auto works with every model whose chat template knows tools"),
    **valued("guided-decoding-backend", "grammars are compiled by llguidance"),
    **switches("enable-sleep-mode", "every engine can sleep (LLM.sleep, and /sleep with --enable-admin)"),
    **valued("moe-backend linear-backend kernel-config attention-config ac ir-op-priority jit-monitor-mode",
             "the kernels of the device compute everything (--kernels, --attention-backend)"),
    **switches("enable-flashinfer-autotune monokernel jit-monitor-verbose use-fp64-gumbel",
               "the kernels of the device compute everything (--kernels, --attention-backend)"),
    **valued("safetensors-load-strategy safetensors-prefetch-num-threads safetensors-prefetch-block-size",
             "weights are mapped, and each rank reads its part"),
    **valued("renderer-num-workers", "chats are rendered and texts encoded beside the event loop"),
    **valued("distributed-timeout-seconds cpu-distributed-timeout-seconds", "--stall-limit bounds every step"),
    **switches("enable-nccl-for-dp-synchronization aggregate-engine-logging", "engines do not wait for each other"),
    **switches("scheduler-reserve-full-isl", "a prompt is always admitted whole"),
    **valued("prefill-schedule-interval", "prefills and decodes share steps by --target-itl-ms"),
    **switches("language-model-only", "prompts are text"),
    **switches("exclude-tools-when-tool-choice-none", "tools that may not be called are never shown to the model"),
    **switches("ray-workers-use-nsight fail-on-environ-validation", "there is nothing of that kind"),
    **switches("allow-deprecated-quantization", "no format is deprecated"),
    **valued("tokenizer-pool-size tokenizer-pool-type tokenizer-pool-extra-config",
             "texts are tokenized in threads beside the event loop"),
    **switches("enable-reasoning", "how a model writes its thoughts is seen from its template, or --reasoning-parser"),
    **switches("guided-decoding-disable-fallback", "grammars are compiled by llguidance"),
    **switches("disable-padded-drafter-batch", _DRAFTS),
    **switches("enable-offline-docs", "/docs needs no other host"),
    **valued("disable-access-log-for-endpoints",
             "there is no access log; --enable-log-requests turns a request log on"),
    **valued("pt-load-map-location", "weights are mapped, and each rank reads its part"),
    **lists("ignore-patterns", "only the files that are served are fetched"),
}  # fmt: skip

OF_BENCH_SERVE: Mapping[str, Needless] = {
    **valued("tokenizer tokenizer-mode", _COUNTED_BY_SERVER),
    **switches("skip-tokenizer-init", _COUNTED_BY_SERVER),
    **switches("trust-remote-code", _NO_FOREIGN_CODE),
    **switches("disable-shuffle", "the same --seed gives the same order"),
    **switches("no-oversample", "requests repeat only where a file has too few conversations, and the output says so"),
}

OF_BENCH_OFFLINE: Mapping[str, Needless] = {
    **OF_SERVING,
    **valued("backend", "it measures this engine"),
    **switches("async-engine", "the engine is always asynchronous"),
    **switches("disable-detokenize", "the text of an answer is made once, at its end"),
}


def find_needless(flag: str, needless: Mapping[str, Needless]) -> tuple[str, Needless] | None:
    """Return the name and the entry of a flag as it was typed (without a value behind "="), or None.

    `--no-x` is found by x if that is a switch, `--x.key` by x, and `-O2` by O.
    """
    name = flag.replace("_", "-").lstrip("-").partition(".")[0]
    for candidate in (name, *other_sides(name)):
        found = needless.get(candidate)
        if found is not None and (candidate == name or found.num_values == 0):
            return candidate, found
    is_level = len(flag) > 2 and flag.startswith("-O") and "O" in needless
    return ("O", Needless(needless["O"].reason, 0)) if is_level else None


def other_sides(name: str) -> list[str]:
    """Return the names that a switch may have by its other side: x of no-x, enable-x of disable-x, and back."""
    if name.startswith("no-"):
        return [name.removeprefix("no-")]
    for side, other in (("enable-", "disable-"), ("disable-", "enable-")):
        if name.startswith(side):
            return [other + name.removeprefix(side)]
    return []


def turn_switches(args: Sequence[str], switch_names: Collection[str]) -> list[str]:
    """Return the arguments with `--disable-x` as `--no-enable-x` where the switch is enable-x, and the reverse.

    Args:
        args: a command line.
        switch_names: the command's switches, without dashes.
    """
    turned: list[str] = []
    for index, arg in enumerate(args):
        if arg == "--":
            return [*turned, *args[index:]]
        name = arg.replace("_", "-").removeprefix("--")
        others = [other for other in other_sides(name) if other in switch_names and not name.startswith("no-")]
        is_switch = arg.startswith("--") and name not in switch_names and bool(others)
        turned.append(f"--no-{others[0]}" if is_switch else arg)
    return turned


def drop_flags(
    args: Sequence[str],
    needless: Mapping[str, Needless],
    redundant: Mapping[str, Sequence[str]],
    known: Collection[str] = (),
) -> tuple[list[str], list[str]]:
    """Return the arguments without the flags that do nothing, and one line on each of those.

    Args:
        args: a command line.
        needless: flags that have no meaning here.
        redundant: flag -> values with which it asks for what is done anyway.
        known: with their dashes, those that the command has: `--enable-x` may be one where `--disable-x` does nothing.
    """
    kept: list[str] = []
    lines: list[str] = []
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        if arg == "--":
            return [*kept, arg, *rest], lines
        flag, is_joined, joined = arg.partition("=")
        is_unknown = arg.startswith("-") and flag.replace("_", "-") not in known
        found = find_needless(flag, needless) if is_unknown else None
        if found is not None:
            if not is_joined:
                del rest[: _count_values(rest, found[1].num_values)]
            lines.append(explain_needless(flag, found[1]))
            continue
        value = joined if is_joined else rest[0] if rest else ""
        if arg.startswith("--") and is_redundant(flag, value, redundant):
            del rest[: 0 if is_joined else 1]
            lines.append(explain_redundant(flag, value))
            continue
        kept.append(arg)
    return kept, lines


def explain_idle(
    flag: str, value: object, needless: Mapping[str, Needless], redundant: Mapping[str, Sequence[str]]
) -> str | None:
    """Return one line on a flag that does nothing, from where its value is known; None for any other flag."""
    found = find_needless(flag, needless)
    if found is not None:
        return explain_needless(flag, found[1])
    return explain_redundant(flag, value) if is_redundant(flag, value, redundant) else None


def explain_needless(flag: str, entry: Needless) -> str:
    """Return one line on a flag that does nothing."""
    return f"{flag} has no meaning here: {entry.reason}."


def is_redundant(flag: str, value: object, redundant: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a flag (as it was typed) has a value that changes nothing.

    A JSON object changes nothing if each of its keys, as `flag.key`, has such a value.
    """
    name = flag.lstrip("-").replace("_", "-")
    if str(value).lower() in redundant.get(name, ()):
        return True
    parts = value
    if isinstance(value, str) and value.startswith("{"):
        try:
            parts = msgspec.json.decode(value)
        except msgspec.DecodeError:
            return False
    if not isinstance(parts, dict):
        return False
    return all(is_redundant(f"{name}.{key}", part, redundant) for key, part in parts.items())


def explain_redundant(flag: str, value: object) -> str:
    """Return one line on a flag that asks for what is done anyway."""
    return f"{flag} {value} is what it does anyway; the flag can be left out."


def _count_values(rest: Sequence[str], num_values: int | None) -> int:
    """Return how many of the arguments behind a flag are its values."""
    count = 0
    while count < len(rest) and (num_values is None or count < num_values) and not _is_flag(rest[count]):
        count += 1
    return count


def _is_flag(arg: str) -> bool:
    return arg.startswith("-") and not arg[1:2].isdigit()
