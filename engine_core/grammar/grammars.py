"""What an engine does about grammars: holds requests until theirs are compiled, and makes the masks of its steps."""

from __future__ import annotations

from pagewire.ipc.errors import EngineError
from pagewire.ipc.outputs import FinishReason
from pagewire.ipc.requests import AddRequest, GenerateTask
from pagewire.ipc.steps import RowMasks
from pagewire.ipc.structured_outputs import Grammar

from ..output_processor import OutputProcessor
from ..request import Request
from ..steps.in_flight import StepInFlight
from .gate import CompileResult, GrammarGate
from .masks import masks_of
from .matcher import CompiledGrammar


class Grammars:
    """Joins the gate to the requests.

    Args:
        processor: owns the requests.
        gate: where they wait.
        vocab_size: ids that can be drawn.
    """

    def __init__(self, processor: OutputProcessor, gate: GrammarGate, vocab_size: int) -> None:
        self._processor = processor
        self._gate = gate
        self._vocab_size = vocab_size

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

    def take_order(self) -> Grammar | None:
        """Return the next grammar that somebody waits for and nobody was asked to compile yet."""
        return self._gate.take_order()

    def finish(self, result: CompileResult) -> None:
        """Let in the requests that waited for a grammar, or refuse them if there is none."""
        for request in self._gate.finish(result):
            if result.compiled is not None:
                self._let_in(request, result.compiled)
            else:
                assert result.error is not None, "a grammar, or why there is none"
                self._processor.end_early(request, FinishReason.ERROR, result.error.to_info())

    def masks_of(self, step: StepInFlight) -> list[RowMasks]:
        """Return the masks of a step; requests whose grammars can't be followed any further fail."""
        rows, failed = masks_of(step)
        for request, error in failed:
            if self._processor.requests.get(request.key) is request:
                self._processor.end_early(request, FinishReason.ERROR, error.to_info())
        return rows

    def _let_in(self, request: Request, compiled: CompiledGrammar) -> None:
        for child in request.children.values():
            child.matcher = compiled.start(request.end_token_ids, self._vocab_size)
            # Of a request that an earlier core had, what its client has seen.
            if not all(map(child.matcher.advance, child.token_ids[request.num_prompt_tokens :])):
                error = EngineError("The tokens that the request has break its grammar.")
                self._processor.end_early(request, FinishReason.ERROR, error.to_info())
                return
        self._processor.let_in(request)
