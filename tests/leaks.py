"""What of the host a server holds: taken before and after, and compared."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Holdings:
    mounts: Counter[str]
    cgroups: Counter[str]
    links: Counter[str]
    network_namespaces: Counter[str]
    user_namespaces: Counter[str]
    processes: Counter[str]
    descriptors: Counter[str]

    def differences(self, before: Holdings) -> list[str]:
        found = []
        for field in fields(self):
            now, then = getattr(self, field.name), getattr(before, field.name)
            if field.name in ("network_namespaces", "user_namespaces", "links", "cgroups", "mounts"):
                # A pool of prepared ones changes their names, never their number.
                if sum(now.values()) == sum(then.values()):
                    continue
            if now != then:
                found.append(f"{field.name}: new {dict(now - then)}, gone {dict(then - now)}")
        return found


def kind(target: str) -> str:
    """Groups descriptors so that inode numbers and addresses don't matter."""
    return target.split(":", 1)[0] if ":[" in target else target


def ours(pid: int, data_dir: Path) -> bool:
    """A process of this server: in one of our cgroups, or started with its data directory."""
    try:
        cgroup = Path(f"/proc/{pid}/cgroup").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return False
    return "arenite" in cgroup or str(data_dir) in command


def take(server_pid: int, data_dir: Path) -> Holdings:
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    namespaces: dict[str, set[str]] = {"net": set(), "user": set()}
    processes: Counter[str] = Counter()
    for pid in pids:
        for name, seen in namespaces.items():
            try:
                seen.add(os.readlink(f"/proc/{pid}/ns/{name}"))
            except OSError:
                pass
        if ours(pid, data_dir):
            try:
                processes[Path(f"/proc/{pid}/comm").read_text().strip()] += 1
            except OSError:
                pass
    mounts: Counter[str] = Counter()
    for line in Path(f"/proc/{server_pid}/mountinfo").read_text().splitlines() + Path("/proc/self/mountinfo").read_text().splitlines():
        columns = line.split()
        mounts[columns[4]] += 1
        if " - nsfs " in line and columns[3].startswith("net:"):
            namespaces["net"].add(columns[3])
    cgroups = Counter(
        path
        for path, _, _ in os.walk("/sys/fs/cgroup")
        if "arenite" in path
    )
    descriptors: Counter[str] = Counter()
    for fd in os.listdir(f"/proc/{server_pid}/fd"):
        try:
            target = os.readlink(f"/proc/{server_pid}/fd/{fd}")
        except OSError:
            continue
        if target.startswith("net:["):
            namespaces["net"].add(target)
        descriptors[kind(target)] += 1
    return Holdings(
        mounts=mounts,
        cgroups=cgroups,
        links=Counter(os.listdir("/sys/class/net")),
        network_namespaces=Counter(namespaces["net"]),
        user_namespaces=Counter(namespaces["user"]),
        processes=processes,
        descriptors=descriptors,
    )


def settle(before: Holdings, server_pid: int, data_dir: Path, seconds: float = 60) -> None:
    """Waits until everything is as it was; removal off the hot path takes its time. Fails with what is left over."""
    deadline = time.monotonic() + seconds
    while True:
        left = take(server_pid, data_dir).differences(before)
        if not left:
            return
        assert time.monotonic() < deadline, "left over after {} s:\n{}".format(seconds, "\n".join(left))
        time.sleep(0.25)


def steady(server_pid: int, data_dir: Path, seconds: float = 30) -> Holdings:
    """The holdings once two looks in a row agree."""
    deadline = time.monotonic() + seconds
    last = take(server_pid, data_dir)
    while time.monotonic() < deadline:
        time.sleep(1)
        now = take(server_pid, data_dir)
        if not now.differences(last):
            return now
        last = now
    return last
