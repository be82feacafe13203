"""UDP under network policies: what a rule allows passes both ways, and all else fails at once with an event."""

from __future__ import annotations

import json
import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from arenite_server import Server
from isolation.test_network import PUBLIC, WORLD, world  # noqa: F401
from sandboxes import LiveSandbox
from waiting import until

ADDRESS = PUBLIC[0]
#: A port with a rule, one without, and one with a rule and without a server.
PORT, OTHER, DEAD = 1234, 1235, 1236
ALLOWED = [f"{ADDRESS}:{PORT},{DEAD}/udp", "10.203.0.2:1234/udp", "169.254.203.2:1234/udp"]

ECHO = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("0.0.0.0", int(sys.argv[1])))
while True:
    data, sender = s.recvfrom(65535)
    s.sendto(data, sender)
"""
#: Sends datagrams of these lengths, and says what came back, from where.
TALK = """python3 -c '
import socket, sys
to, port = sys.argv[1], int(sys.argv[2])
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(4)
if sys.argv[3] == "connected": s.connect((to, port))
for length in map(int, sys.argv[4:]):
    try:
        s.send(b"x" * length) if sys.argv[3] == "connected" else s.sendto(b"x" * length, (to, port))
        data, sender = s.recvfrom(65535)
        print(len(data), sender == (to, port))
    except OSError as error:
        print(type(error).__name__, error.errno)
' """


def answers(port: int) -> bool:
    """From the host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(1)
        asking.connect((ADDRESS, port))
        try:
            asking.send(b"x")
            return asking.recv(9) == b"x"
        except OSError:
            return False


class Box:
    """A sandbox with rules for UDP."""

    def __init__(self, sandbox: LiveSandbox) -> None:
        self.sandbox = sandbox
        self.path = f"{sandbox.base_url}/api/v2/sandboxes/{sandbox.name}"

    def talk(self, port: int, *lengths: int, to: str = ADDRESS, how: str = "unconnected") -> list[str]:
        return self.sandbox.output(TALK + f"{to} {port} {how} {' '.join(map(str, lengths))}", hard_timeout=60).splitlines()

    def set(self, network: Any, status: int = 200) -> Any:
        answer = httpx.patch(self.path, json={"network": network}, timeout=60)
        assert answer.status_code == status, answer.text
        return answer.json()

    def allow(self, *rules: str, deny: tuple[str, ...] = ()) -> None:
        self.set({"mode": "allowlist", "allow": list(rules), "deny": list(deny)})

    def events(self, **wanted: Any) -> list[dict[str, Any]]:
        events = httpx.get(f"{self.path}/network", timeout=30).raise_for_status().json()["events"]
        return [event for event in events if event["protocol"] == "udp" and wanted.items() <= event.items()]


@pytest.fixture(scope="module")
def echo(world: None) -> Iterator[None]:  # noqa: F811
    servers = [
        subprocess.Popen(["ip", "netns", "exec", WORLD, "python3", "-c", ECHO, str(port)]) for port in (PORT, OTHER, 53, 443)
    ]
    until(lambda: all(answers(port) for port in (PORT, OTHER, 53, 443)))
    yield
    for server in servers:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module")
def box(server: Server, echo: None) -> Iterator[Box]:
    name = f"udp-{uuid.uuid4().hex[:6]}"
    body = {"name": name, "image": "code", "network": {"mode": "allowlist", "allow": ALLOWED}}
    httpx.post(f"{server.url}/api/v2/sandboxes", json=body, timeout=120).raise_for_status()
    live = LiveSandbox(server.url, name)
    yield Box(live)
    live.delete()


@pytest.mark.parametrize("how", ["connected", "unconnected"])
def test_what_a_rule_allows_passes_both_ways(box: Box, how: str) -> None:
    """Also empty datagrams, and such that are sent in fragments. Answers come from the server's address."""
    assert box.talk(PORT, 5, 0, 1400, 30_000, 65_507, how=how) == [f"{n} True" for n in (5, 0, 1400, 30_000, 65_507)]
    until(lambda: box.events(kind="decision", allowed=True, port=PORT))
    event = box.events(kind="decision", allowed=True, port=PORT)[-1]
    assert (event["address"], event["rule"]) == (ADDRESS, ALLOWED[0])
    assert event["process"]["name"].startswith("python3")


def test_a_socket_speaks_to_several_servers(box: Box) -> None:
    box.allow(f"{ADDRESS}:{PORT}/udp", f"{ADDRESS}:{OTHER}/udp")
    program = f"""
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(4)
for port in ({PORT}, {OTHER}, {PORT}):
    s.sendto(str(port).encode(), ("{ADDRESS}", port)); print(s.recvfrom(9))
"""
    said = box.sandbox.output(f"python3 -c '{program}'").splitlines()
    assert said == [str((str(port).encode(), (ADDRESS, port))) for port in (PORT, OTHER, PORT)]
    box.allow(*ALLOWED)


REFUSED = {
    "another port": (ADDRESS, OTHER, "no_rule"),
    "another address": ("203.0.113.9", PORT, "no_rule"),
    "QUIC": (ADDRESS, 443, "no_rule"),
    "a private address with a rule": ("10.203.0.2", PORT, "closed_address"),
    "metadata with a rule": ("169.254.203.2", PORT, "closed_address"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_all_else_fails_at_once(box: Box, what: str) -> None:
    to, port, reason = REFUSED[what]
    assert box.talk(port, 5, to=to, how="connected") == ["OSError 113"], "no route to host"
    until(lambda: box.events(allowed=False, address=to, port=port))
    assert box.events(allowed=False, address=to, port=port)[-1]["reason"] == reason


def test_a_server_without_a_listener_is_an_error(box: Box) -> None:
    assert box.talk(DEAD, 5, how="connected") == ["ConnectionRefusedError 111"]


def test_refused_datagrams_are_one_event_a_second(box: Box) -> None:
    program = f"""
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for n in range(500): s.sendto(b"x", ("{ADDRESS}", 9999))
"""
    box.sandbox.output(f"python3 -c '{program}'")
    until(lambda: sum(event["count"] for event in box.events(allowed=False, port=9_999)) == 500)
    assert len(box.events(allowed=False, port=9_999)) <= 6
    assert box.talk(PORT, 5) == ["5 True"], "others pass meanwhile"


def test_deny_wins_and_a_change_ends_flows_at_once(box: Box) -> None:
    box.allow(*ALLOWED)
    program = f"""
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(("{ADDRESS}", {PORT})); s.settimeout(0.5)
while True:
    try:
        s.send(b"ping"); s.recv(9); print("pong", flush=True)
    except OSError as error: print("failed", error.errno, flush=True)
    time.sleep(0.05)
"""
    box.sandbox.bash(f"python3 -c '{program}' > /tmp/flow 2>&1", async_mode=True)
    # It is not there until the program has been started.
    last = "[ ! -e /tmp/flow ] || tail -1 /tmp/flow"
    until(lambda: box.sandbox.output(last) == "pong")
    ended = len(box.events(kind="end", port=PORT))
    box.allow(*ALLOWED, deny=(ADDRESS,))
    until(lambda: box.sandbox.output(last).startswith("failed"))
    # Flows of the tests before this one end at any time.
    pings = lambda end: end["bytes_sent"] >= end["bytes_received"] > 0 and end["bytes_sent"] % 4 == 0
    until(lambda: any(map(pings, box.events(kind="end", port=PORT)[ended:])))
    box.allow(*ALLOWED)
    until(lambda: box.sandbox.output(last) == "pong")
    box.sandbox.bash("pkill python3")


def test_a_flood_of_flows_is_bounded(box: Box) -> None:
    program = f"""
import socket
held = []
for n in range(270):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(("{ADDRESS}", {PORT})); s.settimeout(1); held.append(s)
    try: s.send(b"x"); s.recv(9)
    except OSError: pass
for n in range(3000): socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("{ADDRESS}", {PORT}))
"""
    box.sandbox.output(f"python3 -c '{program}'", hard_timeout=60)
    until(lambda: box.events(reason="too_many"))
    assert len(box.events(kind="decision", allowed=True, port=PORT)) < 600
    # Flows that are not used any more make space.
    until(lambda: box.talk(PORT, 5) == ["5 True"])


def test_dns_and_quic_need_rules_that_name_their_ports(box: Box) -> None:
    box.allow(f"{ADDRESS}:*/udp")
    assert box.talk(OTHER, 5) == ["5 True"]
    assert box.talk(443, 5, how="connected") == ["OSError 113"]
    assert box.talk(53, 5, how="connected") != ["5 True"], "its own resolver gets it, and drops what is no query"
    box.allow(f"{ADDRESS}:53,443/udp")
    assert box.talk(53, 5) == box.talk(443, 5) == ["5 True"]
    # Others than this one are refused now, and the sandbox's own resolver still answers.
    assert box.talk(53, 5, to="203.0.113.9", how="connected") == ["OSError 113"]
    refused = box.set({"mode": "allowlist", "allow": ["a.example:443/udp"]}, 400)
    assert "no name is seen" in json.dumps(refused)
    refused = box.set({"mode": "allowlist", "allow": [f"{ADDRESS}/udp"]}, 400)
    assert "need ports" in json.dumps(refused)
    box.allow(*ALLOWED)


def test_observing_refuses_udp(sandbox: Callable[..., LiveSandbox], echo: None) -> None:
    seen = Box(sandbox(image="code", network={"mode": "observe"}, labels={}))
    assert seen.talk(PORT, 5, how="connected") == ["OSError 113"]
    assert seen.events(allowed=False, port=PORT)[-1]["reason"] == "no_rule"
