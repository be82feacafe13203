"""No file of a sandbox is a file of another one, or of the host: a lock or a watch on it would reach across."""

from __future__ import annotations

import json
from collections.abc import Callable

from sandboxes import LiveSandbox

#: Prints device and inode of every file that a sandbox has from its set-up, by path.
LOOK = r"""
import json, os
found = {}
def look(path):
    try:
        about = os.stat(path)
    except OSError:
        return
    found[path] = [about.st_dev, about.st_ino]
for line in open("/proc/self/mountinfo"):
    look(line.split()[4])
for folder in ("/dev", "/dev/pts", "/proc/1/ns", "/proc/1/fd", "/proc/self/ns", "/etc", "/"):
    for name in os.listdir(folder):
        look(folder + "/" + name)
for path in ("/proc/1/exe", "/proc/self/exe", "/usr/local/bin/aio", "/proc/1/root", "/proc/1/cwd"):
    look(path)
print(json.dumps(found))
"""

#: Locks all of those, and says how many it could.
HOLD = r"""
import fcntl, json, os, signal
held = []
for path in json.load(open("/tmp/paths")):
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(file)
    except OSError:
        pass
print(len(held), flush=True)
signal.pause()
"""

#: Opens and locks the same paths, and says which it could not lock.
TRY = r"""
import fcntl, json, os
refused = []
for path in json.load(open("/tmp/paths")):
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        continue
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        refused.append(path)
    except OSError:
        pass
    os.close(file)
print(json.dumps(refused))
"""


def run(live: LiveSandbox, program: str) -> str:
    assert live.client.file.write_file(file="/tmp/program.py", content=program).success
    return live.output("sudo python3 /tmp/program.py", timeout=30)


def test_no_file_of_one_sandbox_is_another_ones(sandbox: Callable[..., LiveSandbox]) -> None:
    one, other = (json.loads(run(sandbox(network="none"), LOOK)) for _ in range(2))
    assert {"/dev/null", "/dev/tty", "/proc/1/exe", "/usr/local/bin/aio", "/proc/1/ns/net", "/proc/cmdline"} <= one.keys()
    others = {tuple(file): path for path, file in other.items()}
    shared = {path: others[tuple(file)] for path, file in one.items() if tuple(file) in others}
    # Anonymous inodes are one of the whole kernel's (see THREATS.md), and proc's and the sandbox's own root differ by device.
    assert not {path for path in shared if not path.startswith("/proc/1/fd/")}, shared


def test_locks_of_one_sandbox_do_not_reach_another(sandbox: Callable[..., LiveSandbox]) -> None:
    one, other = sandbox(network="none"), sandbox(network="none")
    paths = [p for p in json.loads(run(one, LOOK)) if not p.startswith(("/proc/1/fd/", "/dev/fd", "/dev/std"))]
    for live in (one, other):
        assert live.client.file.write_file(file="/tmp/paths", content=json.dumps(paths)).success
    assert one.client.file.write_file(file="/tmp/hold.py", content=HOLD).success
    one.bash("sudo python3 /tmp/hold.py > /tmp/held", async_mode=True)
    assert int(one.output("until [ -s /tmp/held ]; do sleep 0.05; done; cat /tmp/held", timeout=30)) > 20
    assert json.loads(run(other, TRY)) == []
