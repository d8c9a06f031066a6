"""Asking for a LoRA adapter offline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pagewire.ipc.errors import InvalidRequest

from ..client.engine_client import AsyncEngineClient

_LOAD_LIMIT_S = 120.0


class LoRARequest(NamedTuple):
    """An adapter by its name, a number of the caller's own (it means nothing here), and its directory."""

    lora_name: str
    lora_int_id: int
    lora_path: str


async def load_requested(client: AsyncEngineClient, request: LoRARequest | None) -> str:
    """Return the name of the adapter that is asked for, and load it if nobody has; empty: none is asked for.

    Raises:
        InvalidRequest: it can't be loaded, or its name belongs to another directory.
    """
    if request is None:
        return ""
    for adapter in client.adapters:
        if adapter.name == request.lora_name:
            if adapter.path != request.lora_path:
                raise InvalidRequest(
                    f"The adapter {adapter.name!r} is loaded from {adapter.path}; give the one in "
                    f"{request.lora_path} another name.",
                    param="lora_request",
                )
            return adapter.name
    await client.call_utility("load_adapter", request.lora_name, request.lora_path, timeout_s=_LOAD_LIMIT_S)
    return request.lora_name


def read_lora_requests(
    given: LoRARequest | Sequence[LoRARequest | None] | None, num_prompts: int
) -> list[LoRARequest | None]:
    """Return the adapter of each prompt: one may be given for all, or one or None each.

    Raises:
        InvalidRequest: there are more or fewer than prompts.
    """
    if given is None or isinstance(given, LoRARequest):
        return [given] * num_prompts
    if len(given) != num_prompts:
        raise InvalidRequest(
            f"lora_request has {len(given)} entries for {num_prompts} prompts; give one, or one each.",
            param="lora_request",
        )
    return list(given)
