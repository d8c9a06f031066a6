"""What an engine does about grammars: holds requests until theirs are compiled, and makes the masks of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pagewire.ipc.errors import EngineError
from pagewire.ipc.outputs import FinishReason
from pagewire.ipc.requests import AddRequest, GenerateTask
from pagewire.ipc.steps import RowMasks
from pagewire.ipc.structured_outputs import Grammar

from ..output_processor import OutputProcessor
from ..request import Request
from ..steps.in_flight import StepInFlight
from .compiled import CompiledGrammar, TokenMatcher
from .gate import CompileResult, GrammarGate, Lane
from .masks import DueMasks, masks_of
from .matcher import AutomatonFull


class Grammars:
    """Joins the gate to the requests. It does no work that takes long: it gives orders, and takes results in.

    Args:
        processor: owns the requests.
        gate: where they wait.
        vocab_size: ids that can be drawn.
        on_change: called when something may be scheduled that could not be before.
    """

    def __init__(
        self, processor: OutputProcessor, gate: GrammarGate, vocab_size: int, on_change: Callable[[], None]
    ) -> None:
        self._processor = processor
        self._gate = gate
        self._vocab_size = vocab_size
        self._on_change = on_change
        self._due = DueMasks()
        self._successors: list[CompiledGrammar] = []  # to be ordered

    @property
    def num_held(self) -> int:
        """Requests that wait for a grammar."""
        return self._gate.num_held

    def check(self, request: AddRequest) -> None:
        """Refuse a grammar where none are followed.

        Raises:
            InvalidRequest: the engine was started so.
        """
        if isinstance(request.task, GenerateTask):
            self._gate.check(request.task.grammar)

    def admit(self, request: Request) -> None:
        """Have a valid request scheduled, once its grammar is there if it has one."""
        if request.grammar is None:
            self._processor.accept(request)
            return
        self._processor.hold(request)
        compiled = self._gate.find(request.grammar)
        if compiled is None:
            self._gate.hold(request.grammar, request)
        else:
            self._let_in(request, compiled)

    def take_order(self, lane: Lane) -> Grammar | None:
        """Return the next grammar for a lane, that somebody waits for and nobody was asked to compile yet."""
        return self._gate.take_order(lane)

    def finish(self, result: CompileResult) -> None:
        """Let in the requests that waited for a grammar, or refuse them if there is none."""
        for request in self._gate.finish(result):
            if result.compiled is not None:
                self._let_in(request, result.compiled)
            else:
                assert result.error is not None, "a grammar, or why there is none"
                self._processor.end_early(request, FinishReason.ERROR, result.error.to_info())
        self._on_change()

    def take_successor_orders(self) -> list[CompiledGrammar]:
        """Return the grammars whose next automaton is to be made, each once."""
        orders, self._successors = self._successors, []
        return orders

    def succeed(self, grammar: CompiledGrammar, successor: TokenMatcher | None) -> None:
        """Take a grammar's next automaton in, None if it can't be made: steps that wait for it go on."""
        grammar.succeed(successor)
        self._due.retry()

    def note_step(self, step: StepInFlight) -> None:
        """Note a step that is sent: masks are due if any of its rows is masked."""
        self._due.add(step)

    def forget_steps(self) -> None:
        """Forget the steps that were sent: whoever had them is gone."""
        self._due.clear()

    def take_masks(self, in_flight: Iterable[StepInFlight]) -> list[tuple[int, list[RowMasks]]]:
        """Return the masks that can be made by now, with their step ids, each once.

        Requests whose grammars can't be followed any further fail.

        Args:
            in_flight: all steps, the oldest first.
        """
        made: list[tuple[int, list[RowMasks]]] = []
        for step in self._due.take(in_flight):
            try:
                rows, failed = masks_of(step)
            except AutomatonFull as full:
                self._due.delay(step)
                self._order(full.grammar, is_awaited=True)
                continue
            for request, error in failed:
                if self._processor.requests.get(request.key) is request:
                    self._processor.end_early(request, FinishReason.ERROR, error.to_info())
            for item in step.scheduled:
                if item.child.matcher is not None:
                    self._order(item.child.matcher.grammar)
            made.append((step.step_id, rows))
        return made

    def _order(self, grammar: CompiledGrammar, *, is_awaited: bool = False) -> None:
        if grammar.order_successor(is_awaited=is_awaited):
            self._successors.append(grammar)

    def _let_in(self, request: Request, compiled: CompiledGrammar) -> None:
        for child in request.children.values():
            child.matcher = compiled.start(request.end_token_ids, self._vocab_size)
            # Of a request that an earlier core had, what its client has seen.
            if not all(map(child.matcher.advance, child.token_ids[request.num_prompt_tokens :])):
                error = EngineError("The tokens that the request has break its grammar.")
                self._processor.end_early(request, FinishReason.ERROR, error.to_info())
                return
        self._processor.let_in(request)
