"""pagewire: an event-driven actor engine that serves large language models.

The public names are imported on first use, so that `import pagewire` costs milliseconds and no process loads more
than it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from pagewire.version import __version__

if TYPE_CHECKING:
    from pagewire.frontend.client.engine_client import AsyncEngineClient
    from pagewire.frontend.client.key_files import read_client_keys
    from pagewire.frontend.client.sync_client import EngineClient
    from pagewire.frontend.offline.beam_search import BeamSearchOutput, BeamSearchSequence
    from pagewire.frontend.offline.embed import EmbeddingOutput, EmbeddingRequestOutput
    from pagewire.frontend.offline.llm import LLM
    from pagewire.frontend.offline.lora_request import LoRARequest
    from pagewire.frontend.offline.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
    from pagewire.frontend.text.beam_search import BeamSearchParams
    from pagewire.ipc.curve import ClientKeys
    from pagewire.ipc.errors import (
        ClientGivenUp,
        ConfigError,
        ContextTooLong,
        DeadlineExceeded,
        EngineDead,
        EngineError,
        ExecutorDied,
        InvalidRequest,
        MachineError,
        NotFound,
        Overloaded,
        PagewireError,
        PoisonRequest,
        ProtocolError,
        RankLost,
        RequestError,
        StartError,
    )
    from pagewire.ipc.requests import EmbedTask
    from pagewire.ipc.sampling_params import SamplingParams
    from pagewire.ipc.structured_outputs import StructuredOutputs

__all__ = [
    "LLM",
    "AsyncEngineClient",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "ClientGivenUp",
    "ClientKeys",
    "CompletionOutput",
    "ConfigError",
    "ContextTooLong",
    "DeadlineExceeded",
    "EmbedTask",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineClient",
    "EngineDead",
    "EngineError",
    "ExecutorDied",
    "InvalidRequest",
    "LoRARequest",
    "Logprob",
    "MachineError",
    "NotFound",
    "Overloaded",
    "PagewireError",
    "PoisonRequest",
    "ProtocolError",
    "RankLost",
    "RequestError",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "StartError",
    "StructuredOutputs",
    "__version__",
    "read_client_keys",
]

_MODULES = {
    "pagewire.frontend.client.engine_client": ("AsyncEngineClient",),
    "pagewire.frontend.client.key_files": ("read_client_keys",),
    "pagewire.frontend.offline.beam_search": ("BeamSearchOutput", "BeamSearchSequence"),
    "pagewire.frontend.offline.embed": ("EmbeddingOutput", "EmbeddingRequestOutput"),
    "pagewire.frontend.offline.llm": ("LLM",),
    "pagewire.frontend.offline.lora_request": ("LoRARequest",),
    "pagewire.frontend.offline.outputs": ("CompletionOutput", "Logprob", "RequestMetrics", "RequestOutput"),
    "pagewire.frontend.client.sync_client": ("EngineClient",),
    "pagewire.frontend.text.beam_search": ("BeamSearchParams",),
    "pagewire.ipc.curve": ("ClientKeys",),
    "pagewire.ipc.errors": (
        "ClientGivenUp", "ConfigError", "ContextTooLong", "DeadlineExceeded", "EngineDead", "EngineError",
        "ExecutorDied", "InvalidRequest", "MachineError", "NotFound", "Overloaded", "PagewireError", "PoisonRequest",
        "ProtocolError", "RankLost", "RequestError", "StartError",
    ),
    "pagewire.ipc.requests": ("EmbedTask",),
    "pagewire.ipc.sampling_params": ("SamplingParams",),
    "pagewire.ipc.structured_outputs": ("StructuredOutputs",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'pagewire' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
