"""HTTPS: what the certificate flags open, and what they refuse before anything is loaded."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import aiohttp
import pytest

from pagewire.frontend.http import server as http_server
from pagewire.frontend.http.access.tls import load_tls
from pagewire.frontend.http.listener import describe_listeners, open_listeners
from pagewire.ipc.errors import ConfigError
from pagewire.ipc.server_config import ServerConfig
from tests.support.http_server import running_server

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command to make certificates with")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a self-signed certificate for 127.0.0.1, one of a client, and an encrypted key."""
    directory = tmp_path_factory.mktemp("certificates")
    for name in ("server", "client"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2", "-subj", f"/CN={name}",
             "-addext", "subjectAltName=IP:127.0.0.1"],
            cwd=directory, check=True, capture_output=True,
        )  # fmt: skip
    subprocess.run(
        ["openssl", "ec", "-aes256", "-passout", "pass:secret", "-in", "server.key", "-out", "locked.key"],
        cwd=directory, check=True, capture_output=True,
    )  # fmt: skip
    return directory


@contextlib.asynccontextmanager
async def https_server(config: ServerConfig):
    """The URL of a server with the given certificates."""
    async with running_server("x") as server, contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setblocking(False)
        app = http_server.create_app(server.serving, config)
        await stack.enter_async_context(http_server.serve(app, [listener], tls=load_tls(config)))
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"


async def test_answers_and_streams_come_over_tls(certificates: Path):
    config = ServerConfig(ssl_certfile=str(certificates / "server.pem"), ssl_keyfile=str(certificates / "server.key"))
    trusting = ssl.create_default_context(cafile=str(certificates / "server.pem"))
    async with https_server(config) as url, aiohttp.ClientSession(url) as http:
        for stream in (False, True):
            body = {"prompt": "p", "stream": stream}
            async with http.post("/v1/completions", json=body, ssl=trusting) as response:
                assert response.status == 200
                assert '"text":"x"' in await response.text()
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await http.get("/health")
        with pytest.raises(aiohttp.ClientError):
            await http.get(url.replace("https", "http") + "/health")


async def test_client_without_a_certificate_is_turned_away_where_one_is_required(certificates: Path):
    config = ServerConfig(
        ssl_certfile=str(certificates / "server.pem"),
        ssl_keyfile=str(certificates / "server.key"),
        ssl_ca_certs=str(certificates / "client.pem"),
        ssl_cert_reqs=2,
    )
    bare = ssl.create_default_context(cafile=str(certificates / "server.pem"))
    known = ssl.create_default_context(cafile=str(certificates / "server.pem"))
    known.load_cert_chain(certificates / "client.pem", certificates / "client.key")
    async with https_server(config) as url, aiohttp.ClientSession(url) as http:
        with pytest.raises(aiohttp.ClientError):
            await http.get("/health", ssl=bare)
        async with http.get("/health", ssl=known) as response:
            assert response.status == 200


def test_plain_http_without_a_certificate():
    assert load_tls(ServerConfig()) is None


def test_unusable_files_end_the_start_and_are_named(certificates: Path):
    certificate = str(certificates / "server.pem")
    cases = {
        r"nothing\.pem can't be read": {"ssl_certfile": str(certificates / "nothing.pem")},
        "--ssl-keyfile .*client.key can't be used": {"ssl_keyfile": str(certificates / "client.key")},
        "--ssl-certfile .* can't be used": {},  # the certificate alone holds no key
        "is encrypted": {"ssl_keyfile": str(certificates / "locked.key")},
    }
    for text, options in cases.items():
        config = ServerConfig(**{"ssl_certfile": certificate, **options}, port=0)
        with pytest.raises(ConfigError, match=text), open_listeners(config):
            pass


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ssl_keyfile": "k"}, "--ssl-keyfile needs --ssl-certfile"),
        ({"ssl_ca_certs": "c"}, "--ssl-ca-certs needs --ssl-certfile"),
        ({"ssl_cert_reqs": 2}, "--ssl-cert-reqs needs --ssl-certfile"),
        ({"ssl_certfile": "c", "ssl_cert_reqs": 2}, "needs --ssl-ca-certs"),
        ({"ssl_certfile": "c", "ssl_cert_reqs": 3}, "must be 0, 1 or 2"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        ServerConfig(**options)


def test_log_shows_the_scheme():
    with open_listeners(ServerConfig(host="127.0.0.1", port=0)) as listeners:
        assert describe_listeners(listeners, is_tls=True).startswith("https://127.0.0.1:")
        assert describe_listeners(listeners).startswith("http://127.0.0.1:")
