"""What `pagewire models` can be told: the flags of its commands."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class StoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where models are."""

    revision: Annotated[str | None, Meta(description="Branch, tag or commit of a hub model.")] = None
    download_dir: Annotated[str | None, Meta(description="Where hub models are kept instead of HF_HOME.")] = None


class ListConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is listed."""

    download_dir: Annotated[str | None, Meta(description="Where hub models are kept instead of HF_HOME.")] = None
    json: Annotated[bool, Meta(description="Print JSON instead of a table.")] = False


class ShowConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is shown."""

    store: StoreConfig = StoreConfig()
    template: Annotated[bool, Meta(description="Print the chat template and nothing else.")] = False
    json: Annotated[bool, Meta(description="Print JSON instead of text.")] = False


class RemoveConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is removed."""

    download_dir: Annotated[str | None, Meta(description="Where hub models are kept instead of HF_HOME.")] = None
    yes: Annotated[bool, Meta(description="Do not ask.")] = False
