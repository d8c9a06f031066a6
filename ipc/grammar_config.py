"""Whether outputs may be constrained by grammars."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class GrammarConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Structured output: `response_format`, `structured_outputs` and forced calls of tools."""

    structured_outputs_backend: Annotated[
        Literal["auto", "guidance", "none"],
        Meta(
            description="What keeps outputs to a schema, an expression or a grammar. auto, guidance: llguidance; "
            "none: requests for it are refused."
        ),
    ] = "auto"
