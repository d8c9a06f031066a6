from __future__ import annotations

from pathlib import Path

import pytest

from pagewire.frontend.supervisor.cluster_secret import read_cluster_keys
from pagewire.ipc.cluster_keys import CLUSTER_KEY_VARIABLE, derive_cluster_keys
from pagewire.ipc.errors import ConfigError
from pagewire.ipc.parallel_config import ParallelConfig
from pagewire.ipc.process import environment_of_children

SECRET = "0123456789abcdef"


def hosts(**options: object) -> ParallelConfig:
    return ParallelConfig(tensor_parallel_size=2, nnodes=2, **options)  # type: ignore[arg-type]


def test_engine_on_one_host_needs_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CLUSTER_KEY_VARIABLE, raising=False)
    assert read_cluster_keys(ParallelConfig()) is None
    assert read_cluster_keys(hosts(insecure_cluster=True)) is None


def test_engine_on_several_hosts_is_refused_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CLUSTER_KEY_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=r"set PAGEWIRE_CLUSTER_KEY .*--cluster-key-file, or --insecure-cluster"):
        read_cluster_keys(hosts())


def test_secret_comes_from_the_environment_and_no_child_inherits_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CLUSTER_KEY_VARIABLE, SECRET)
    assert read_cluster_keys(hosts()) == derive_cluster_keys(SECRET)
    assert CLUSTER_KEY_VARIABLE not in environment_of_children()


def test_file_of_a_secret_is_its_owners(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CLUSTER_KEY_VARIABLE, "another secret of the environment")
    path = tmp_path / "key"
    config = hosts(cluster_key_file=str(path))
    with pytest.raises(ConfigError, match="can't be read: No such file"):
        read_cluster_keys(config)
    path.write_text(SECRET + "\n")
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="run chmod 600"):
        read_cluster_keys(config)
    path.chmod(0o640)
    assert read_cluster_keys(config) == derive_cluster_keys(SECRET)
