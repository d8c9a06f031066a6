"""What a checkpoint states about its vocabulary besides the vocabulary itself."""

from __future__ import annotations

import msgspec


class TokenizerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts, whatever file format they were read from.

    Attributes:
        special_tokens: role -> token, as templates name them: "bos_token", "eos_token", "unk_token", "pad_token", ...
        chat_templates: name -> Jinja source. The one used unless another is asked for is "default".
        strips_after_special: see `TokenPieces`.
    """

    special_tokens: dict[str, str] = {}
    chat_templates: dict[str, str] = {}
    strips_after_special: bool = False
