"""LoRA adapters by name: what clients and executors are told of one."""

from __future__ import annotations

import msgspec


class Adapter(msgspec.Struct, frozen=True, kw_only=True, array_like=True, omit_defaults=True, gc=False):
    """An adapter that a core has loaded, or is about to.

    Attributes:
        name: requests ask for it by this; no two adapters that can be asked for have the same.
        load_id: the core's own number for this load, from 1 on and never reused: what is loaded anew is another
            adapter, though its name and path are the same. KV blocks are found by it.
        path: its directory on the host that computes, in the form that PEFT writes.
        base_model_name: the name of the model that it was made for, for `GET /v1/models`; empty: the served one.
        digest: of its files, from when the executors have read them; empty before. Other files of the same name and
            path are another adapter.
    """

    name: str
    load_id: int
    path: str
    base_model_name: str = ""
    digest: str = ""
