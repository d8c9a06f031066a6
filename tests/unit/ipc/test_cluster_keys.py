from __future__ import annotations

import pytest

from pagewire.ipc.cluster_keys import derive_cluster_keys, make_cluster_keys
from pagewire.ipc.errors import ConfigError

SECRET = "a phrase that all hosts share"


def test_hosts_with_the_same_secret_have_the_same_keys() -> None:
    keys = derive_cluster_keys(SECRET)
    assert keys == derive_cluster_keys(SECRET)
    assert keys != derive_cluster_keys(SECRET + "!")
    assert keys.core.public != keys.host.public
    assert keys.for_host().server == keys.for_core().own.public
    assert list(keys.for_core().clients) == [keys.for_host().own.public]
    assert SECRET not in repr(keys)
    assert keys.core.secret not in repr(keys)


def test_secret_that_can_be_guessed_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigError, match="has 7 characters and needs 16") as caught:
        derive_cluster_keys("hunter2")
    assert "hunter2" not in caught.value.message


def test_keys_of_a_run_are_its_own() -> None:
    assert make_cluster_keys() != make_cluster_keys()
