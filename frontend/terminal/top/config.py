"""What `pagewire top` can be told; flags are made from these fields."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pagewire.ipc.errors import ConfigError

from ..address import DEFAULT_URL, checked_url


class TopConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which server is watched, and how."""

    url: Annotated[str, Meta(description="The server, like http://host:8000.")] = DEFAULT_URL
    api_key: Annotated[
        str | None, Meta(description="Bearer key to send. Default: PAGEWIRE_API_KEY, VLLM_API_KEY or OPENAI_API_KEY.")
    ] = None
    interval: Annotated[float, Meta(description="Seconds from one look to the next.")] = 1.0
    once: Annotated[bool, Meta(description="Look twice, print what was seen, and end.")] = False

    def __post_init__(self) -> None:
        checked_url(self.url)
        if not 0.1 <= self.interval <= 3600:
            raise ConfigError(f"--interval {self.interval:g} must be between 0.1 and 3600 seconds.")
