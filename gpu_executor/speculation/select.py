"""Who guesses tokens by text alone: the one place where it is chosen, once at start."""

from __future__ import annotations

from pagewire.ipc.speculative_config import SpeculativeConfig

from .prompt_lookup import PromptLookup
from .proposer import Proposer
from .suffix_lookup import SuffixLookup


def make_text_proposer(config: SpeculativeConfig) -> Proposer | None:
    """Return what guesses out of what was written; None if nobody is to, or a model."""
    match config.method:
        case "ngram":
            return PromptLookup(config.num_tokens, longest=config.prompt_lookup_max, shortest=config.prompt_lookup_min)
        case "suffix":
            return SuffixLookup(config.num_tokens, shortest=config.prompt_lookup_min)
        case _:
            return None
