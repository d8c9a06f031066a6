"""Which adapters there are: a pure state machine, as what the executors have loaded follows from it.

An adapter is loading, then named (requests may ask for it), then leaving: its name is gone, and the requests that have
it run to their ends. What is loaded under a name that is taken gets a load id of its own; the one before it leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from pagewire.ipc.adapters import Adapter
from pagewire.ipc.errors import ErrorInfo, InvalidRequest, NotFound
from pagewire.ipc.lora_config import LoraConfig, check_adapter_name

NO_ADAPTER = 0
"""The load id of none."""


class AdapterRegistry:
    """See the module.

    Args:
        config: says which adapters there are from the start, and how many there may be.
    """

    def __init__(self, config: LoraConfig) -> None:
        self._is_enabled = config.enable_lora
        self._most = config.max_loaded
        self._num_loads = 0
        self._named: dict[str, Adapter] = {}
        self._loading: dict[int, Adapter] = {}
        self._leaving: dict[int, Adapter] = {}
        self._lost: dict[str, str] = {}  # name -> why
        for module in config.modules:
            self._named[module.name] = self._number(*module)

    @property
    def listed(self) -> list[Adapter]:
        """Those that requests may ask for."""
        return list(self._named.values())

    @property
    def held(self) -> list[Adapter]:
        """Those that executors have to have: they are given to the next ones, if there must be any."""
        return [*self._leaving.values(), *self._named.values()]

    @property
    def has_leaving(self) -> bool:
        """Whether the executors are to be rid of one, as soon as no request has it."""
        return bool(self._leaving)

    def find(self, name: str, digest: str = "") -> int:
        """Return the load id of an adapter by its name; `NO_ADAPTER` of the empty name.

        Args:
            name: of the adapter.
            digest: of the one that a request's tokens so far were computed with; empty: it has none, or nobody knows.

        Raises:
            NotFound: there is none of that name, or its weights are others.
        """
        if not name:
            return NO_ADAPTER
        adapter = self._named.get(name)
        if adapter is None and name in self._lost:
            raise NotFound(self._lost[name], param="model")
        if adapter is None:
            raise NotFound(
                f"The adapter {name!r} is not loaded; loaded are: {', '.join(self._named) or 'none'}.", param="model"
            )
        if digest and adapter.digest and digest != adapter.digest:
            raise NotFound(
                f"The adapter {name!r} has other weights now than those that the tokens of this request so far were "
                f"computed with (digest {adapter.digest}, not {digest}); send the request again.",
                param="model",
            )
        return adapter.load_id

    def digest_of(self, load_id: int) -> str:
        """Return the digest of an adapter's files; empty for `NO_ADAPTER`, and while executors have not read them."""
        return next((adapter.digest for adapter in self.held if adapter.load_id == load_id), "")

    def note_digests(self, digests: Mapping[int, str]) -> None:
        """Take note of what executors have read, by load id."""

        def noted(adapter: Adapter) -> Adapter:
            return msgspec.structs.replace(adapter, digest=digests.get(adapter.load_id, adapter.digest))

        self._leaving = {load_id: noted(adapter) for load_id, adapter in self._leaving.items()}
        self._named = {name: noted(adapter) for name, adapter in self._named.items()}

    def begin(self, name: str, path: str, base_model_name: str, *, is_inplace: bool) -> Adapter:
        """Number a load that the executors are to be told of; `finish` says how it went.

        Args:
            name: how requests will ask for it.
            path: its directory.
            base_model_name: see `Adapter`.
            is_inplace: take the place of the one that has the name.

        Raises:
            InvalidRequest: there is no room, the name is taken or malformed, or adapters are not served.
        """
        self._check_enabled()
        wrong = check_adapter_name(name)
        if wrong is not None:
            raise InvalidRequest(f"lora_name {wrong}.", param="lora_name")
        if not path:
            raise InvalidRequest("lora_path is empty; name the adapter's directory.", param="lora_path")
        if any(adapter.name == name for adapter in self._loading.values()):
            raise InvalidRequest(f"The lora adapter '{name}' is being loaded.", param="lora_name")
        if name in self._named and not is_inplace:
            raise InvalidRequest(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.",
                param="lora_name",
            )
        num_held = len(self.held) + len(self._loading)
        if num_held >= self._most:
            raise InvalidRequest(
                f"{num_held} adapters are loaded, and there may be {self._most} (--max-loras); unload one, whose "
                "requests have to end first.",
                param="lora_name",
            )
        adapter = self._number(name, path, base_model_name)
        self._loading[adapter.load_id] = adapter
        return adapter

    def finish(self, load_id: int, *, is_loaded: bool, digest: str = "") -> None:
        """End a load: the adapter, of files of this digest, can be asked for, or there is none."""
        adapter = msgspec.structs.replace(self._loading.pop(load_id), digest=digest)
        if not is_loaded:
            return
        self._lost.pop(adapter.name, None)
        before = self._named.pop(adapter.name, None)
        if before is not None:
            self._leaving[before.load_id] = before
        self._named[adapter.name] = adapter

    def unload(self, name: str) -> None:
        """Take an adapter's name: no further request gets it.

        Raises:
            NotFound: there is none of that name.
        """
        self._check_enabled()
        adapter = self._named.pop(name, None)
        if adapter is None:
            raise NotFound(f"The lora adapter '{name}' cannot be found.", param="lora_name")
        self._leaving[adapter.load_id] = adapter

    def lose(self, errors: Mapping[int, ErrorInfo]) -> None:
        """Forget adapters that executors can't read any more, but for why; by load id."""
        self._lost |= {
            adapter.name: errors[adapter.load_id].message
            for adapter in self._named.values()
            if adapter.load_id in errors
        }
        load_ids = errors.keys()
        self._leaving = {load_id: adapter for load_id, adapter in self._leaving.items() if load_id not in load_ids}
        self._named = {name: adapter for name, adapter in self._named.items() if adapter.load_id not in load_ids}

    def let_go(self, used: Collection[int]) -> list[int]:
        """Forget those that leave and that no request has any more; return their load ids.

        Args:
            used: load ids of living requests.
        """
        gone = [load_id for load_id in self._leaving if load_id not in used]
        for load_id in gone:
            del self._leaving[load_id]
        return gone

    def _number(self, name: str, path: str, base_model_name: str, digest: str = "") -> Adapter:
        self._num_loads += 1
        return Adapter(name=name, load_id=self._num_loads, path=path, base_model_name=base_model_name, digest=digest)

    def _check_enabled(self) -> None:
        if not self._is_enabled:
            raise InvalidRequest("Adapters are served with --enable-lora; start the engine with it.")
