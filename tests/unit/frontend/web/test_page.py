"""GET / and /ui/...: open, whole in themselves, and unable to run what a model writes."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from pagewire.frontend.web.page import Page
from pagewire.ipc.server_config import ServerConfig
from tests.support.http_server import running_server

STATIC = resources.files("pagewire.frontend.web") / "static"


def text_of(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


async def test_the_page_is_open_and_the_data_is_not():
    async with running_server(config=ServerConfig(api_key=("secret",))) as server:
        for path, content_type in (("/", "text/html"), ("/ui/app.js", "text/javascript"), ("/ui/base.css", "text/css")):
            async with server.http.get(path) as response:
                assert (response.status, response.content_type) == (200, content_type)
                policy = response.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert response.headers["X-Content-Type-Options"] == "nosniff"
        for path in ("/v1/models", "/v1/engine/events", "/ui/../v1/models"):
            async with server.http.get(path) as response:
                assert response.status == 401


async def test_a_browser_that_has_a_file_is_told_so():
    async with running_server() as server:
        async with server.http.get("/ui/app.js") as response:
            etag = response.headers["ETag"]
            assert response.headers["Cache-Control"] == "no-cache"
        async with server.http.get("/ui/app.js", headers={"If-None-Match": etag}) as response:
            assert (response.status, await response.read()) == (304, b"")
        async with server.http.get("/ui/app.js", headers={"If-None-Match": '"other"'}) as response:
            assert response.status == 200


@pytest.mark.parametrize("path", ["/ui/none.js", "/ui/..%2f__init__.py", "/ui/"])
async def test_what_is_no_file_of_the_page_is_not_served(path):
    async with running_server() as server, server.http.get(path) as response:
        assert response.status == 404


async def test_it_can_be_switched_off():
    async with running_server(config=ServerConfig(ui=False)) as server:
        for path in ("/", "/ui/app.js"):
            async with server.http.get(path) as response:
                assert response.status == 404


@pytest.mark.parametrize("name", Page().names)
def test_files_name_no_other_host_and_build_no_markup_of_text(name):
    text = text_of(name).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"(src|href)=\"(https?:)?//|@import|url\(\"?http", text)
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert way not in text
    assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son[a-z]+=\"", text), "the policy forbids it"


def test_modules_import_only_what_there_is():
    for name in Page().names:
        if name.endswith(".js"):
            for imported in re.findall(r"from \"\./([^\"]+)\"", text_of(name)):
                assert imported in Page().names, f"{name}: {imported}"


def test_every_file_of_the_page_has_one_concept():
    for name in Page().names:
        assert text_of(name).count("\n") <= 350, name
