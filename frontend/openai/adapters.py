"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter: adapters come and go while the server runs."""

from __future__ import annotations

import msgspec
from aiohttp import web

from pagewire.ipc.errors import InvalidRequest, NotFound

from .bodies.json_body import JsonBody
from .bodies.schema import ShortText
from .serving import SERVING, Serving

MAY_CHANGE = web.AppKey("adapters_may_change", bool)

_LOAD_LIMIT_S = 120.0  # every executor reads the files, behind the steps that it has in hand


class LoadAdapterRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/load_lora_adapter."""

    lora_name: ShortText
    lora_path: str
    load_inplace: bool = False
    base_model_name: ShortText | None = None


class UnloadAdapterRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/unload_lora_adapter. The number is the client's own, and means nothing here."""

    lora_name: ShortText
    lora_int_id: int | None = None


_LOAD, _UNLOAD = JsonBody(LoadAdapterRequest), JsonBody(UnloadAdapterRequest)


async def load_adapter(request: web.Request) -> web.Response:
    """Have the engine read an adapter; it can be asked for when this is answered."""
    serving = _admitted(request)
    body = await _LOAD.read(request)
    if body.lora_name in serving.info.served_model_names:
        raise InvalidRequest(
            f"lora_name {body.lora_name!r} is the name of the model itself; give the adapter another one.",
            param="lora_name",
        )
    await serving.generator.client.call_utility(
        "load_adapter",
        body.lora_name,
        body.lora_path,
        body.base_model_name or "",
        body.load_inplace,
        timeout_s=_LOAD_LIMIT_S,
    )
    return web.Response(text=f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def unload_adapter(request: web.Request) -> web.Response:
    """Have the engine forget an adapter; requests that have it run to their ends."""
    serving = _admitted(request)
    body = await _UNLOAD.read(request)
    await serving.generator.client.call_utility("unload_adapter", body.lora_name)
    return web.Response(text=f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _admitted(request: web.Request) -> Serving:
    """Return what is served, if its adapters may be changed over HTTP."""
    if not request.app[MAY_CHANGE]:
        raise NotFound(
            "Adapters are changed at run time with --enable-admin or --allow-runtime-lora-updating alone: whoever may "
            "load one has any directory of this machine read."
        )
    return request.app[SERVING]
