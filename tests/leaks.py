"""What of the host a server holds: taken before and after, and compared."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path

from arenite_server import Server

CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Holdings:
    mounts: Counter[str]
    cgroups: Counter[str]
    links: Counter[str]
    network_namespaces: Counter[str]
    user_namespaces: Counter[str]
    processes: Counter[str]
    descriptors: Counter[str]
    layers: Counter[str]

    #: Prepared ones are used up and replaced: their names change, their number must not grow.
    POOLED = ("cgroups", "links", "network_namespaces", "user_namespaces", "mounts", "layers")

    def above(self, before: Holdings) -> list[str]:
        """What there is more of than there was."""
        found = []
        for field in fields(self):
            now, then = getattr(self, field.name), getattr(before, field.name)
            if field.name in self.POOLED and sum(now.values()) <= sum(then.values()):
                continue
            if now - then:
                found.append(f"{field.name}: {sum(then.values())} before, {sum(now.values())} now; new: {dict(now - then)}")
        return found


def read(path: str) -> str:
    """What a file of a process says; nothing when the process has ended meanwhile."""
    try:
        return Path(path).read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def mark(server: Server) -> str:
    """The name that this data directory's cgroups and links carry, found by a sandbox."""
    if server.mark is None:
        with server.api() as api:
            made = api.post("/api/v2/sandboxes", json={"name": "leaks-mark"}).raise_for_status().json()
            parents = {path.parent.name for path in CGROUPS.glob(f"*/arenite-*/{made['id']}")}
            api.delete("/api/v2/sandboxes/leaks-mark").raise_for_status()
        assert len(parents) == 1, parents
        server.mark = parents.pop().removeprefix("arenite-")
    return server.mark


def take(server: Server) -> Holdings:
    name = mark(server)
    data_dir = str(server.data_dir)
    namespaces: dict[str, set[str]] = {"net": set(), "user": set()}
    processes: Counter[str] = Counter()
    ours = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        in_cgroup = f"/arenite-{name}/" in read(f"/proc/{pid}/cgroup")
        if in_cgroup or data_dir in read(f"/proc/{pid}/cmdline"):
            ours.append(pid)
            processes[read(f"/proc/{pid}/comm").strip()] += 1
    descriptors: Counter[str] = Counter()
    for fd in os.listdir(f"/proc/{server.pid}/fd"):
        target = link(f"/proc/{server.pid}/fd/{fd}")
        kind = target.split(":[", 1)[0]
        # Connections of clients come and go, and are closed by the server only after their idle time.
        if kind != "socket":
            descriptors[kind] += 1
        if kind in namespaces:
            namespaces[kind].add(target)
    for pid in ours:
        for kind, seen in namespaces.items():
            seen.add(link(f"/proc/{pid}/ns/{kind}"))
    mounts: Counter[str] = Counter()
    for pid in ("self", str(server.pid)):
        for line in read(f"/proc/{pid}/mountinfo").splitlines():
            columns = line.split()
            if data_dir in line:
                mounts[columns[4]] += 1
            if " - nsfs " in line and columns[3].startswith("net:"):
                namespaces["net"].add(columns[3])
    return Holdings(
        mounts=mounts,
        cgroups=Counter(path for root in CGROUPS.glob(f"*/arenite-{name}*") for path, _, _ in os.walk(root)),
        links=Counter(link for link in os.listdir("/sys/class/net") if link.startswith(f"ar{name}")),
        network_namespaces=Counter(namespaces["net"]),
        user_namespaces=Counter(namespaces["user"]),
        processes=processes,
        descriptors=descriptors,
        layers=Counter(f"{folder}/{entry}" for folder in ("uppers", "trash") for entry in listed(server.data_dir / "pool" / folder)),
    )


def listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def settle(before: Holdings, server: Server, seconds: float = 60) -> None:
    """Waits until nothing is more than it was; removal off the hot path takes its time. Fails with what is left over."""
    deadline = time.monotonic() + seconds
    while left := take(server).above(before):
        assert time.monotonic() < deadline, "left over after {} s:\n{}".format(seconds, "\n".join(left))
        time.sleep(0.25)


def steady(server: Server, seconds: float = 30) -> Holdings:
    """The holdings once two looks in a row agree."""
    deadline = time.monotonic() + seconds
    last = take(server)
    while time.monotonic() < deadline:
        time.sleep(1)
        now = take(server)
        if now == last:
            return now
        last = now
    return last
