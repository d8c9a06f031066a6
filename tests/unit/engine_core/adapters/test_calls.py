from __future__ import annotations

from pagewire.engine_core.adapters.calls import AdapterCalls
from pagewire.engine_core.adapters.registry import AdapterRegistry
from pagewire.ipc.adapters import Adapter
from pagewire.ipc.channels import ClientId
from pagewire.ipc.errors import ErrorInfo
from pagewire.ipc.lora_config import LoraConfig
from pagewire.ipc.outputs import UtilityResult
from pagewire.ipc.requests import CallUtility
from pagewire.ipc.steps import AdapterLoaded, LoadAdapter, UnloadAdapter

CLIENT = ClientId(b"client")
EPOCH = 4


class Scene:
    """Two ranks, and what was sent to whom."""

    def __init__(self, *modules: str, is_ready: bool = True) -> None:
        self.registry = AdapterRegistry(LoraConfig(enable_lora=True, lora_modules=modules))
        self.orders: list[LoadAdapter | UnloadAdapter] = []
        self.answers: list[UtilityResult] = []
        self.told: list[list[str]] = []
        self.calls = AdapterCalls(
            self.registry,
            2,
            order=self.orders.append,
            answer=lambda _client, result: self.answers.append(result),
            tell=self._tell,
        )
        if is_ready:
            self.calls.executors_ready(EPOCH, {})

    def _tell(self, adapters: list[Adapter]) -> None:
        self.told.append([adapter.name for adapter in adapters])

    def ask(self, method: str, *args: str | bool) -> None:
        self.calls.call(CLIENT, CallUtility(call_id=7, method=method, args=list(args)))

    def load(self) -> int:
        self.ask("load_adapter", "a", "/a")
        (order,) = self.orders
        assert isinstance(order, LoadAdapter)
        return order.adapter.load_id

    def loaded(self, load_id: int, error: ErrorInfo | None = None, digest: str = "") -> None:
        self.calls.loaded(AdapterLoaded(executor_epoch=EPOCH, load_id=load_id, digest=digest, error=error))


FAULT = ErrorInfo(kind="InvalidRequest", message="no such file")


def test_a_load_is_answered_when_every_rank_has_read_the_files() -> None:
    scene = Scene()
    load_id = scene.load()
    scene.loaded(load_id)
    assert (scene.answers, scene.told) == ([], [])
    scene.loaded(load_id)
    assert scene.answers == [UtilityResult(call_id=7, result=True)]
    assert scene.told == [["a"]]


def test_a_rank_that_fails_fails_the_load_on_all() -> None:
    scene = Scene()
    load_id = scene.load()
    scene.loaded(load_id, FAULT)
    scene.loaded(load_id)
    assert scene.answers == [UtilityResult(call_id=7, error=FAULT)]
    assert scene.orders[1:] == [UnloadAdapter(executor_epoch=EPOCH, load_id=load_id)]
    assert scene.registry.held == []


def test_ranks_that_read_different_files_fail_the_load() -> None:
    scene = Scene()
    load_id = scene.load()
    scene.loaded(load_id, digest="one")
    scene.loaded(load_id, digest="other")
    assert scene.answers[0].error is not None
    assert "different files" in scene.answers[0].error.message
    assert scene.registry.held == []


def test_what_the_ranks_read_is_noted() -> None:
    scene = Scene()
    load_id = scene.load()
    scene.loaded(load_id, digest="one")
    scene.loaded(load_id, digest="one")
    assert scene.registry.digest_of(load_id) == "one"


def test_executors_that_end_fail_the_loads_under_way() -> None:
    scene = Scene()
    load_id = scene.load()
    scene.calls.executors_lost()
    (answer,) = scene.answers
    assert answer.error is not None
    assert "try again" in answer.error.message
    scene.loaded(load_id)  # of a rank that had answered before
    assert scene.registry.held == []
    scene.ask("load_adapter", "a", "/a")
    assert scene.answers[-1].error is not None
    assert scene.answers[-1].error.kind == "Overloaded"


def test_an_adapter_that_is_unloaded_goes_with_its_last_request() -> None:
    scene = Scene("a=/a")
    load_id = scene.registry.find("a")
    scene.ask("unload_adapter", "a")
    assert scene.answers == [UtilityResult(call_id=7, result=True)]
    assert scene.told == [[]]
    scene.calls.let_go({load_id})
    assert scene.orders == []
    scene.calls.let_go({0})
    assert scene.orders == [UnloadAdapter(executor_epoch=EPOCH, load_id=load_id)]


def test_executors_that_were_starting_are_rid_of_what_was_unloaded_meanwhile() -> None:
    scene = Scene("a=/a", is_ready=False)
    load_id = scene.registry.find("a")
    scene.ask("unload_adapter", "a")
    scene.calls.let_go(())
    assert scene.orders == []
    scene.calls.executors_ready(EPOCH, {})
    scene.calls.let_go(())
    assert scene.orders == [UnloadAdapter(executor_epoch=EPOCH, load_id=load_id)]
    assert scene.registry.held == []


def test_adapters_that_can_not_be_read_again_are_told_of() -> None:
    scene = Scene("a=/a", "b=/b")
    scene.calls.executors_lost()
    scene.calls.executors_ready(EPOCH + 1, {scene.registry.find("a"): FAULT}, {scene.registry.find("b"): "read"})
    assert scene.told == [["b"]]
    assert [adapter.digest for adapter in scene.registry.listed] == ["read"]


def test_what_is_asked_wrongly_is_refused() -> None:
    scene = Scene("a=/a")
    for method, args in (("unload_adapter", ()), ("list_adapters", ("a",)), ("load_adapter", ("a",))):
        scene.ask(method, *args)
        assert scene.answers[-1].error is not None
    scene.ask("list_adapters")
    assert scene.answers[-1].result == [{"name": "a", "load_id": 1, "path": "/a", "base_model_name": "", "digest": ""}]
