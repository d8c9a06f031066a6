"""What the doors to an engine are configured with is checked before one is opened."""

from __future__ import annotations

import msgspec
import pytest

from pagewire.ipc.errors import ConfigError
from pagewire.ipc.server_config import ListenConfig, ServerConfig


@pytest.mark.parametrize(
    ("cls", "values", "part"),
    [
        (ServerConfig, {"port": -1}, "--port -1"),
        (ServerConfig, {"port": 65536}, "--port 65536"),
        (ServerConfig, {"api_key": ("a", "")}, "--api-key"),
        (ServerConfig, {"request_timeout": 0.0}, "--request-timeout 0.0"),
        (ServerConfig, {"ssl_keyfile": "key.pem"}, "--ssl-keyfile needs --ssl-certfile"),
        (ServerConfig, {"engine_key": "a", "engine": "tcp://a:1"}, "--engine-key and --curve-key go together"),
        (ListenConfig, {"listen": "tcp://a:1", "curve_key": "a", "insecure": True}, "contradict each other"),
        (ListenConfig, {"listen": "tcp://a:1", "curve_key": "a"}, "--allow-clients"),
        (ListenConfig, {"listen": "tcp://a:1", "allow_clients": ("a",)}, "--curve-key FILE"),
    ],
)
def test_a_value_that_can_not_be_met_is_refused_by_its_flag(cls: type, values: dict[str, object], part: str):
    with pytest.raises(ConfigError) as caught:
        cls(**values)
    assert part in caught.value.message
    with pytest.raises(ConfigError):  # the same through the door that the command line uses
        msgspec.convert(values, cls, strict=False)
