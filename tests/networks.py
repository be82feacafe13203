"""Hosts as network namespaces on one bridge, and a server of Arenite in each."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from small import SmallServer

#: The bridge's own address, and the first of the hosts.
NETWORK = "10.213.77"
GATEWAY = f"{NETWORK}.254"


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, (arguments, done.stderr)


class Host:
    """A network namespace with one address on the bridge."""

    def __init__(self, bridge: str, number: int):
        self.name = f"{bridge}-{number}"
        self.address = f"{NETWORK}.{number}"
        ip("netns", "add", self.name)
        ip("link", "add", f"{self.name}-o", "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("link", "set", f"{self.name}-o", "master", bridge, "up")
        ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip("-n", self.name, "link", "set", "lo", "up")
        ip("-n", self.name, "link", "set", "eth0", "up")

    def cut(self, other: Host) -> None:
        """Drops what goes to another host, on both sides."""
        for one, two in ((self, other), (other, self)):
            ip("-n", one.name, "route", "add", "blackhole", f"{two.address}/32")

    def mend(self, other: Host) -> None:
        for one, two in ((self, other), (other, self)):
            ip("-n", one.name, "route", "del", "blackhole", f"{two.address}/32")

    def unplug(self) -> None:
        ip("link", "set", f"{self.name}-o", "down")

    def plug(self) -> None:
        ip("link", "set", f"{self.name}-o", "up")

    def remove(self) -> None:
        ip("netns", "del", self.name)


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    bridge = f"arn{os.getpid() % 100000}"
    ip("link", "add", bridge, "type", "bridge")
    made: list[Host] = []
    try:
        ip("addr", "add", f"{GATEWAY}/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        for number in range(1, count + 1):
            made.append(Host(bridge, number))
        yield made
    finally:
        for host in made:
            host.remove()
        ip("link", "del", bridge)


class HostServer(SmallServer):
    """A server in a host's network. Its clients are outside: it gets a socket that listens on this machine's loopback."""

    host: Host

    def __init__(self, data_dir: Path, port: int | None = None, args: tuple[str, ...] = ()):
        super().__init__(data_dir, port, args)
        self.listener = socket.create_server(("127.0.0.1", self.port), backlog=1024)
        self.pass_fds = (self.listener.fileno(),)

    def command_line(self, extra: tuple[str, ...] = ()) -> list[str]:
        inside = f'exec 3<&{self.listener.fileno()}; LISTEN_FDS=1 LISTEN_PID=$$ exec nsenter --net=/run/netns/{self.host.name} "$@"'
        return ["bash", "-c", inside, "bash", *super().command_line(extra)]
