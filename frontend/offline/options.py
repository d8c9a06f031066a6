"""The options of `LLM`: the engine's flags, spelled as in Python."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pagewire.ipc.config import EngineConfig
from pagewire.ipc.errors import ConfigError

from ..cli.flags import build_engine_config, engine_flags
from ..cli.needless import explain_idle
from ..cli.refused import CHOICE_ALIASES, SERVING, explain_unknown_flag

logger = logging.getLogger(__name__)


def engine_config_of(model: str | None, options: Mapping[str, object]) -> EngineConfig:
    """Return the config that an `LLM`'s options describe.

    Raises:
        ConfigError: an option is unknown or can't be met.
    """
    known = {flag.field for flag in engine_flags()}
    given: dict[str, object] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name in known:
            given[name] = CHOICE_ALIASES.get(name, {}).get(value, value) if isinstance(value, str) else value
            continue
        redundant = {**SERVING.redundant, "tokenizer": () if model is None else (model.lower(),)}
        line = explain_idle(f"--{name}", value, SERVING.needless, redundant)
        if line is None:
            reason = explain_unknown_flag(f"--{name}", [f"--{field.replace('_', '-')}" for field in known], {})
            raise ConfigError(f"LLM does not take {name}: {reason}")
        logger.warning("LLM: %s", line)
    # One caller gives all its prompts at once and waits for them all: none of them may be turned away, and the time
    # between two tokens of one answer is nothing to them.
    given = {"max_waiting_requests": 0, "max_waiting_tokens": 0, "target_itl_ms": 0.0, **given}
    return build_engine_config(given if model is None else {**given, "model": model})
