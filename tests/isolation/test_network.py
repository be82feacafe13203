"""Network: `open` reaches public addresses and nothing private, nor the host; `none` reaches nothing.

A namespace of the test run plays the world beyond the host: it answers on a public address, so that the closed
ranges are known to be closed by policy and not for want of somebody behind them.
"""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from arenite_server import Server
from sandboxes import LiveSandbox

WORLD = "arenite-test"
#: One address of each kind; the first two are public and have to be reachable.
PUBLIC = ["11.203.0.2", "2a0b:203::2"]
CLOSED = [
    "10.203.0.2",
    "172.20.203.2",
    "192.168.203.2",
    "100.64.203.2",
    "169.254.203.2",
    "198.18.203.2",
    "fd00:203::2",
    "64:ff9b::aac:cb02",
]


def ip(command: str, check: bool = True) -> None:
    subprocess.run(["ip", *command.split()], check=check, capture_output=True)


@pytest.fixture(scope="module")
def world() -> Iterator[None]:
    ip(f"netns del {WORLD}", check=False)
    ip("link del ar-test0", check=False)
    ip(f"netns add {WORLD}")
    server = None
    try:
        ip(f"link add ar-test0 type veth peer name ar-test1 netns {WORLD}")
        ip("addr add 11.203.0.1/24 dev ar-test0")
        ip("addr add 2a0b:203::1/64 dev ar-test0 nodad", check=False)
        ip("link set ar-test0 up")
        ip(f"-n {WORLD} link set lo up")
        ip(f"-n {WORLD} addr add 11.203.0.2/24 dev ar-test1")
        ip(f"-n {WORLD} link set ar-test1 up")
        ip(f"-n {WORLD} -6 addr add 2a0b:203::2/64 dev ar-test1 nodad", check=False)
        ip(f"-n {WORLD} route add default via 11.203.0.1")
        ip(f"-n {WORLD} -6 route add default via 2a0b:203::1", check=False)
        for address in CLOSED:
            version, length = ("-6", 128) if ":" in address else ("-4", 32)
            via = PUBLIC[1] if ":" in address else PUBLIC[0]
            ip(f"-n {WORLD} {version} addr add {address}/{length} dev lo", check=False)
            ip(f"{version} route add {address}/{length} via {via}", check=False)
        server = subprocess.Popen(
            ["ip", "netns", "exec", WORLD, "python3", "-m", "http.server", "8123", "--bind", "::"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 20
        while not reaches(PUBLIC[0], 8123):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield
    finally:
        if server:
            server.terminate()
            server.wait()
        ip("link del ar-test0", check=False)
        ip(f"netns del {WORLD}", check=False)


def reaches(address: str, port: int) -> bool:
    """From the host."""
    try:
        socket.create_connection((address, port), timeout=2).close()
        return True
    except OSError:
        return False


@pytest.fixture(scope="module")
def box(server: Server) -> Iterator[LiveSandbox]:
    httpx.post(f"{server.url}/api/v1/sandbox", json={"name": "network"}, timeout=120).raise_for_status()
    live = LiveSandbox(server.url, "network")
    yield live
    live.delete()


CONNECT = (
    "python3 -c 'import socket,sys; s = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3);"
    " print(\"connected\")' {} {}"
)


def connects(box: LiveSandbox, address: str, port: int, user: str = "") -> bool:
    return "connected" in (box.bash(user + CONNECT.format(address, port)).stdout or "")


class TestOpen:
    def test_a_public_address_is_reached(self, box: LiveSandbox, world: None) -> None:
        assert connects(box, PUBLIC[0], 8123)

    @pytest.mark.parametrize("address", CLOSED)
    def test_private_ranges_are_closed(self, box: LiveSandbox, world: None, address: str) -> None:
        if ":" not in address:
            assert reaches(address, 8123), "the test's own world has to answer the host"
        for user in ("", "sudo "):
            assert not connects(box, address, 8123, user)

    def test_metadata_addresses(self, box: LiveSandbox) -> None:
        for address in ("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "fd00:ec2::254"):
            assert not connects(box, address, 80, "sudo "), address

    def test_names_that_lead_inside(self, box: LiveSandbox) -> None:
        for name in ("localhost.", "metadata.google.internal", "instance-data"):
            assert not connects(box, name, 80)

    def test_the_host(self, box: LiveSandbox, server: Server) -> None:
        """A listener on all of the host's addresses, tried by each of them and by the sandbox's gateway."""
        listener = socket.create_server(("", 0))
        port = listener.getsockname()[1]
        accepted: list[str] = []

        def accept() -> None:
            while True:
                try:
                    connection, peer = listener.accept()
                except OSError:
                    return
                accepted.append(peer[0])
                connection.close()

        threading.Thread(target=accept, daemon=True).start()
        shown = subprocess.run(["ip", "-o", "-4", "addr"], capture_output=True, text=True).stdout
        addresses = {line.split()[3].split("/")[0] for line in shown.splitlines()}
        addresses |= set(box.output("ip route 2>/dev/null | awk '/default/{print $3}'; awk '/nameserver/{print $2}' /etc/resolv.conf").split())
        assert reaches("127.0.0.1", port)
        while not accepted:
            time.sleep(0.01)
        accepted.clear()
        tried = [(address, at) for address in addresses - {"127.0.0.1"} for at in (port, server.port)]
        with ThreadPoolExecutor(8) as pool:
            reached = list(pool.map(lambda one: connects(box, *one, "sudo "), tried))
        assert not any(reached), list(zip(tried, reached, strict=True))
        listener.close()
        assert accepted == []

    def test_the_hosts_loopback_stays_the_hosts(self, box: LiveSandbox, server: Server) -> None:
        for address in ("127.0.0.1", "127.0.0.2", "::1", "0.0.0.0", "::ffff:127.0.0.1"):
            assert not connects(box, address, server.port), address

    def test_forged_and_raw_packets(self, box: LiveSandbox) -> None:
        forged = (
            "import socket\n"
            "s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\n"
            "print(\"raw\")"
        )
        # Raw sockets may exist in its own namespace; whatever it sends still meets the policy on the host's side.
        box.bash(f"sudo python3 -c '{forged}'")
        assert not connects(box, "169.254.169.254", 80, "sudo ")

    def test_it_can_not_change_its_way_around_the_policy(self, box: LiveSandbox, world: None) -> None:
        box.bash("sudo ip addr add 169.254.203.9/16 dev eth0; sudo ip route add 10.203.0.2/32 dev eth0; sudo ip link set eth0 promisc on")
        for address in ("10.203.0.2", "169.254.203.2"):
            assert not connects(box, address, 8123, "sudo ")

    def test_names_are_answered(self, box: LiveSandbox) -> None:
        assert box.bash("getent hosts pypi.org").exit_code == 0
        assert box.bash("getent hosts no-such-name.invalid", hard_timeout=30).exit_code != 0


class TestNone:
    def test_only_its_own_loopback(self, sandbox: Callable[..., LiveSandbox], world: None) -> None:
        live = sandbox(network="none")
        live.bash("exec python3 -m http.server 9000 --bind 127.0.0.1", async_mode=True)
        deadline = time.monotonic() + 20
        while not connects(live, "127.0.0.1", 9000):
            assert time.monotonic() < deadline
        assert not connects(live, PUBLIC[0], 8123)
        assert live.bash("getent hosts pypi.org", hard_timeout=30).exit_code != 0
        assert live.output("ls /sys/class/net 2>/dev/null || tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '") == "lo"
