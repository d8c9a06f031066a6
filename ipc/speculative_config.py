"""How tokens are guessed ahead of the model, which then checks several of them in one step."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from .errors import ConfigError

SpeculativeMethod = Literal["ngram", "suffix", "draft_model"]

DEFAULT_NUM_TOKENS = 8


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Drafts: tokens that a proposer guesses. Answers are those that there would be without, token for token."""

    speculative_method: Annotated[
        SpeculativeMethod | None,
        Meta(
            description="Who guesses. ngram: the request's own text; suffix: that, and what the server wrote lately; "
            "draft_model: --speculative-model. Default: nobody, or draft_model if a model is given."
        ),
    ] = None
    speculative_model: Annotated[
        str | None, Meta(description="A smaller model with the same vocabulary, named as --model is.")
    ] = None
    speculative_model_path: str = ""  # resolved by whoever starts the engine; not a flag
    num_speculative_tokens: Annotated[
        int | None,
        Meta(
            description="Most tokens guessed at once for a request; fewer where they would not pay. "
            f"Default: {DEFAULT_NUM_TOKENS}."
        ),
    ] = None
    prompt_lookup_max: Annotated[int, Meta(description="Longest run of last tokens that is looked up (ngram).")] = 4
    prompt_lookup_min: Annotated[
        int, Meta(description="Shortest run of last tokens that is looked up (ngram, suffix).")
    ] = 2

    def __post_init__(self) -> None:
        if self.num_speculative_tokens is not None:
            if not 1 <= self.num_speculative_tokens <= 64:
                raise ConfigError(f"--num-speculative-tokens {self.num_speculative_tokens} must be from 1 to 64.")
            if self.method is None:
                raise ConfigError(
                    "--num-speculative-tokens says how many tokens are guessed, and nothing says by whom; give "
                    "--speculative-model MODEL or --speculative-method ngram."
                )
        if self.method == "draft_model" and self.speculative_model is None:
            raise ConfigError("--speculative-method draft_model needs --speculative-model MODEL.")
        if self.method in ("ngram", "suffix") and self.speculative_model is not None:
            raise ConfigError(
                f"--speculative-method {self.method} guesses without a model; leave --speculative-model out."
            )
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max <= 32:
            raise ConfigError(
                f"--prompt-lookup-min {self.prompt_lookup_min} and --prompt-lookup-max {self.prompt_lookup_max} must "
                "be from 1 to 32, the first at most the second."
            )

    @property
    def method(self) -> SpeculativeMethod | None:
        """Who guesses; None: nobody."""
        if self.speculative_method is None and self.speculative_model is not None:
            return "draft_model"
        return self.speculative_method

    @property
    def num_tokens(self) -> int:
        """Most tokens guessed at once for a request; 0 if nobody guesses."""
        if self.method is None:
            return 0
        return self.num_speculative_tokens or DEFAULT_NUM_TOKENS
