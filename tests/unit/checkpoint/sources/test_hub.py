"""A hub id becomes local files: only those that are needed, and every failure one line that says what to do.

Each resolution runs in a process of its own, because huggingface_hub reads its environment when it is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagewire.checkpoint.loading import load_model_config
from tests.support.fake_hub import FakeHub, FakeRepo, repo_files
from tests.support.tiny_model import tiny_checkpoint, tiny_gguf

pytestmark = pytest.mark.slow

_RESOLVE = """
import json, sys
from pagewire.checkpoint.resolve import resolve_config, resolve_model
from pagewire.ipc.errors import ConfigError
def resolve(name, revision):
    if name.startswith("config of "):
        return {"path": str(resolve_config(name.removeprefix("config of "), revision=revision, progress=False))}
    try:
        model = resolve_model(name, revision=revision, progress=False)
    except ConfigError as error:
        return {"error": error.message}
    return {"path": str(model.path), "name": model.name, "format": model.file_format}
print(json.dumps([resolve(name, revision) for name, revision in json.loads(sys.argv[1])]))
"""


class Resolver:
    """Resolves names in a fresh process, with the fake hub as endpoint and an empty cache."""

    def __init__(self, endpoint: str, home: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        self.environment = {**kept, "HF_ENDPOINT": endpoint, "HF_HOME": str(home)}

    def __call__(self, *names: str, revision: str | None = None, **environment: str) -> list[dict[str, str]]:
        """Resolve names one after the other; each gives path, name and format, or an error."""
        result = subprocess.run(
            [sys.executable, "-c", _RESOLVE, json.dumps([(name, revision) for name in names])],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(result.stdout)

    def errors(self, *names: str, revision: str | None = None, **environment: str) -> list[str]:
        """Resolve names that can't be resolved."""
        messages = [result["error"] for result in self(*names, revision=revision, **environment)]
        assert not any("\n" in message for message in messages)
        return messages


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    sharded = repo_files(tiny_checkpoint("qwen2", num_shards=2))
    extras = {"README.md": b"text", "pytorch_model.bin": b"pickle", "consolidated.safetensors": b"other names"}
    gguf = tiny_gguf("llama", "F16").path.read_bytes()
    split = {
        f"BF16/tiny-BF16-{path.name[5:]}": path.read_bytes()
        for path in sorted(tiny_gguf("llama", "BF16", num_shards=2).path.parent.glob("*.gguf"))
    }
    repos = {
        "acme/tiny": FakeRepo(sharded | extras, revisions={"v2": repo_files(tiny_checkpoint("llama"))}),
        "acme/gated": FakeRepo(sharded, gated=True, token="hf_good"),
        "acme/private": FakeRepo(sharded, private=True, token="hf_good"),
        "acme/tiny-GGUF": FakeRepo(
            {"tiny-Q4_K_M.gguf": b"not fetched", "tiny-f16.gguf": gguf, "config.json": b"{}"} | split
        ),
        "acme/pickled": FakeRepo({"config.json": b"{}", "pytorch_model.bin": b"pickle"}),
        "acme/tiny-GPTQ": FakeRepo(sharded | {"quantize_config.json": b'{"bits": 4, "group_size": 32}'}),
    }
    with FakeHub(repos) as hub:
        yield hub


@pytest.fixture
def resolve(hub: FakeHub, tmp_path: Path) -> Resolver:
    return Resolver(hub.endpoint, tmp_path / "home")


def test_only_needed_files_are_fetched_and_served_offline_afterwards(hub: FakeHub, resolve: Resolver) -> None:
    [model] = resolve("acme/tiny")
    assert model["name"] == "acme/tiny"
    assert model["format"] == "safetensors"
    assert load_model_config(Path(model["path"])).architecture == "Qwen2ForCausalLM"
    assert set(hub.downloaded()) == {
        "config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json",
        "tokenizer_config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
    }  # fmt: skip
    asked = len(hub.requests)
    assert resolve("acme/tiny", HF_HUB_OFFLINE="1") == [model]
    assert len(hub.requests) == asked
    # A hub that is out of reach is no reason to fail either.
    assert resolve("acme/tiny", HF_ENDPOINT="http://127.0.0.1:9") == [model]


def test_of_a_configuration_nothing_else_is_fetched(hub: FakeHub, resolve: Resolver) -> None:
    [model] = resolve("config of acme/tiny")
    assert load_model_config(Path(model["path"])).architecture == "Qwen2ForCausalLM"
    assert hub.downloaded() == ["config.json"]
    assert resolve("config of acme/tiny", HF_HUB_OFFLINE="1") == [model]


def test_of_a_configuration_the_older_file_of_its_quantization_is_fetched_too(hub: FakeHub, resolve: Resolver) -> None:
    [model] = resolve("config of acme/tiny-GPTQ")
    quantization = load_model_config(Path(model["path"])).quantization
    assert quantization is not None
    assert quantization.method == "gptq"
    assert sorted(hub.downloaded()) == ["config.json", "quantize_config.json"]


def test_revision_selects_its_own_files(resolve: Resolver) -> None:
    [model] = resolve("acme/tiny", revision="v2")
    assert load_model_config(Path(model["path"])).architecture == "LlamaForCausalLM"
    [error] = resolve.errors("acme/tiny", revision="v3")
    assert "has no revision 'v3'" in error


def test_gguf_tag_selects_one_model_in_any_case_with_all_its_shards(hub: FakeHub, resolve: Resolver) -> None:
    [model, split] = resolve("acme/tiny-GGUF:F16", "acme/tiny-GGUF:bf16")
    assert model["format"] == "gguf"
    assert load_model_config(Path(model["path"])).dtype == "float16"
    assert split["path"].endswith("BF16/tiny-BF16-00001-of-00002.gguf")
    assert load_model_config(Path(split["path"])).dtype == "bfloat16"
    shards = [f"BF16/tiny-BF16-0000{number}-of-00002.gguf" for number in (1, 2)]
    assert hub.downloaded() == [*shards, "tiny-f16.gguf"]
    assert resolve("acme/tiny-GGUF:F16", HF_HUB_OFFLINE="1") == [model]


def test_absent_or_missing_gguf_tag_lists_what_is_there(resolve: Resolver) -> None:
    [absent, missing] = resolve.errors("acme/tiny-GGUF:Q8_0", "acme/tiny-GGUF")
    assert absent == "acme/tiny-GGUF: has no GGUF model 'Q8_0'; available are BF16, Q4_K_M, f16"
    assert "choose one with acme/tiny-GGUF:TAG" in missing


def test_gated_model_names_the_page_and_the_variable(hub: FakeHub, resolve: Resolver) -> None:
    page = f"{hub.endpoint}/acme/gated"
    expected = f"acme/gated is gated: accept its terms at {page} and set HF_TOKEN to a token of that account"
    assert resolve.errors("acme/gated") == [expected]
    assert resolve.errors("acme/gated", HF_TOKEN="hf_other") == [expected]
    assert resolve("acme/gated", HF_TOKEN="hf_good")[0]["format"] == "safetensors"


def test_private_or_absent_model_names_the_page_and_the_variable(hub: FakeHub, resolve: Resolver) -> None:
    names = ("acme/private", "acme/nothing")
    for name, error in zip(names, resolve.errors(*names), strict=True):
        assert f"{hub.endpoint}/{name}" in error
        assert "HF_TOKEN" in error
    assert resolve("acme/private", HF_TOKEN="hf_good")[0]["format"] == "safetensors"


def test_offline_without_cached_copy_is_one_line(resolve: Resolver) -> None:
    assert resolve.errors("acme/tiny", HF_HUB_OFFLINE="1") == [
        "acme/tiny: HF_HUB_OFFLINE is set, and the cache doesn't hold it"
    ]
    assert "can't be reached" in resolve.errors("acme/tiny", HF_ENDPOINT="http://127.0.0.1:9")[0]


def test_pickled_weights_are_refused_by_name_and_not_fetched(hub: FakeHub, resolve: Resolver) -> None:
    assert "pytorch_model.bin" in resolve.errors("acme/pickled")[0]
    assert hub.downloaded() == []


def test_a_gguf_tag_of_a_repository_of_safetensors_says_how_to_name_it(hub: FakeHub, resolve: Resolver) -> None:
    assert "leave that out for its safetensors" in resolve.errors("acme/tiny:Q8_0")[0]
    assert hub.downloaded() == []


def test_a_mistyped_id_is_asked_about_if_its_like_was_fetched(resolve: Resolver) -> None:
    resolve("acme/tiny")
    assert resolve.errors("acme/tinny")[0].endswith("; did you mean acme/tiny, which was fetched?")
    assert "did you mean acme/tiny" in resolve.errors("acme/tinny", HF_HUB_OFFLINE="1")[0]
