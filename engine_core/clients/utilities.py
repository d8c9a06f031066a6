"""What a client may ask besides tokens (`CallUtility.method`).

block_tables        every living child: request_id, child, status, num_tokens, num_computed_tokens, num_cached_tokens,
                    block_table, and the ref_count of each of its blocks
pool                num_blocks, num_free_blocks, num_used_blocks, num_cached_blocks, ref_counts of the used blocks
stats               the `StepStats` by field name
view                stats, and what people watch: `engine_view`. Bounded, whatever the pool's size
reset_prefix_cache  reset_running_requests, reset_external (both false unless given) -> forget all cached blocks; true.
                    With the first, what runs is computed again. There is no cache outside
abort_requests      labels -> end the requests that bear one of them, or one with -0, -1, ... behind it; without any,
                    all; how many
check_invariants    check the block accounting; True, or an error that names what is wrong
drain               refuse new requests from here on, but none that a client adds again; the number of those that have
                    not ended
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from pagewire.ipc.errors import EngineError, InvalidRequest, PagewireError
from pagewire.ipc.outputs import FinishReason, StepStats, UtilityResult
from pagewire.ipc.requests import CallUtility

from ..admission import Admission
from ..kv.cache_manager import CacheManager
from ..output_processor import OutputProcessor
from ..request import Child
from ..rest.rest import Rest
from .view import engine_view

PlainValue = Any  # Any: what msgpack can carry; each utility's shape is documented above


class Utilities:
    """Answers utility calls out of the engine's state."""

    def __init__(
        self,
        cache: CacheManager,
        processor: OutputProcessor,
        admission: Admission,
        rest: Rest,
        *,
        stats: Callable[[], StepStats],
        check_invariants: Callable[[], None],
    ) -> None:
        self._cache = cache
        self._processor = processor
        self._admission = admission
        self._rest = rest
        self._stats = stats
        self._check_invariants = check_invariants
        self._methods: dict[str, Callable[[CallUtility], PlainValue]] = {
            "block_tables": _without_arguments(self._block_tables),
            "pool": _without_arguments(self._pool),
            "stats": _without_arguments(self._stats_by_name),
            "view": _without_arguments(self._view),
            "reset_prefix_cache": self._reset_prefix_cache,
            "abort_requests": self._abort_requests,
            "check_invariants": _without_arguments(self._checked),
            "drain": _without_arguments(self._drain),
        }

    def call(self, call: CallUtility) -> UtilityResult:
        """Return the answer to a call; what is wrong with it comes back as its error."""
        try:
            method = self._methods.get(call.method)
            if method is None:
                known = ", ".join(self._methods)
                raise InvalidRequest(f"There is no utility {call.method!r}; the engine knows {known}.", param="method")
            return UtilityResult(call_id=call.call_id, result=method(call))
        except PagewireError as exc:
            return UtilityResult(call_id=call.call_id, error=exc.to_info())

    def _block_tables(self) -> PlainValue:
        requests = self._processor.requests.values()
        return [self._block_table(child) for request in requests for child in request.children.values()]

    def _block_table(self, child: Child) -> PlainValue:
        blocks = self._cache.pool.blocks
        return {
            "request_id": child.request.request_id,
            "child": child.index,
            "status": child.status.name.lower(),
            "num_tokens": len(child.token_ids),
            "num_computed_tokens": child.num_computed_tokens,
            "num_cached_tokens": child.request.num_cached_tokens,
            "block_table": list(child.block_ids),
            "ref_counts": [blocks[block_id].ref_count for block_id in child.block_ids],
        }

    def _pool(self) -> PlainValue:
        pool = self._cache.pool
        return {
            "num_blocks": len(pool.blocks),
            "num_free_blocks": pool.num_free_blocks,
            "num_used_blocks": pool.num_used_blocks,
            "num_cached_blocks": len(self._cache.prefix_cache),
            "ref_counts": {block.block_id: block.ref_count for block in pool.blocks if block.ref_count},
        }

    def _stats_by_name(self) -> PlainValue:
        by_name = msgspec.structs.asdict(self._stats())
        for name in ("accepted_at", "step_sizes", "running_adapters", "waiting_adapters"):
            by_name[name] = list(by_name[name])  # as the wire has it
        return by_name

    def _view(self) -> PlainValue:
        return {"stats": self._stats_by_name(), **engine_view(self._cache, self._processor)}

    def _reset_prefix_cache(self, call: CallUtility) -> PlainValue:
        if len(call.args) > 2 or not all(isinstance(arg, bool) for arg in call.args):
            raise InvalidRequest(f"{call.method} takes two booleans; got {call.args}.", param="args")
        self._rest.forget_computed(runs_again=bool(call.args and call.args[0]))
        return True

    def _abort_requests(self, call: CallUtility) -> PlainValue:
        labels = set(call.args)
        chosen = [
            request
            for request in self._processor.requests.values()
            if not labels or request.label in labels or _whole_label(request.label) in labels
        ]
        for request in chosen:
            self._processor.end_early(request, FinishReason.ABORT)
        return len(chosen)

    def _drain(self) -> PlainValue:
        self._admission.drain()
        return len(self._processor.requests)

    def _checked(self) -> PlainValue:
        try:
            self._check_invariants()
        except AssertionError as exc:
            raise EngineError(f"The engine's accounting is wrong: {exc}") from exc
        return True


def _without_arguments(method: Callable[[], PlainValue]) -> Callable[[CallUtility], PlainValue]:
    def call(call: CallUtility) -> PlainValue:
        if call.args:
            raise InvalidRequest(f"{call.method} takes no arguments; got {call.args}.", param="args")
        return method()

    return call


def _whole_label(label: str) -> str:
    """Return the label of a call with several prompts, whose requests are numbered behind it."""
    whole, _, number = label.rpartition("-")
    return whole if number.isdecimal() else label
