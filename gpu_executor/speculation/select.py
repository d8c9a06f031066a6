"""Who guesses tokens: the one place where it is chosen, once at start."""

from __future__ import annotations

from pagewire.ipc.speculative_config import SpeculativeConfig

from .prompt_lookup import PromptLookup
from .proposer import Proposer
from .suffix_lookup import SuffixLookup


def make_proposer(config: SpeculativeConfig) -> Proposer | None:
    """Return what guesses, None if nobody is to."""
    match config.method:
        case None:
            return None
        case "ngram":
            return PromptLookup(config.num_tokens, longest=config.prompt_lookup_max, shortest=config.prompt_lookup_min)
        case "suffix":
            return SuffixLookup(config.num_tokens, shortest=config.prompt_lookup_min)
        case "draft_model":
            raise NotImplementedError(config.method)
