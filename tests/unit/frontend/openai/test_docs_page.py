"""GET /docs: a page that needs nobody else."""

from __future__ import annotations

import re

from pagewire.ipc.server_config import ServerConfig
from tests.support.http_server import running_server


async def test_the_page_loads_the_description_and_asks_no_other_host():
    async with running_server(config=ServerConfig(api_key=("secret",))) as server:
        async with server.http.get("/docs") as response:
            page = await response.text()
            assert (response.status, response.content_type) == (200, "text/html")
            assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        assert 'fetch("openapi.json"' in page
        assert not re.search(r"(src|href)=\"?(https?:)?//", page)
        assert "innerHTML" not in page, "what the description says is text"
        async with server.http.get("/openapi.json") as response:
            assert response.status == 401


async def test_a_server_may_keep_its_description_to_itself():
    async with running_server(config=ServerConfig(disable_fastapi_docs=True)) as server:
        for path in ("/docs", "/openapi.json"):
            async with server.http.get(path) as response:
                assert response.status == 404
