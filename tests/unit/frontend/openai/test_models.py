"""GET /v1/models."""

from __future__ import annotations

from tests.support.http_server import running_server


async def test_each_served_name_has_a_card():
    async with running_server(info={"served_model_names": ("short", "org/long"), "model": "org/long"}) as server:
        async with server.http.get("/v1/models") as response:
            answer = await response.json()
        assert answer["object"] == "list"
        assert [card["id"] for card in answer["data"]] == ["short", "org/long"]
        card = {
            "id": "org/long",
            "object": "model",
            "created": 1_700_000_000,
            "owned_by": "pagewire",
            "root": "org/long",
            "parent": None,
            "max_model_len": 256,
        }
        [permission] = answer["data"][1].pop("permission")
        assert (permission["object"], permission["allow_sampling"]) == ("model_permission", True)
        assert answer["data"][1] == card
        async with server.http.get("/v1/models/org/long") as response:
            assert await response.json() == {**card, "permission": [permission]}


async def test_other_names_do_not_exist():
    async with running_server() as server, server.http.get("/v1/models/gpt-4") as response:
        answer = await response.json()
        assert response.status == 404
        assert (answer["error"]["code"], answer["error"]["param"]) == ("model_not_found", "model")
