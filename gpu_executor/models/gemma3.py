"""Gemma 3, the text model: Gemma 2 with norms on each query and key head, which took the place of the bounds.

Five layers of six attend to a window and rotate by a base of their own; the sixth attends fully, and only its rotation
is stretched for long contexts. All of that comes from the configuration.

Source: Gemma Team, Google 2025 (arXiv 2503.19786).
"""

from __future__ import annotations

from .gemma2 import Gemma2ForCausalLM


class Gemma3ForCausalLM(Gemma2ForCausalLM):
    """Gemma 3 of all sizes, without images."""

    has_qk_norm = True
