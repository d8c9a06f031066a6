from __future__ import annotations

import pytest

from pagewire.engine_core.adapters.registry import NO_ADAPTER, AdapterRegistry
from pagewire.ipc.errors import ErrorInfo, InvalidRequest, NotFound
from pagewire.ipc.lora_config import LoraConfig


def make(*modules: str, most: int = 3) -> AdapterRegistry:
    return AdapterRegistry(LoraConfig(enable_lora=True, lora_modules=modules, max_loras=most))


def load(registry: AdapterRegistry, name: str, path: str = "/x", *, is_inplace: bool = False) -> int:
    load_id = registry.begin(name, path, "", is_inplace=is_inplace).load_id
    registry.finish(load_id, is_loaded=True)
    return load_id


def test_load_ids_are_never_given_twice() -> None:
    registry = make("a=/a", "b=/b")
    seen = {registry.find("a"), registry.find("b"), load(registry, "c")}
    registry.unload("c")
    registry.let_go(())
    seen.add(load(registry, "c"))
    assert len(seen) == 4
    assert NO_ADAPTER not in seen


def test_an_adapter_can_be_asked_for_when_it_is_loaded() -> None:
    registry = make()
    adapter = registry.begin("a", "/a", "base", is_inplace=False)
    with pytest.raises(NotFound, match="a"):
        registry.find("a")
    assert registry.held == []
    registry.finish(adapter.load_id, is_loaded=True)
    assert registry.find("a") == adapter.load_id
    assert registry.listed == registry.held == [adapter]


def test_a_load_that_fails_leaves_nothing() -> None:
    registry = make("a=/a")
    before = registry.find("a")
    load_id = registry.begin("a", "/b", "", is_inplace=True).load_id
    registry.finish(load_id, is_loaded=False)
    assert registry.find("a") == before
    assert [adapter.path for adapter in registry.held] == ["/a"]


def test_one_that_leaves_is_held_while_a_request_has_it() -> None:
    registry = make("a=/a", "b=/b")
    first = registry.find("a")
    second = load(registry, "a", "/c", is_inplace=True)
    assert registry.find("a") == second
    assert {adapter.load_id for adapter in registry.held} >= {first, second}
    assert registry.let_go({first, second}) == []
    assert registry.let_go({second}) == [first]
    assert not registry.has_leaving


def test_the_limit_counts_those_that_leave() -> None:
    registry = make("a=/a", "b=/b", most=2)
    with pytest.raises(InvalidRequest, match="--max-loras"):
        load(registry, "c")
    registry.unload("a")
    with pytest.raises(InvalidRequest, match="--max-loras"):
        load(registry, "c")
    registry.let_go(())
    load(registry, "c")


def test_names_that_are_taken_or_unknown_are_refused() -> None:
    registry = make("a=/a")
    with pytest.raises(InvalidRequest, match="load_inplace"):
        registry.begin("a", "/b", "", is_inplace=False)
    registry.begin("b", "/b", "", is_inplace=False)
    with pytest.raises(InvalidRequest, match="being loaded"):
        registry.begin("b", "/b", "", is_inplace=True)
    with pytest.raises(NotFound, match="c"):
        registry.unload("c")
    with pytest.raises(InvalidRequest, match="lora_path"):
        registry.begin("d", "", "", is_inplace=False)
    with pytest.raises(InvalidRequest, match="lora_name"):
        registry.begin("\n", "/d", "", is_inplace=False)


def test_what_is_lost_can_not_be_asked_for() -> None:
    registry = make("a=/a", "b=/b")
    registry.lose({registry.find("a"): ErrorInfo(kind="InvalidRequest", message="its files have changed")})
    assert [adapter.name for adapter in registry.held] == ["b"]
    with pytest.raises(NotFound, match="its files have changed"):
        registry.find("a")
    assert load(registry, "a") == registry.find("a")


def test_a_request_goes_on_with_the_weights_that_it_began_with_alone() -> None:
    registry = make("a=/a", '{"name": "b", "path": "/b", "digest": "old"}')
    assert registry.digest_of(registry.find("a", "whatever it was")) == ""  # nobody has read it yet
    registry.note_digests({registry.find("a"): "new", registry.find("b"): "old"})
    assert registry.digest_of(registry.find("a")) == registry.listed[0].digest == "new"
    assert registry.find("a", "new") == registry.find("a")
    with pytest.raises(NotFound, match="other weights now"):
        registry.find("a", "old")
    load_id = registry.begin("b", "/c", "", is_inplace=True).load_id
    registry.finish(load_id, is_loaded=True, digest="newer")
    assert [adapter.digest for adapter in registry.held] == ["old", "new", "newer"]
    with pytest.raises(NotFound, match="newer, not old"):
        registry.find("b", "old")


def test_without_the_flag_there_are_none() -> None:
    registry = AdapterRegistry(LoraConfig())
    assert registry.find("") == NO_ADAPTER
    with pytest.raises(NotFound):
        registry.find("a")
    with pytest.raises(InvalidRequest, match="--enable-lora"):
        registry.begin("a", "/a", "", is_inplace=False)
