"""The progress bar of `LLM.generate`: finished prompts and speeds, in vLLM's wording."""

from __future__ import annotations

from types import TracebackType

from tqdm.auto import tqdm


class Progress:
    """Counts finished requests; use it in a `with` statement."""

    def __init__(self, num_requests: int, *, is_shown: bool) -> None:
        self._num_input_tokens = 0
        self._num_output_tokens = 0
        self._bar = tqdm(
            total=num_requests,
            desc="Processed prompts",
            dynamic_ncols=True,
            disable=not is_shown,
            postfix=_speeds(0, 0),
        )

    def request_done(self, num_input_tokens: int, num_output_tokens: int) -> None:
        """One more request is finished."""
        self._num_input_tokens += num_input_tokens
        self._num_output_tokens += num_output_tokens
        if self._bar.disable:
            return
        elapsed_s = self._bar.format_dict["elapsed"]
        if elapsed_s:
            self._bar.postfix = _speeds(self._num_input_tokens / elapsed_s, self._num_output_tokens / elapsed_s)
        self._bar.update()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.close()


def _speeds(input_per_s: float, output_per_s: float) -> str:
    return f"est. speed input: {input_per_s:.2f} toks/s, output: {output_per_s:.2f} toks/s"
