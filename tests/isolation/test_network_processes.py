"""Decisions of network policies name the process that made the connection, as the sandbox sees it."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from arenite_server import Server
from commands import run
from isolation.test_network import PUBLIC, world  # noqa: F401
from sandboxes import LiveSandbox
from waiting import until

ADDRESS = PUBLIC[0]


class Named:
    """A sandbox with a policy, and the processes in its events."""

    def __init__(self, sandbox: LiveSandbox) -> None:
        self.sandbox = sandbox
        self.path = f"{sandbox.base_url}/api/v2/sandboxes/{sandbox.name}"

    def event(self, **wanted: Any) -> dict[str, Any]:
        """The newest event with these fields."""

        def find() -> dict[str, Any] | None:
            events = httpx.get(f"{self.path}/network", timeout=30).raise_for_status().json()["events"]
            return next((event for event in reversed(events) if wanted.items() <= event.items()), None)

        until(lambda: find() is not None)
        found = find()
        assert found is not None
        return found


#: Connects and asks for a page, and keeps the connection for a moment: on a busy host, the search takes its time.
HOLD = f"""
import os, socket, sys, time
with socket.create_connection(("{ADDRESS}", int(sys.argv[1])), 10) as s:
    s.sendall(b"GET / HTTP/1.0\\r\\nHost: {ADDRESS}:%d\\r\\n\\r\\n" % int(sys.argv[1]))
    s.recv(1)
    time.sleep(1)
print(os.getpid())
"""


@pytest.fixture(scope="module")
def named(server: Server, world: None) -> Iterator[Named]:  # noqa: F811
    name = f"named-{uuid.uuid4().hex[:6]}"
    body = {"name": name, "image": "code", "network": {"mode": "allowlist", "allow": [f"{ADDRESS}:8123"]}}
    httpx.post(f"{server.url}/api/v2/sandboxes", json=body, timeout=120).raise_for_status()
    live = LiveSandbox(server.url, name)
    live.client.file.write_file(file="/tmp/hold.py", content=HOLD)
    yield Named(live)
    live.delete()


def test_a_program_is_named_in_all_places(named: Named, server: Server) -> None:
    pid = int(named.sandbox.output("exec python3 /tmp/hold.py 8123"))
    wanted = {"pid": pid, "name": "python3", "command": "python3 /tmp/hold.py 8123"}
    for kind in ("decision", "end"):
        event = named.event(kind=kind, allowed=True, port=8123)
        assert event["process"] == wanted, event
    shown = run(server, "network", "show", named.sandbox.name).stdout
    assert f"python3 ({pid})" in shown
    trajectory = f"{server.url}/api/v1/trajectories/{named.sandbox.id}/network"
    until(lambda: any(record.get("process") == wanted for record in httpx.get(trajectory, timeout=30).json()["network"]))


def test_refusals_name_their_process(named: Named) -> None:
    """Of a connection, and of a name: the process ends with its refusal."""
    named.sandbox.bash("python3 /tmp/hold.py 8124")
    assert named.event(port=8124, allowed=False)["process"]["command"] == "python3 /tmp/hold.py 8124"

    def look(number: int) -> dict[str, Any] | None:
        # The socket of a query lives as long as the query.
        named.sandbox.bash(f"python3 -c 'import socket; socket.getaddrinfo(\"refused-{number}.example\", 80)'")
        return named.event(protocol="dns", name=f"refused-{number}.example").get("process")

    numbers = itertools.count()
    process = until(lambda: look(next(numbers)))
    assert process["name"].startswith("python3") and process["command"].startswith("python3 -c import socket; socket.getaddr")


def test_texts_of_a_process_are_escaped_and_bounded(named: Named) -> None:
    program = (
        "import ctypes, socket; ctypes.CDLL(None).prctl(15, b'a\\x1b[2J\\nb', 0, 0, 0);"
        f" s = socket.socket(); s.settimeout(5); s.connect_ex(('{ADDRESS}', 8125)); s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n');"
        " print(s.recv(1)); import time; time.sleep(1)"
    )
    named.sandbox.bash(f"""python3 -c "{program}" "$(printf 'x\\033]0;y\\007')" {"z" * 5_000}""")
    process = named.event(port=8125)["process"]
    assert process["name"].startswith("a\\u{1b}[2J") and len(process["name"]) <= 16, process
    assert len(process["command"]) <= 256 and process["command"].isprintable(), process


def test_a_process_that_ends_at_once_breaks_nothing(named: Named) -> None:
    """Its connection is reset by its end, possibly before it was accepted. Many of them keep the events of others as they are."""
    program = (
        "import os, socket, struct\n"
        "for n in range(200):\n"
        "    if os.fork() == 0:\n"
        "        s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\n"
        f"        s.connect_ex(('{ADDRESS}', 8126)); os._exit(0)\n"
        "for n in range(200): os.wait()\n"
    )
    named.sandbox.bash(f"cat > /tmp/ends.py <<'END'\n{program}END\npython3 /tmp/ends.py", hard_timeout=60)

    def named_again() -> bool:
        # The time for searches is used up, and earned again.
        named.sandbox.output("python3 /tmp/hold.py 8123 after")
        return named.event(kind="decision", port=8123).get("process", {}).get("command", "").endswith("after")

    until(named_again)


def test_many_processes_and_connections_cost_no_more_than_their_share(named: Named, server: Server) -> None:
    """Searches in a sandbox with many processes are bounded: its connections work, and another sandbox's events have names."""
    program = (
        "import os, socket, time\n"
        "for n in range(60):\n"
        "    if os.fork() == 0:\n"
        "        held = [os.open('/dev/null', os.O_RDONLY) for _ in range(1000)]\n"
        "        time.sleep(60); os._exit(0)\n"
        "time.sleep(1)\n"
        "start = time.monotonic()\n"
        "for n in range(100):\n"
        f"    s = socket.create_connection(('{ADDRESS}', 8123), 10); s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'); s.recv(1); s.close()\n"
        "print('done', time.monotonic() - start, flush=True)\n"
        "os.killpg(0, 9)\n"
    )
    busy = named.sandbox
    busy.bash(f"cat > /tmp/many.py <<'END'\n{program}END")
    session = busy.bash("setsid python3 /tmp/many.py > /tmp/many.out 2>&1", async_mode=True).session_id
    other = Named(LiveSandbox(server.url, f"other-{uuid.uuid4().hex[:6]}"))
    body = {"name": other.sandbox.name, "image": "base", "network": {"mode": "allowlist", "allow": [f"{ADDRESS}:8123"]}}
    httpx.post(f"{server.url}/api/v2/sandboxes", json=body, timeout=120).raise_for_status()
    try:
        other.sandbox.client.file.write_file(file="/tmp/hold.py", content=HOLD)
        for n in range(3):
            other.sandbox.output(f"python3 /tmp/hold.py 8123 {n}")
        until(lambda: other.event(kind="end", port=8123).get("process", {}).get("command", "").endswith(" 2"))
        until(lambda: "done" in (busy.bash("cat /tmp/many.out").stdout or ""), "all connections of the busy sandbox")
    finally:
        other.sandbox.delete()
        busy.bash("pkill -9 -f many.py")
    assert session
