"""What people use against a network policy: curl, Python, Node, Chromium, git, pip, npm, and raw sockets. What is allowed works; each
refusal is a clear error of the program, and one event.

The names, their sites, and their certificates are the tests' own. The run's server restarts with their resolver.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import subprocess
import tarfile
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from arenite_server import Server
from authority import Authority
from isolation.test_network import PUBLIC, WORLD, world  # noqa: F401
from sandboxes import LiveSandbox
from waiting import until

ADDRESS = PUBLIC[0]
ALLOWED = "allowed.test"
#: What its own names resolve to in the sandbox's /etc/hosts, so that a program gets as far as the connection.
PINNED = "pinned.test"
WORD = "hello from the site"


class Client(NamedTuple):
    #: A command that gets something from `{host}`, and prints the word, or `done`.
    command: str
    #: What it says if the name does not exist, and if the connection is reset.
    unknown: str
    reset: str
    #: It tries again at once, so there is an event for the first, and one for the others.
    tries_again: bool = False


NODE = "node -e 'fetch(process.argv[1]).then(r => r.text()).then(console.log, e => {{ console.error(e.cause ? e.cause.code : e); process.exit(1) }})' https://{host}/hello.html"
PYTHON = "python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())' https://{host}/hello.html"
SOCKET = "python3 -c 'import socket, sys; s = socket.create_connection((sys.argv[1], 80), 10); s.sendall(b\"GET /hello.html HTTP/1.0\\r\\nHost: \" + sys.argv[1].encode() + b\"\\r\\n\\r\\n\"); print(s.makefile().read())' {host}"
CLIENTS = {
    "curl": Client("curl -sS -m 10 https://{host}/hello.html", "Could not resolve host", "reset by peer"),
    "python": Client(PYTHON, "Name or service not known", "reset by peer"),
    "node": Client(NODE, "ENOTFOUND", "ECONNRESET"),
    "chromium": Client(
        "timeout 60 chromium --headless --no-sandbox --disable-gpu --disable-background-networking --ignore-certificate-errors --user-data-dir=$(mktemp -d) --dump-dom https://{host}/hello.html",
        "ERR_NAME_NOT_RESOLVED",
        "ERR_CONNECTION_RESET",
        tries_again=True,
    ),
    "git": Client(
        "rm -rf /tmp/clone; git clone -q https://{host}/repository.git /tmp/clone && cat /tmp/clone/hello",
        "Could not resolve host",
        "reset by peer",
        tries_again=True,
    ),
    "pip": Client(
        "pip download -vv --retries 0 --no-cache-dir --no-deps -d $(mktemp -d) --index-url https://{host}/simple tiny && echo done",
        "Name or service not known",
        "reset by peer",
    ),
    "npm": Client(
        "cd $(mktemp -d) && npm install --fetch-retries=0 --no-audit --no-fund --no-update-notifier --registry https://{host}/ tiny && echo done",
        "ENOTFOUND",
        "ECONNRESET",
    ),
    "a raw socket": Client(SOCKET, "Name or service not known", "403"),
}


def make_sites(folder: Path) -> None:
    """A page, a repository of git, an index for pip, and a registry for npm, all as files."""
    site = folder / "site"
    (site / "simple/tiny").mkdir(parents=True)
    (site / "hello.html").write_text(WORD)
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny.py", "")
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    (site / "tiny-1.0-py3-none-any.whl").write_bytes(wheel.getvalue())
    (site / "simple/tiny/index.html").write_text('<a href="/tiny-1.0-py3-none-any.whl">tiny-1.0-py3-none-any.whl</a>')
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        content = json.dumps({"name": "tiny", "version": "1.0.0"}).encode()
        info = tarfile.TarInfo("package/package.json")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    (site / "tiny.tgz").write_bytes(packed.getvalue())
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed.getvalue()).digest()).decode()
    version = {"name": "tiny", "version": "1.0.0", "dist": {"tarball": f"https://{ALLOWED}/tiny.tgz", "integrity": integrity}}
    (site / "tiny").write_text(json.dumps({"name": "tiny", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}))
    script = f"""set -e; cd {folder}; git init -q work; cd work; echo '{WORD}' >hello; git add hello
git -c user.name=test -c user.email=test@test commit -q -m first; git clone -q --bare . {site}/repository.git
cd {site}/repository.git; git update-server-info"""
    subprocess.run(["sh", "-c", script], check=True, capture_output=True)


@pytest.fixture(scope="module")
def internet(world: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:  # noqa: F811
    folder = tmp_path_factory.mktemp("internet")
    names = [ALLOWED, PINNED, *(f"{number}.refused.test" for number in range(len(CLIENTS)))]
    authority = Authority(folder, ", ".join(f"DNS:{name}" for name in names))
    make_sites(folder)
    program = Path(__file__).parent / "fake_internet.py"
    command = ["ip", "netns", "exec", WORLD, "python3", str(program), ADDRESS, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None and running.stdout.readline() == b"ready\n"
        yield authority
        running.terminate()


@pytest.fixture(scope="module")
def box(server: Server, internet: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveSandbox]:
    """A sandbox of a server that resolves by the tests' names, and gives sandboxes the tests' authority."""
    trusted = tmp_path_factory.mktemp("trusted") / "ca.pem"
    given = os.environ.get("ARENITE_TEST_EXTRA_CA")
    trusted.write_text((Path(given).read_text() if given else "") + internet.ca.read_text())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARENITE_TEST_EXTRA_CA", str(trusted))
        server.restart(("--resolver", ADDRESS))
        name = f"clients-{uuid.uuid4().hex[:6]}"
        network = {"mode": "allowlist", "allow": [ALLOWED]}
        httpx.post(f"{server.url}/api/v2/sandboxes", json={"name": name, "image": "browser", "network": network}, timeout=180).raise_for_status()
        live = LiveSandbox(server.url, name, timeout=120)
        live.output(f"echo '{ADDRESS} {PINNED}' | sudo tee -a /etc/hosts")
        yield live
        live.delete()
    server.restart()


def refusals(box: LiveSandbox) -> list[dict[str, Any]]:
    network = httpx.get(f"{box.base_url}/api/v2/sandboxes/{box.name}/network", timeout=30).raise_for_status().json()
    return [event for event in network["events"] if event["kind"] == "decision" and not event["allowed"]]


def run(box: LiveSandbox, client: Client, host: str) -> tuple[int | None, str]:
    result = box.bash("{ " + client.command.format(host=host) + "; } 2>&1", hard_timeout=90)
    return result.exit_code, result.stdout or ""


def check(client: Client, events: list[dict[str, Any]], **wanted: Any) -> None:
    assert len(events) == 1 or client.tries_again, events
    assert all(wanted.items() <= event.items() for event in events), events


@pytest.mark.parametrize("which", CLIENTS)
def test_what_is_allowed_works(box: LiveSandbox, which: str) -> None:
    exit_code, said = run(box, CLIENTS[which], ALLOWED)
    assert exit_code == 0 and (WORD in said or "done" in said), said


@pytest.mark.parametrize("which", CLIENTS)
def test_a_refused_name_does_not_exist(box: LiveSandbox, which: str) -> None:
    client, host = CLIENTS[which], f"{list(CLIENTS).index(which)}.refused.test"
    _, said = run(box, client, host)
    assert client.unknown in said and WORD not in said, said
    until(lambda: any(event.get("name") == host for event in refusals(box)))
    check(client, [event for event in refusals(box) if event.get("name") == host], protocol="dns", reason="no_rule", port=53)


@pytest.mark.parametrize("which", CLIENTS)
def test_a_refused_connection_is_reset(box: LiveSandbox, which: str) -> None:
    client = CLIENTS[which]
    before = len(refusals(box))
    _, said = run(box, client, PINNED)
    assert client.reset in said and WORD not in said, said
    until(lambda: any(event.get("name") == PINNED for event in refusals(box)[before:]))
    protocol = "http" if which == "a raw socket" else "tls"
    # Chromium also asks for names that no page named.
    events = [event for event in refusals(box)[before:] if event.get("name") == PINNED]
    check(client, events, protocol=protocol, reason="no_rule", address=ADDRESS)


RAW = {
    "an address": ("s = socket.create_connection((A, 8123), 5); s.sendall(b'x'); print(s.recv(1))", "reset", "unknown_protocol"),
    "a server that speaks first": ("s = socket.create_connection((A, 22), 25); print(s.recv(1))", "reset", "silent"),
    "nothing that is known": ("s = socket.create_connection((A, 443), 5); s.sendall(b'hello there, this is no TLS\\n'); print(s.recv(1))", "reset", "unknown_protocol"),
    "TLS without a name": ("s = ssl._create_unverified_context().wrap_socket(socket.create_connection((A, 443), 5)); print(s.version())", "reset", "no_name"),
}


@pytest.mark.parametrize("what", RAW)
def test_raw_sockets(box: LiveSandbox, what: str) -> None:
    code, error, reason = RAW[what]
    before = len(refusals(box))
    result = box.bash(f'python3 -c "import socket, ssl; A = \'{ADDRESS}\'; {code}"', hard_timeout=30)
    assert result.exit_code != 0 and error in (result.stderr or "") + (result.stdout or ""), result
    until(lambda: len(refusals(box)) > before)
    [event] = refusals(box)[before:]
    assert (event["reason"], event["address"]) == (reason, ADDRESS)
