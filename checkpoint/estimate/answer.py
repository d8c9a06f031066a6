"""The answers to one question: what a model takes, whether it fits, how fast it can be, and what else would do."""

from __future__ import annotations

import msgspec

from ..placement import Placement, check_placement
from .devices import COMMON_DEVICES, DeviceSpec, find_device
from .memory import MemoryPlan, plan_memory
from .roofline import OpCost, kv_bytes_per_token
from .served import Served
from .sizing import Demand, Option, compare_options, meets
from .speed import DecodeSpeed, RequestSpeed, decode_speed, request_speed, step_table
from .weights import num_active_parameters, num_parameters, weight_bytes

_BATCHES = (1, 16, 64, 256)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked.

    Attributes:
        name: of the model, for people.
        served: the model and how it is served.
        device: what it shall run on; None: compare common ones.
        placement: on how many of them.
        context: tokens of a request, prompt and output together.
        output_tokens: of those, the output; less than `context`.
        num_requests: at once; None: as many as fit and may run.
        share: of the limit that is expected.
    """

    name: str
    served: Served
    device: DeviceSpec | None
    placement: Placement
    context: int
    output_tokens: int
    num_requests: int | None
    share: float


class KVAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What keys and values take, over all devices. Sizes in bytes.

    Attributes:
        a_token: of one token.
        a_request: of one request of the asked length.
        all_requests: of the asked number of requests; None if none was asked.
        a_request_with_all_heads: what a request would take if each query head had keys and values of its own.
    """

    a_token: int
    a_request: int
    all_requests: int | None
    a_request_with_all_heads: int


class DeviceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the asked devices do.

    Attributes:
        fits: the asked requests do: at least one.
        memory: of one device.
        kv_bytes: what is left for keys and values on one device; below 0 if the rest is too much.
        max_requests: of the asked length at once, by memory alone.
        longest_context: of one request.
        longest_context_of_all: of each of the asked number; None if none was asked.
        decodes: by number of requests.
        requests: with prompts; None if nothing fits.
        ops: of a decode step of the largest of those batches.
    """

    fits: bool
    memory: MemoryPlan
    kv_bytes: int
    max_requests: int
    longest_context: int
    longest_context_of_all: int | None
    decodes: tuple[DecodeSpeed, ...]
    requests: RequestSpeed | None
    ops: tuple[OpCost, ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """All answers.

    Attributes:
        num_parameters: of the model.
        num_active_parameters: of those, the ones that compute a token; fewer where it chooses experts.
        weight_bytes: of all of it.
        asked: None if no device was named.
        options: the fewest devices that do, of the named kind or of common ones.
    """

    question: Question
    num_parameters: int
    num_active_parameters: int
    weight_bytes: int
    kv: KVAnswer
    asked: DeviceAnswer | None
    options: tuple[Option, ...]


def answer(question: Question) -> Answer:
    """Return all answers.

    Raises:
        ConfigError: the model's shapes can't be divided by the asked number of devices.
    """
    served, device = question.served, question.device
    demand = Demand(num_requests=question.num_requests or 1, context=question.context)
    asked = None if device is None else _answer_for(question, device, demand)
    devices = [find_device(name) for name in COMMON_DEVICES]
    if device is not None:
        others = [] if asked is not None and asked.fits else [other for other in devices if other != device]
        devices = [device, *others]
    return Answer(
        question=question,
        num_parameters=num_parameters(served.model),
        num_active_parameters=num_active_parameters(served.model),
        weight_bytes=weight_bytes(served.model, served.bits, Placement()),
        kv=_kv_answer(question),
        asked=asked,
        options=compare_options(served, devices, demand),
    )


def _kv_answer(question: Question) -> KVAnswer:
    served, model = question.served, question.served.model
    a_token = kv_bytes_per_token(served, Placement())
    a_request = a_token * question.context
    return KVAnswer(
        a_token=a_token,
        a_request=a_request,
        all_requests=None if question.num_requests is None else a_request * question.num_requests,
        a_request_with_all_heads=a_request // model.num_kv_heads * model.num_heads,
    )


def _answer_for(question: Question, device: DeviceSpec, demand: Demand) -> DeviceAnswer:
    served, placement = question.served, question.placement
    check_placement(served.model, placement)
    plan = plan_memory(served, placement, device)
    fitting = plan.max_requests(question.context)
    most = min(fitting, served.limits.max_num_seqs)
    running = min(most, question.num_requests or most)
    batches = sorted({batch for batch in (*_BATCHES, running) if 0 < batch <= most})
    return DeviceAnswer(
        fits=meets(plan, demand),
        memory=plan,
        kv_bytes=plan.kv,
        max_requests=fitting,
        longest_context=plan.longest_context(1, served.model.max_position),
        longest_context_of_all=None
        if question.num_requests is None
        else plan.longest_context(question.num_requests, served.model.max_position),
        decodes=tuple(
            decode_speed(served, placement, device, batch, question.context, question.share) for batch in batches
        ),
        requests=_with_prompts(question, device, running) if running else None,
        ops=step_table(served, placement, running, question.context) if running else (),
    )


def _with_prompts(question: Question, device: DeviceSpec, num_requests: int) -> RequestSpeed:
    return request_speed(
        question.served,
        question.placement,
        device,
        num_requests,
        question.context - question.output_tokens,
        question.output_tokens,
        question.share,
    )
