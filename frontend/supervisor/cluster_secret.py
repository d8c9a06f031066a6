"""The secret that the hosts of one engine share: from a file, or from the environment of each."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pagewire.ipc.cluster_keys import CLUSTER_KEY_VARIABLE, ClusterKeys, derive_cluster_keys
from pagewire.ipc.errors import ConfigError
from pagewire.ipc.parallel_config import ParallelConfig


def read_cluster_keys(parallel: ParallelConfig) -> ClusterKeys | None:
    """Return the keys of an engine's hosts; None if it has no other hosts, or if they take each other's word.

    Raises:
        ConfigError: there is no secret, it is no good, or others can read it.
    """
    if parallel.nnodes == 1 or parallel.insecure_cluster:
        return None
    if parallel.cluster_key_file is not None:
        return derive_cluster_keys(_read_secret(Path(parallel.cluster_key_file)))
    secret = os.environ.get(CLUSTER_KEY_VARIABLE)
    if not secret:
        raise ConfigError(
            f"--nnodes {parallel.nnodes} needs a secret that all hosts share: set {CLUSTER_KEY_VARIABLE} "
            "(`openssl rand -hex 32` makes one), or give --cluster-key-file, or --insecure-cluster if the network "
            "holds nobody else."
        )
    return derive_cluster_keys(secret)


def _read_secret(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is no text"
        raise ConfigError(f"--cluster-key-file {path} can't be read: {reason}.") from exc
    # The owner's group may read it: so orchestrators hand secrets to processes that do not run as root.
    if stat.S_IMODE(mode) & stat.S_IRWXO:
        raise ConfigError(f"--cluster-key-file {path} can be read by any user of this machine; run chmod 600 {path}.")
    return text
