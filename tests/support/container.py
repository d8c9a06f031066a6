"""What a container is to the program in it, as far as a kernel alone can give it: namespaces, a user, no capabilities.

The program is process 1, the file system is read-only but for the directories that are mounted, the user has a number
without a name or home, and group 0.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# As OpenShift gives them; nobody's number on a usual machine.
USER_ID = 1000680001

# A mount of its own stays writable when the file system that it lies in no longer is. What belongs to root may be read,
# since the tests' interpreter can lie in root's home; nothing may be written by that.
_ENTER = f"""
set -e
for directory in $1; do mount --bind "$directory" "$directory"; done
mount -o remount,bind,ro /
shift
exec setpriv --reuid={USER_ID} --regid=0 --clear-groups --no-new-privs --bounding-set=-all,+dac_read_search \
    --inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search env -u HOME -u XDG_CACHE_HOME "$@"
"""


def entering(*writable: Path) -> list[str]:
    """Return the command that runs the rest of its line in such a container; only these directories are writable."""
    assert all(" " not in str(directory) for directory in writable)
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
    return [*namespaces, "sh", "-c", _ENTER, "sh", " ".join(map(str, writable))]


@functools.cache
def obstacle() -> str | None:
    """Return why this machine can't run one; None if it can."""
    if not shutil.which("unshare") or not shutil.which("setpriv"):
        return "needs unshare and setpriv (util-linux)"
    with volumes(1) as (directory,):
        tried = subprocess.run(
            [*entering(directory), "sh", "-c", f"touch {directory}/file && ! touch /file 2>/dev/null && test $$ = 1"],
            capture_output=True,
            text=True,
            timeout=30,
        )
    return None if tried.returncode == 0 else f"needs a user that may make namespaces: {tried.stderr.strip()}"


@contextmanager
def volumes(number: int) -> Iterator[list[Path]]:
    """Directories as a cluster mounts them: group 0 may write. Their paths are short enough for sockets."""
    directories = [Path(tempfile.mkdtemp(prefix="pw-")) for _ in range(number)]
    try:
        for directory in directories:
            directory.chmod(0o2775)
        yield directories
    finally:
        for directory in directories:
            shutil.rmtree(directory)
