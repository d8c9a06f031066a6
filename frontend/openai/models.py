"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from aiohttp import web

from pagewire.ipc.adapters import Adapter

from .bodies.json_body import json_response
from .bodies.responses import ModelCard, ModelList, ModelPermission
from .errors import ModelNotFound
from .serving import SERVING, Serving, request_id


async def list_models(request: web.Request) -> web.Response:
    """List the names that this server answers to."""
    serving = request.app[SERVING]
    cards = [_card(serving, name) for name in serving.info.served_model_names]
    cards += [_adapter_card(serving, adapter) for adapter in serving.adapters]
    return json_response(ModelList(data=cards), request_id(request))


async def retrieve_model(request: web.Request) -> web.Response:
    """Describe one of them. Names may hold slashes."""
    serving = request.app[SERVING]
    name = request.match_info["model"]
    if name in serving.info.served_model_names:
        return json_response(_card(serving, name), request_id(request))
    for adapter in serving.adapters:
        if adapter.name == name:
            return json_response(_adapter_card(serving, adapter), request_id(request))
    raise ModelNotFound(name)


def _card(serving: Serving, name: str) -> ModelCard:
    info = serving.info
    return ModelCard(
        id=name,
        created=serving.started_at,
        root=info.model,
        max_model_len=info.max_model_len,
        permission=[_permission(serving, name)],
    )


def _adapter_card(serving: Serving, adapter: Adapter) -> ModelCard:
    info = serving.info
    return ModelCard(
        id=adapter.name,
        created=serving.started_at,
        root=adapter.path,
        parent=adapter.base_model_name or info.served_model_names[0],
        max_model_len=info.max_model_len,
        permission=[_permission(serving, adapter.name)],
    )


def _permission(serving: Serving, name: str) -> ModelPermission:
    return ModelPermission(id=f"modelperm-{name}", created=serving.started_at)
