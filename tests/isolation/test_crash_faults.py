"""Faults of the host and of the operator: nothing is lost, and what works again is used again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from arenite_server import Server, binary
from sandboxes import LiveSandbox
from small import SmallServer

NOBODY = 65534


def test_a_program_that_is_replaced_goes_on_to_make_sandboxes(
    fresh: SmallServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "arenite"
    shutil.copy(binary(), program)
    monkeypatch.setenv("ARENITE_BIN", str(program))
    fresh.restart()
    program.unlink()
    program.write_text("another version")
    assert fresh.create("after").output("aio --help >/dev/null; echo made") == "made"
    launcher = next(pid for pid in children(fresh.pid) if b"launcher" in Path(f"/proc/{pid}/cmdline").read_bytes())
    os.kill(launcher, signal.SIGKILL)
    # More than are prepared.
    for number in range(3):
        assert fresh.create(f"relaunched-{number}").output("echo made") == "made"
    monkeypatch.undo()
    fresh.restart()
    assert LiveSandbox(fresh.url, "after").output("aio --help >/dev/null; echo there") == "there"


def children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def test_other_users_of_the_host_read_nothing(fresh: SmallServer) -> None:
    fresh.stop()
    fresh.data_dir.chmod(0o755)
    fresh.start()
    sandbox = fresh.create("closed", env={"SECRET": "sesame-59"})
    assert sandbox.output("echo sesame-59") == "sesame-59"
    found = subprocess.run(["grep", "-rl", "sesame-59", str(fresh.data_dir)], user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True)
    assert found.stdout == b"" and b"Permission denied" in found.stderr
    assert fresh.data_dir.stat().st_mode & 0o7777 == 0o700
    steps = [path for path in (fresh.data_dir / "trajectories").rglob("*") if path.stat().st_mode & 0o077]
    assert steps == [], "with a directory opened by mistake they are still the server's alone"
    # The server's own umask is not the sandbox's.
    modes = sandbox.output("umask; stat -c %a /etc /etc/hosts /etc/hostname /etc/resolv.conf /usr/local/bin; touch /tmp/new; stat -c %a /tmp/new")
    assert modes.split() == ["0022", "755", "644", "644", "644", "755", "644"]


def test_a_directory_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o755)
    (other / "letters").mkdir()
    server = Server(other)
    with pytest.raises(RuntimeError, match="name a directory of its own"):
        server.start()
    assert other.stat().st_mode & 0o777 == 0o755 and os.listdir(other) == ["letters"]
