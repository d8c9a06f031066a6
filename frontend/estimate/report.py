"""The answers as text for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pagewire.checkpoint.estimate.answer import Answer, DeviceAnswer, Question
from pagewire.checkpoint.estimate.devices import DeviceSpec
from pagewire.checkpoint.estimate.memory import MemoryPlan
from pagewire.checkpoint.estimate.sizing import Option
from pagewire.checkpoint.placement import Placement

from ..bench.text_table import figure, percent, text_table


def report_lines(answer: Answer) -> list[str]:
    """Return the lines, empty ones between the parts."""
    question = answer.question
    parts = [list(_model_lines(answer)), list(_kv_lines(answer))]
    if question.device is not None and answer.asked is not None:
        parts.append(list(_memory_lines(question, question.device, answer.asked)))
        if answer.asked.decodes:
            parts.append(list(_speed_lines(question, answer.asked)))
            parts.append(list(_op_lines(question, question.device, answer.asked)))
    parts.append(list(_option_lines(question, answer.options)))
    parts.append(list(_notes(question)))
    blocks = ["\n".join(part) for part in parts if part]  # tables are several lines in one
    return "\n\n".join(blocks).splitlines()


def _model_lines(answer: Answer) -> Iterator[str]:
    question, model = answer.question, answer.question.served.model
    yield (
        f"{question.name}: {model.num_layers} layers, hidden {model.hidden_size:,}, {model.num_heads} query and "
        f"{model.num_kv_heads} KV heads of {model.head_dim}, vocabulary {model.vocab_size:,}, context "
        f"{model.max_position:,}"
    )
    mixture, active = model.mixture, ""
    if mixture is not None:
        experts = f"{mixture.num_experts} experts of {mixture.intermediate_size:,} channels"
        yield f"Mixtures in {len(mixture.layers)} layers: {experts}, {mixture.num_chosen} a token"
        active = f" ({answer.num_active_parameters / 1e9:.2f} compute a token)"
    yield (
        f"Weights: {answer.num_parameters / 1e9:.2f} billion{active}, {_gib(answer.weight_bytes)} as "
        f"{question.served.bits.name}"
    )


def _kv_lines(answer: Answer) -> Iterator[str]:
    question, kv, model = answer.question, answer.kv, answer.question.served.model
    yield f"KV cache as {question.served.kv.name}: {kv.a_token / 1024:g} KiB a token"
    yield f"  a request of {question.context:,} tokens: {_gib(kv.a_request)}"
    if kv.all_requests is not None:
        yield f"  {question.num_requests:,} such requests: {_gib(kv.all_requests)}"
    if model.num_heads != model.num_kv_heads:
        times = model.num_heads // model.num_kv_heads
        yield (
            f"  Counting all {model.num_heads} heads would give {_gib(kv.a_request_with_all_heads)} a request, "
            f"{times} times too much: {times} query heads share one KV head, and only KV heads are cached."
        )


def _memory_lines(question: Question, device: DeviceSpec, asked: DeviceAnswer) -> Iterator[str]:
    plan, model = asked.memory, question.served.model
    each = " each" if question.placement.num_devices > 1 else ""
    yield f"{_devices(question.placement, device.title)}, memory{each}:"
    yield text_table(("", "GiB"), list(_memory_rows(plan, question.served.utilization)))
    if not asked.fits:
        yield _refusal(question, asked)
        return
    yield (
        f"Fits: {asked.max_requests:,} requests of {question.context:,} tokens at once, "
        f"{plan.num_blocks * 16:,} tokens in all"
    )
    whole = " (all that the model can)" if asked.longest_context == model.max_position else ""
    yield f"Longest context of one request: {asked.longest_context:,} tokens{whole}"
    if asked.longest_context_of_all is not None:
        yield f"Longest context of {question.num_requests:,} at once: {asked.longest_context_of_all:,} tokens each"


def _memory_rows(plan: MemoryPlan, utilization: float) -> Iterator[tuple[str, str]]:
    yield f"may be used: {plan.total / 2**30:.1f} x {utilization:g}", _number(plan.usable)
    yield "  weights", _number(plan.weights)
    yield "  runtime (estimated)", _number(plan.runtime)
    yield "  work space (estimated)", _number(plan.workspace)
    yield "  graphs (estimated)", _number(plan.graphs)
    yield "  left for KV", _number(plan.kv)


def _refusal(question: Question, asked: DeviceAnswer) -> str:
    plan = asked.memory
    if plan.kv <= 0:
        return f"Does not fit: {_gib(-plan.kv)} too much on each device before the first token is cached."
    wanted = question.num_requests or 1
    return (
        f"Does not fit: {wanted:,} request{'s' * (wanted > 1)} of {question.context:,} tokens; there is room for "
        f"{asked.max_requests:,}, and for one of {asked.longest_context:,} tokens."
    )


def _speed_lines(question: Question, asked: DeviceAnswer) -> Iterator[str]:
    share = percent(question.share)
    yield f"Decode with {question.context:,} tokens each: the limit, and {share} of its tokens as expected"
    rows = [
        (
            f"{one.num_requests:,} request{'s' * (one.num_requests > 1)}",
            figure(one.itl_ms, 2),
            f"{one.tokens_per_s:,.0f}",
            f"{one.expected_tokens_per_s:,.0f}",
            one.bound_by,
        )
        for one in asked.decodes
    ]
    yield text_table(("at once", "ITL ms", "tok/s at most", "expected", "bound by"), rows)
    if asked.requests is not None:
        one = asked.requests
        yield (
            f"With prompts of {one.prompt_tokens:,} and answers of {one.output_tokens:,} tokens, {one.num_requests:,} "
            f"at once: at most {one.tokens_per_s:,.0f} output tok/s, expected {one.expected_tokens_per_s:,.0f}"
        )
        yield f"First token of such a prompt on an idle engine: {one.first_token_ms:.1f} ms at least"


def _op_lines(question: Question, device: DeviceSpec, asked: DeviceAnswer) -> Iterator[str]:
    total = sum(cost.seconds(device) for cost in asked.ops)
    running = asked.requests.num_requests if asked.requests is not None else 0
    yield f"One decode step of {running:,} on one device: {total * 1e3:.2f} ms at least"
    rows = [
        (
            cost.name,
            str(cost.count),
            figure(cost.count * cost.num_bytes / 1e9, 2),
            figure(cost.count * cost.operations / 1e12, 3),
            figure(cost.seconds(device) * 1e3, 3),
            percent(cost.seconds(device) / total),
            cost.bound_by(device),
        )
        for cost in asked.ops
    ]
    yield text_table(("op", "runs", "GB", "Tera-operations", "ms", "share", "bound by"), rows)


def _option_lines(question: Question, options: Iterable[Option]) -> Iterator[str]:
    wanted = question.num_requests or 1
    yield (
        f"Fewest devices for {wanted:,} request{'s' * (wanted > 1)} of {question.context:,} tokens at once "
        f"({percent(question.served.utilization)} of their memory):"
    )
    yield text_table(
        ("device", "weights", "devices", "weights each, GiB", "such requests", "longest context"),
        [_option_row(option) for option in options],
    )


def _option_row(option: Option) -> tuple[str, ...]:
    if option.placement is None:
        return option.device, option.weights, "too many", "-", "-", "-"
    placement = option.placement
    devices = str(placement.num_devices)
    if placement.pp > 1:
        devices += f" (tp {placement.tp} x pp {placement.pp})"
    return (
        option.device,
        option.weights,
        devices,
        _number(option.weight_bytes),
        f"{option.max_requests:,}",
        f"{option.longest_context:,}",
    )


def _notes(question: Question) -> Iterator[str]:
    yield (
        "On paper: data sheets' rates, no launch delays, no time on the host. What an engine reaches is measured by "
        "`python -m tools.gpu_check`; docs/sizing.md has the formulas."
    )
    device, placement = question.device, question.placement
    if device is not None and placement.num_devices > 1:
        yield (
            f"Links: {device.link_bandwidth / 1e9:g} GB/s and {device.link_delay_s * 1e6:g} us an exchange within a "
            f"machine, {device.machine_bandwidth / 1e9:g} GB/s and {device.machine_delay_s * 1e6:g} us between two."
        )


def _devices(placement: Placement, title: str) -> str:
    parts = [f"tp {placement.tp}"] * (placement.tp > 1) + [f"pp {placement.pp}"] * (placement.pp > 1)
    return f"{placement.num_devices} x {title}" + (f" ({', '.join(parts)})" if parts else "")


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:,.2f} GiB"


def _number(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:.2f}"
