"""Network policies: what the rules allow works, what they don't fails at once with an event, and nothing opens them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server
from commands import run
from isolation.test_network import PUBLIC, connects, world  # noqa: F401
from sandboxes import LiveSandbox
from waiting import until

#: A public name that is allowed, and one that is not. Both have servers.
NAME, OTHER = "pypi.org", "registry.npmjs.org"
ADDRESS = PUBLIC[0]
ALLOWED = [NAME, "files.pythonhosted.org", f"{ADDRESS}:8123", "10.203.0.2:8123", "169.254.169.254:80"]
CURL = "curl -sS -m 10 -o /dev/null -w '%{http_code}'"
SEND = "python3 -c 'import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(2); s.connect((\"%s\", %d)); s.send(b\"x\" * 1200); s.recv(1); print(\"answered\")'"
ASK = """python3 -c '
import socket, struct, sys
name, to, tcp = sys.argv[1], sys.argv[2], sys.argv[3] == "tcp"
query = struct.pack(">6H", 7, 256, 1, 0, 0, 0) + b"".join(bytes([len(p)]) + p.encode() for p in name.split(".")) + b"\\0" + struct.pack(">2H", 1, 1)
s = socket.create_connection((to, 53), 5) if tcp else socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(5)
if tcp: s.sendall(struct.pack(">H", len(query)) + query); answer = s.recv(4096)[2:]
else: s.sendto(query, (to, 53)); answer = s.recv(4096)
print("answers", struct.unpack(">H", answer[6:8])[0])
' %s %s %s"""


class Policed:
    """A sandbox with a policy."""

    def __init__(self, sandbox: LiveSandbox) -> None:
        self.sandbox = sandbox
        self.path = f"{sandbox.base_url}/api/v2/sandboxes/{sandbox.name}"

    def network(self) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.get(f"{self.path}/network", timeout=30).raise_for_status().json()
        return answer

    def set(self, network: Any, status: int = 200, **more: Any) -> Any:
        answer = httpx.patch(self.path, json={"network": network, **more}, timeout=60)
        assert answer.status_code == status, answer.text
        return answer.json()

    def status(self, url: str, *options: str) -> str:
        """The status of a request by curl; 000 if it failed."""
        return (self.sandbox.bash(f"{CURL} {' '.join(options)} {url}").stdout or "").strip()

    def address_of(self, name: str) -> str:
        return self.sandbox.output(f"getent ahostsv4 {name} | head -1 | cut -d' ' -f1")


@pytest.fixture(scope="module")
def policed(server: Server, world: None) -> Iterator[Policed]:  # noqa: F811
    name = f"policed-{uuid.uuid4().hex[:6]}"
    body = {"name": name, "image": "code", "network": {"mode": "allowlist", "allow": ALLOWED}}
    httpx.post(f"{server.url}/api/v2/sandboxes", json=body, timeout=120).raise_for_status()
    live = LiveSandbox(server.url, name)
    yield Policed(live)
    live.delete()


def test_what_the_rules_allow_works(policed: Policed) -> None:
    sandbox = policed.sandbox
    assert policed.status(f"https://{NAME}/simple/six/") == "200"
    assert policed.status(f"http://{ADDRESS}:8123/") == "200"
    python = f"import urllib.request; print(urllib.request.urlopen('https://{NAME}/simple/six/').status)"
    assert sandbox.output(f'python3 -c "{python}"') == "200"
    assert sandbox.bash("pip download -q --no-deps --no-cache-dir -d /tmp/six six", hard_timeout=60).exit_code == 0
    events = policed.network()["events"]
    allowed = [event for event in events if event["allowed"] and event.get("name") == NAME and event["protocol"] == "tls"]
    assert allowed and allowed[0]["rule"] == NAME


REFUSED = {
    "another name": f"{CURL} https://{OTHER}/",
    "another name, plain": f"{CURL} http://{OTHER}/",
    "a name below": f"{CURL} https://www.{NAME}/",
    "another name at an allowed name's address": f"{CURL} --resolve {OTHER}:443:$ALLOWED https://{OTHER}/",
    "an allowed name's address without a name": f"{CURL} -k https://$ALLOWED/",
    "an allowed name on another port": f"{CURL} https://{NAME}:8443/",
    "an address": f"{CURL} http://{ADDRESS}:8124/",
    "an address, TLS": f"{CURL} -k https://{ADDRESS}/",
    "another Host at an allowed name": f"{CURL} -f -H 'Host: {OTHER}' http://{NAME}/",
    "a request for another server": f"{CURL} -f --request-target http://{OTHER}/ http://{NAME}/",
    "CONNECT": f"{CURL} -f -p -x http://{NAME}:80 https://{OTHER}/",
    "a query for another name": f"getent ahostsv4 {OTHER}",
    "a query by another resolver": ASK % (OTHER, "8.8.8.8", "udp") + " | grep 'answers [1-9]'",
    "a query by another resolver, TCP": ASK % (OTHER, "8.8.8.8", "tcp") + " | grep 'answers [1-9]'",
    "a tunnel of queries": "getent ahostsv4 c2VjcmV0.example.com",
    "DNS over HTTPS": f"{CURL} --doh-url https://1.1.1.1/dns-query https://{NAME}/",
    "DNS over TLS": f"{CURL} -k https://1.1.1.1:853/",
    "QUIC": SEND % (ADDRESS, 443),
    "UDP": SEND % (ADDRESS, 8123),
    "ping": f"ping -c 1 -W 2 {ADDRESS}",
    "source routing": f"""python3 -c '
import socket
s = socket.socket(); s.settimeout(3)
s.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes([0x83, 7, 4]) + socket.inet_aton("10.203.0.2") + bytes(1))
s.connect(("{ADDRESS}", 8123)); s.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n"); print(s.recv(12).decode())' | grep 200""",
    "a mapped address": f"{CURL} http://[::ffff:{ADDRESS}]:8124/",
    "IPv6": f"{CURL} http://[2a0b:203::2]:8123/",
    "a private address with a rule": f"{CURL} http://10.203.0.2:8123/",
    "metadata with a rule": f"{CURL} http://169.254.169.254/",
    "the gateway": f"{CURL} http://$(awk '/nameserver/{{print $2}}' /etc/resolv.conf):8080/",
    "another installation's gateway": f"{CURL} http://10.209.255.1:15001/",
    "SSH to an allowed name": f"python3 -c 'import socket; s = socket.create_connection((\"{NAME}\", 22), 5); print(s.recv(4))' | grep SSH",
    "root": f"sudo {CURL} https://{OTHER}/",
}


@pytest.mark.parametrize("what", REFUSED)
def test_everything_else_fails(policed: Policed, what: str) -> None:
    command = f"ALLOWED=$(getent ahostsv4 {NAME} | head -1 | cut -d' ' -f1); {REFUSED[what]}"
    began = time.monotonic()
    result = policed.sandbox.bash(command, hard_timeout=30)
    assert result.exit_code != 0 or (result.stdout or "").strip() in ("403", "000"), (what, result)
    assert time.monotonic() - began < 25


def test_each_refusal_is_an_event(policed: Policed) -> None:
    for command, wanted in {
        f"{CURL} https://{OTHER}/": {"protocol": "dns", "name": OTHER, "reason": "no_rule"},
        f"{CURL} --resolve {OTHER}:443:{ADDRESS} https://{OTHER}/": {"protocol": "tls", "name": OTHER, "reason": "no_rule"},
        f"{CURL} http://{ADDRESS}:8124/": {"address": ADDRESS, "port": 8124, "reason": "no_rule"},
        f"{CURL} http://10.203.0.2:8123/": {"address": "10.203.0.2", "reason": "closed_address"},
    }.items():
        before = policed.network()["refused"]
        policed.sandbox.bash(command)

        def found(wanted: dict[str, Any] = wanted, before: int = before) -> bool:
            network = policed.network()
            return network["refused"] > before and any(
                not event["allowed"] and wanted.items() <= event.items() for event in network["events"]
            )

        until(found)


def test_decisions_are_in_the_trajectory(policed: Policed, server: Server) -> None:
    """Refusals, and allowed connections with their bytes. They are no steps, and outlive the server."""
    trajectory = f"{server.url}/api/v1/trajectories/{policed.sandbox.id}"

    def records(**wanted: Any) -> list[dict[str, Any]]:
        answer = httpx.get(f"{trajectory}/network?limit=1000", timeout=30).raise_for_status().json()
        return [record for record in answer["network"] if wanted.items() <= record.items()]

    policed.sandbox.bash(f"{CURL} http://{ADDRESS}:8124/refused")
    assert policed.status(f"http://{ADDRESS}:8123/") == "200"
    until(lambda: records(path="/refused") and records(port=8123, allowed=True))
    [refused] = records(path="/refused")
    assert (refused["reason"], refused["allowed"], refused["address"], refused["port"]) == ("no_rule", False, ADDRESS, 8124)
    reached = records(port=8123, allowed=True)[-1]
    assert reached["bytes_received"] > 100 and reached["bytes_sent"] > 50 and reached["rule"] == f"{ADDRESS}:8123"
    steps = httpx.get(f"{trajectory}?limit=1000", timeout=30).json()["steps"]
    assert refused["after"] <= len(steps) and not any("network" in step["action"] for step in steps)
    exported = httpx.get(f"{trajectory}/export?format=jsonl&network=true", timeout=30).text.splitlines()
    lines = [json.loads(line) for line in exported]
    assert any(line.get("kind") == "network" and line.get("path") == "/refused" for line in lines) and any("step" in line for line in lines)
    plain = httpx.get(f"{trajectory}/export?format=jsonl", timeout=30).text.splitlines()
    assert all("step" in json.loads(line) for line in plain)
    server.kill()
    server.start()
    assert records(path="/refused") == [refused]


def test_a_client_does_not_choose_the_server(policed: Policed) -> None:
    """The name decides, and the proxy asks its own resolver: the client's address is not used."""
    assert policed.status(f"https://{NAME}/simple/six/", f"--resolve {NAME}:443:{ADDRESS}") == "200"


def test_a_policy_changes_while_it_runs(policed: Policed) -> None:
    sandbox = policed.sandbox
    policed.set({"mode": "allowlist", "allow": [OTHER]})
    assert policed.status(f"https://{OTHER}/") == "200" and policed.status(f"https://{NAME}/") == "000"
    policed.set("allowlist")
    assert policed.status(f"https://{OTHER}/") == "000"
    policed.set("open")
    assert connects(sandbox, ADDRESS, 8123) and not connects(sandbox, "10.203.0.2", 8123)
    # A direct connection does not outlive the end of its permission.
    talk = (
        f"import socket, time; s = socket.create_connection(('{ADDRESS}', 8123)); open('/tmp/open', 'w'); time.sleep(4);"
        " s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'); s.settimeout(3); print('got', len(s.recv(100)))"
    )
    sandbox.bash("rm -f /tmp/open")
    session = sandbox.bash(f'python3 -c "{talk}" >/tmp/said 2>&1', async_mode=True).session_id
    until(lambda: sandbox.bash("ls /tmp/open").exit_code == 0)
    policed.set({"mode": "allowlist", "allow": [NAME]})
    until(lambda: sandbox.bash("test -s /tmp/said").exit_code == 0)
    assert "got" not in sandbox.output("cat /tmp/said"), session
    policed.set({"mode": "allowlist", "allow": ALLOWED})
    assert policed.status(f"http://{ADDRESS}:8123/") == "200"


def test_observing_suggests_an_allowlist(sandbox: Callable[..., LiveSandbox], server: Server, world: None) -> None:  # noqa: F811
    seen = Policed(sandbox(network={"mode": "observe", "deny": [OTHER]}))
    assert seen.status(f"https://{NAME}/simple/six/") == "200" and seen.status(f"http://{ADDRESS}:8123/") == "200"
    assert seen.status(f"https://{OTHER}/") == "000" and seen.status("http://10.203.0.2:8123/") != "200"
    until(lambda: f"{ADDRESS}:8123" in json.dumps(seen.network()["suggested"]))
    suggested = seen.network()["suggested"]
    assert any(NAME in rule for rule in suggested) and not any(OTHER in rule for rule in suggested)
    done = run(server, "network", "suggest", seen.sandbox.name)
    assert done.stdout.split() == suggested
    seen.set({"mode": "allowlist", "allow": suggested})
    assert seen.status(f"https://{NAME}/simple/six/") == "200" and seen.status(f"http://{ADDRESS}:8124/") == "403"


def egress(server: Server) -> list[int]:
    """The egress proxies of a server."""
    children = subprocess.run(["pgrep", "-P", str(server.pid), "-f", "egress"], capture_output=True, text=True).stdout
    return [int(pid) for pid in children.split()]


def test_a_killed_proxy_leaves_it_closed_and_comes_back(policed: Policed, server: Server) -> None:
    [proxy] = egress(server)
    assert Path(f"/proc/{proxy}").stat().st_uid == 65534
    os.kill(proxy, signal.SIGKILL)
    assert policed.status(f"https://{OTHER}/") == "000"
    until(lambda: policed.status(f"http://{ADDRESS}:8123/") == "200")
    assert policed.status(f"https://{OTHER}/") == "000" and egress(server) != [proxy]


def test_a_policy_outlives_the_server(policed: Policed, server: Server) -> None:
    server.kill()
    server.start()
    until(lambda: policed.status(f"http://{ADDRESS}:8123/") == "200")
    assert policed.status(f"https://{OTHER}/") == "000" and policed.status(f"http://{ADDRESS}:8124/") == "403"


def test_rollbacks_and_forks_keep_the_policy(policed: Policed) -> None:
    """They get another address."""
    httpx.post(f"{policed.path}/reset", json={}, timeout=60).raise_for_status()
    forked = httpx.post(f"{policed.path}/fork", json={}, timeout=60).raise_for_status().json()["sandboxes"][0]["name"]
    fork = Policed(LiveSandbox(policed.sandbox.base_url, forked))
    try:
        for one in (policed, fork):
            assert one.status(f"http://{ADDRESS}:8123/") == "200" and one.status(f"http://{ADDRESS}:8124/") == "403"
    finally:
        fork.sandbox.delete()


def test_addresses_are_open_again_for_others(server: Server, sandbox: Callable[..., LiveSandbox], world: None) -> None:  # noqa: F811
    for _ in range(3):
        closed = sandbox(network="allowlist", labels={})
        assert Policed(closed).status(f"http://{ADDRESS}:8123/") == "403"
        closed.delete()
        opened = sandbox(network="open", labels={})
        assert connects(opened, ADDRESS, 8123)
        opened.delete()


def test_the_command_line(server: Server, world: None) -> None:  # noqa: F811
    name = f"cli-{uuid.uuid4().hex[:6]}"
    assert run(server, "create", name, "--image", "base", "--allow", f"{ADDRESS}:8123").returncode == 0
    get = f"curl -s -m 5 -o /dev/null -w %{{http_code}} http://{ADDRESS}:8123/"
    assert run(server, "exec", name, "--", "sh", "-c", get).stdout == "200"
    assert run(server, "network", "set", name, "--mode", "allowlist", "--close-open").returncode == 0
    assert run(server, "exec", name, "--", "sh", "-c", get).stdout == "403"
    shown = run(server, "network", "show", name, "--refused").stdout
    assert "mode: allowlist" in shown and f"{ADDRESS}:8123" in shown
    assert "has no rules" in run(server, "network", "set", name, "--mode", "open", "--allow", "a.example").stderr
    assert run(server, "rm", name).returncode == 0


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("host", "network"),
        ({"allow": ["a.example"]}, "network"),
        ({"mode": "allowlist", "allow": ["https://a.example"]}, "invalid network rule"),
        ({"mode": "allowlist", "allow": ["a.example:0"]}, "invalid network rule"),
        ({"mode": "allowlist", "allow": [{"host": "a.example", "cidr": "1.2.3.4"}]}, "invalid network rule"),
        ({"mode": "allowlist", "allow": ["a.example"] * 1001}, "1001 rules"),
        ({"mode": "open", "deny": ["a.example"]}, "deny rules"),
        ({"mode": "none", "allow": ["a.example"]}, "allow rules"),
    ],
)
def test_bad_policies_are_refused(policed: Policed, network: Any, message: str) -> None:
    created = httpx.post(f"{policed.sandbox.base_url}/api/v2/sandboxes", json={"image": "base", "network": network})
    assert created.status_code in (400, 422) and message in created.text, created.text
    assert message in json.dumps(policed.set(network, created.status_code))
    assert policed.network()["mode"] == "allowlist"


def test_a_network_stays(policed: Policed, sandbox: Callable[..., LiveSandbox]) -> None:
    policed.set("none", 400)
    closed = Policed(sandbox(network="none", labels={}))
    closed.set({"mode": "allowlist", "allow": [NAME]}, 400)
