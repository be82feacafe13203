"""TLS: real clients over HTTP/1.1 and HTTP/2, WebSockets, renewed and broken certificates, and a stop."""

from __future__ import annotations

import json
import os
import pty
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from arenite_server import Server, binary, free_port
from authority import Authority
from sandboxes import LiveSandbox
from small import within
from websockets.sync.client import connect

KEY = "0123456789abcdef0123456789abcdef"


def served(server: Server, authority: Authority) -> str:
    """The certificate that a new connection gets."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as plain:
        with authority.context.wrap_socket(plain, server_hostname="localhost") as secured:
            return ssl.DER_cert_to_PEM_cert(secured.getpeercert(binary_form=True))


@pytest.fixture
def box(secured: Server) -> LiveSandbox:
    httpx.post(f"{secured.url}/api/v2/sandboxes", json={"name": "box"}, timeout=60).raise_for_status()
    return LiveSandbox(secured.url, "box")


def cli(server: Server, *args: str, ca: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ARENITE_") and k != "SSL_CERT_FILE"}
    environment |= {"ARENITE_SERVER": server.url} | ({"ARENITE_CA": str(ca)} if ca else {})
    return subprocess.run([str(binary()), *args], capture_output=True, text=True, timeout=60, env=environment)


def test_clients_of_http_1_and_2_get_addresses_with_https(secured: Server, authority: Authority, box: LiveSandbox) -> None:
    for http2, version in ((False, "HTTP/1.1"), (True, "HTTP/2")):
        with httpx.Client(base_url=secured.url, http2=http2, verify=authority.context) as client:
            answer = client.get("/api/v2/sandboxes/box")
            assert (answer.status_code, answer.http_version) == (200, version)
            urls = answer.json()["urls"]
            assert urls["path"] == f"{secured.url}/sandbox/box/" and urls["host"] == f"https://{box.id}.localhost:{secured.port}/"
            ran = client.post("/sandbox/box/v1/bash/exec", json={"command": "echo $((6*7))"})
            assert ran.json()["data"]["stdout"].strip() == "42", ran.text
            # The sandbox's own host, and a port's.
            host = {"host": f"{box.id}.localhost:{secured.port}"}
            assert client.get("/v1/ping", headers=host).status_code == 200
            page = {"host": f"localhost:{secured.port}", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
            opened = client.get("/sandbox/box/proxy/3000/", headers=page)
            assert opened.headers.get("location", "").startswith(f"https://3000-{box.id}.localhost:{secured.port}/"), opened.headers
    for flag, version in (("--http1.1", "1.1"), ("--http2", "2")):
        command = ["curl", "-sS", flag, "-o", "/dev/null", "-w", "%{http_code} %{http_version}", f"{secured.url}/ready"]
        environment = {k: v for k, v in os.environ.items() if k != "SSL_CERT_FILE"}
        trusting = subprocess.run([*command, "--cacert", str(authority.ca)], capture_output=True, text=True, env=environment)
        assert trusting.stdout == f"200 {version}", trusting
        assert subprocess.run(command, capture_output=True, env=environment).returncode == 60, "curl trusts it without the CA"
    plain = httpx.get(f"http://127.0.0.1:{secured.port}/ready")
    assert (plain.status_code, plain.text) == (400, "this port needs TLS: use https:// instead of http://")


def test_the_sdk_and_websockets(secured: Server, authority: Authority, box: LiveSandbox) -> None:
    assert box.output("echo from the SDK") == "from the SDK"
    box.client.file.write_file(file="/root/large", content="x" * 1_000_000)
    assert len(box.client.file.read_file(file="/root/large").data.content) == 1_000_000
    address = f"wss://localhost:{secured.port}/sandbox/box/v1/shell/ws"
    with connect(address, ssl=authority.context, open_timeout=30) as terminal:
        terminal.send(json.dumps({"type": "input", "data": "echo $((40+2))\n"}))
        seen = ""
        deadline = time.monotonic() + 30
        while "\n42" not in seen.replace("\r", "") and time.monotonic() < deadline:
            frame = json.loads(terminal.recv(timeout=30))
            seen += frame["data"] if frame["type"] == "output" else ""
        assert "\n42" in seen.replace("\r", ""), seen


def test_the_command_line_trusts_the_named_authority(secured: Server, authority: Authority, box: LiveSandbox) -> None:
    listed = cli(secured, "ls", "-q", ca=authority.ca)
    assert (listed.returncode, listed.stdout) == (0, "box\n"), listed.stderr
    ran = cli(secured, "exec", "box", "--", "echo", "over TLS", ca=authority.ca)
    assert (ran.returncode, ran.stdout) == (0, "over TLS\n"), ran.stderr
    untrusted = cli(secured, "ls")
    assert untrusted.returncode == 5 and "UnknownIssuer" in untrusted.stderr and "--ca" in untrusted.stderr, untrusted.stderr
    missing = cli(secured, "ls", "--ca", "/does/not/exist.pem")
    assert missing.returncode == 2 and "/does/not/exist.pem" in missing.stderr, missing.stderr
    # A terminal is a WebSocket.
    ours, theirs = pty.openpty()
    environment = dict(os.environ) | {"ARENITE_SERVER": secured.url, "ARENITE_CA": str(authority.ca)}
    command = [str(binary()), "exec", "box", "--", "sh", "-c", "test -t 0 && echo on a terminal"]
    shown = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    assert shown.wait(60) == 0
    assert b"on a terminal" in os.read(ours, 65536)
    os.close(ours)


def test_a_rollout_passes_the_authority_to_its_agents(secured: Server, authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"id": "one", "question": "?"}\n')
    agent = 'curl -sSf --cacert "$ARENITE_CA" "$ARENITE_SERVER/ready" > "$ARENITE_RESULT"'
    command = ["rollout", "run", str(tmp_path / "tasks.jsonl"), "--agent", agent, "--out", str(tmp_path / "out"), "--json"]
    ran = cli(secured, *command, ca=authority.ca)
    assert ran.returncode == 0 and json.loads(ran.stdout)["by_status"]["success"] == 1, (ran.stdout, ran.stderr)


def test_cookies_are_secure(own_server: Callable[..., Server], authority: Authority) -> None:
    files = ("--tls-cert", str(authority.cert), "--tls-key", str(authority.key))
    server = own_server(args=(*files, "--api-key", KEY))
    server.scheme = "https"
    server.start()
    with httpx.Client(base_url=server.url) as browser:
        signed_in = browser.post("/login", json={"key": KEY})
        assert signed_in.status_code == 204 and "; Secure" in signed_in.headers["set-cookie"], signed_in.headers
        assert browser.get("/api/v2/sandboxes").status_code == 200
    said = server.log_tail()
    assert f"serving on https://127.0.0.1:{server.port}" in said and KEY not in said, said


def test_certificates_are_read_again_when_they_change(secured: Server, authority: Authority) -> None:
    def warnings() -> list[str]:
        return httpx.get(f"{secured.url}/api/v2/info").json()["warnings"]

    def metric(name: str) -> float:
        lines = httpx.get(f"{secured.url}/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    first = served(secured, authority)
    assert not [warning for warning in warnings() if "TLS" in warning]
    with httpx.Client(base_url=secured.url) as before:
        before.get("/ready").raise_for_status()
        authority.issue()
        within(30, "the renewed certificate is served", lambda: served(secured, authority) != first)
        before.get("/ready").raise_for_status()
    assert served(secured, authority) == authority.cert.read_text()
    assert metric("arenite_tls_certificate_outdated") == 0

    good = authority.cert.read_text()
    text = "the changed TLS certificate is not used"
    # A key of another pair, then no certificate at all.
    authority.cert.write_bytes(authority.ca.read_bytes())
    within(30, "a mismatch is a warning", lambda: any(text in warning for warning in warnings()))
    assert served(secured, authority) == good
    assert metric("arenite_tls_certificate_outdated") == 1
    # Two looks more see no further change.
    time.sleep(3)
    assert secured.log_tail(100_000).count(text) == 1
    authority.cert.write_text("nothing")
    within(30, "the next change is logged as well", lambda: secured.log_tail(100_000).count(text) == 2)
    assert served(secured, authority) == good

    authority.issue(days=5)
    within(30, "an early expiry is a warning", lambda: any("expires at" in warning for warning in warnings()))
    assert served(secured, authority) == authority.cert.read_text()
    assert not [warning for warning in warnings() if text in warning]
    assert 4 < (metric("arenite_tls_certificate_expiry_timestamp_seconds") - time.time()) / 86_400 < 5.01


def test_a_stop_lets_calls_end(secured: Server, box: LiveSandbox) -> None:
    answers: list[httpx.Response] = []
    call = threading.Thread(target=lambda: answers.append(box.http.post("/v1/bash/exec", json={"command": "touch /tmp/begun; sleep 3; echo ended"})))
    call.start()
    within(30, "the call runs", lambda: box.bash("test -e /tmp/begun").exit_code == 0)
    silent = socket.create_connection(("127.0.0.1", secured.port))
    assert secured.stop() == 0
    call.join(30)
    silent.close()
    assert answers and answers[0].json()["data"]["stdout"].strip() == "ended", answers
    # The sandbox lives on, and the next start serves it.
    secured.start()
    assert box.output("echo again") == "again"


def test_a_server_does_not_start_with_a_pair_that_cannot_be_used(authority: Authority) -> None:
    for cert, key, reason in (
        (authority.cert, authority.folder / "ca.key", "can't be used together"),
        (authority.folder / "none.pem", authority.key, "could not read"),
        (authority.key, authority.key, "has no valid PEM certificate"),
        (authority.cert, None, "tls_key has to be set, too"),
    ):
        command = [str(binary()), "serve", "--validate", "--tls-cert", str(cert), *(["--tls-key", str(key)] if key else [])]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ARENITE_")}
        ended = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert ended.returncode == 2 and reason in ended.stderr, ended.stderr


def test_agentflows_address_on_loopback_stays_plain(own_server: Callable[..., Server], authority: Authority) -> None:
    server = own_server(args=("--tls-cert", str(authority.cert), "--tls-key", str(authority.key)))
    server.scheme = "https"
    server.agentflow = f"127.0.0.1:{free_port()}"
    server.start()
    assert httpx.get(f"http://{server.agentflow}/health").status_code == 200
    assert f"https://127.0.0.1:{server.port} and http://{server.agentflow}" in server.log_tail()
