"""The unit starts what there is, gives it time to stop, and opens nothing that it need not."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pagewire.frontend.cli.main import run
from tests.support.manifests import DEPLOY, Started

UNIT = DEPLOY / "systemd" / "pagewire.service"


def settings() -> dict[str, list[str]]:
    """The unit's settings, each with its values in order: a name may come several times."""
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^([A-Z]\w+)=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


def started() -> Started:
    """What the unit's command line starts with the settings beside it."""
    (command,) = settings()["ExecStart"]
    program, *arguments = command.replace("/etc/pagewire/config.yaml", str(UNIT.with_name("config.yaml"))).split()
    assert Path(program).name == "python3"
    assert arguments[:2] == ["-m", "pagewire"]
    starts = Started()
    assert run(arguments[2:], starts) == 0
    return starts


def test_command_line_and_settings_are_ones_that_the_program_takes() -> None:
    assert started().server.host == "127.0.0.1"


def test_server_alone_gets_the_signal_and_has_time_to_finish() -> None:
    unit = settings()
    assert unit["KillMode"] == ["mixed"]
    (limit_s,) = unit["TimeoutStopSec"]
    assert int(limit_s) > started().engine.supervision.shutdown_timeout


def test_configuration_that_cannot_be_met_is_not_tried_again() -> None:
    unit = settings()
    assert (unit["Restart"], unit["RestartPreventExitStatus"]) == (["on-failure"], ["2"])


def test_what_is_written_lies_where_the_unit_may_write() -> None:
    unit = settings()
    assert unit["ProtectSystem"] == ["strict"]
    paths = dict(value.split("=", 1) for value in unit["Environment"])
    assert paths.pop("PYTHONUNBUFFERED") == "1"
    assert paths.pop("TMPDIR") == f"/run/{unit['RuntimeDirectory'][0]}"
    assert paths.keys() == {"HOME", "HF_HOME", "PAGEWIRE_CACHE", "TRITON_CACHE_DIR"}
    assert all(path.startswith(f"/var/lib/{unit['StateDirectory'][0]}") for path in paths.values())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_knows_every_setting_and_finds_little_exposed(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    text = UNIT.read_text(encoding="utf-8")
    unit.write_text(text.replace("/opt/pagewire/bin/python3", sys.executable), encoding="utf-8")
    verified = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert (verified.returncode, verified.stderr) == (0, "")
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=25", str(unit)]
    exposed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert exposed.returncode == 0, exposed.stdout[-300:]
