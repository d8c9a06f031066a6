"""Start a server of the packaged model and run the clients' own libraries against it: `make conformance`.

    python tests/conformance/serve_and_check.py PYTHON NODE_FOLDER

PYTHON is the interpreter of the environment that has the clients, this one the server's. Where the npm package is not
installed in NODE_FOLDER, that client is left out.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[1]))

from tests.support.running_server import running_server  # noqa: E402 - found only now

KEY = "conformance-key"
CLIENTS = ("openai_sdk.py", "langchain_client.py", "litellm_client.py", "anthropic_sdk.py")


def main(python: str, node_folder: Path) -> int:
    """Run all clients; return 1 if a check of any failed."""
    commands = {name: [python, str(FOLDER / name)] for name in CLIENTS}
    if (node_folder / "node_modules").is_dir():
        commands["npm openai"] = ["node", str(node_folder / "openai_sdk.mjs")]
    failed = []
    with (
        tempfile.TemporaryDirectory() as directory,
        running_server(Path(directory), "--max-model-len", "2048", "--api-key", KEY) as server,
    ):
        environment = {**os.environ, "CONFORMANCE_URL": server.url, "CONFORMANCE_KEY": KEY}
        for name, command in commands.items():
            print(f"\n{name}", flush=True)
            if subprocess.run(command, env=environment, check=False).returncode != 0:
                failed.append(name)
    print(f"\n{'FAILED: ' + ', '.join(failed) if failed else 'all clients are content'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
