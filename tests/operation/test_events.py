"""Events of sandboxes: the command line, webhooks across crashes, traces, and fields of log lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server, binary, free_port
from commands import environment, run
from receivers import Receiver, is_signed
from sandboxes import LiveSandbox
from small import tiny_image

LOOPBACK = ("--webhook-allow", "127.0.0.0/8")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def served(own_server: Callable[..., Server]) -> Iterator[Callable[..., Server]]:
    """Starts a server with the image `tiny`."""
    servers: list[Server] = []

    def start(*args: str) -> Server:
        server = own_server(args=("--default-image", "tiny", *args))
        server.start()
        tiny_image(server.data_dir / "pool")
        servers.append(server)
        return server

    yield start
    for server in servers:
        if server.process is not None:
            server.delete_all_sandboxes()


def post(server: Server, path: str, **body: Any) -> Any:
    answer = httpx.post(f"{server.url}{path}", json=body, timeout=60)
    assert answer.is_success, answer.text
    return answer.json()


def test_events_are_listed_and_followed(served: Callable[..., Server]) -> None:
    server = served()
    post(server, "/api/v2/sandboxes", name="first", labels={"team": "red"})
    following = subprocess.Popen(
        [str(binary()), "events", "--follow", "--json", "--label", "team=red"],
        stdout=subprocess.PIPE,
        env=environment(server),
        text=True,
    )
    try:
        assert following.stdout is not None
        lines = (json.loads(line) for line in following.stdout)
        assert [next(lines)["type"] for _ in range(2)] == ["sandbox.creating", "sandbox.created"]
        post(server, "/api/v2/sandboxes", name="second")
        post(server, "/api/v2/sandboxes/first/pause")
        assert run(server, "exec", "first", "--", "true").returncode == 0
        os.kill(server_guest(server, "first"), signal.SIGKILL)
        seen = [next(lines) for _ in range(3)]
        assert [event["type"] for event in seen] == ["sandbox.paused", "sandbox.resumed", "sandbox.died"]
        assert {event["sandbox"]["name"] for event in seen} == {"first"} and seen[2]["reason"], seen
        server.stop()
        assert following.wait(30) == 1
    finally:
        following.kill()
        following.wait()
    server.start()
    post(server, "/api/v2/sandboxes/first/start")
    listed = run(server, "events", "--sandbox", "first", "--type", "sandbox.started")
    assert listed.stdout.split()[1:] == ["sandbox.started", "first"], listed
    assert run(server, "events", "--type", "started").returncode == 2


def server_guest(server: Server, name: str) -> int:
    """The first process of a sandbox, by its pid on the host."""
    sandbox = httpx.get(f"{server.url}/api/v2/sandboxes/{name}", timeout=60).json()
    for status in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            if f"{sandbox['id']}/guest" in status.read_text():
                return int(status.parent.name)
        except OSError:
            continue
    raise AssertionError(f"no process is the guest of {name}")


def test_webhooks_get_signed_events_also_after_a_kill(served: Callable[..., Server]) -> None:
    server = served(*LOOPBACK)
    port = free_port()
    made = run(server, "webhook", "create", f"http://127.0.0.1:{port}/hook", "--type", "sandbox.created", "--json")
    hook = json.loads(made.stdout)
    secret = hook["secret"]
    # Nobody listens yet, and the server dies.
    post(server, "/api/v2/sandboxes", name="early")
    deadline = time.monotonic() + 30
    while not (waiting := deliveries(server, hook["id"])) or not waiting[0]["attempts"]:
        assert time.monotonic() < deadline, waiting
        time.sleep(0.02)
    server.kill()
    server.start()
    receiver = Receiver(port)
    try:
        headers, body = receiver.wait(lambda _, body: body["sandbox"]["name"] == "early")
        assert is_signed(secret, headers) and not is_signed("whsec_c2VjcmV0", headers)
        assert headers["webhook-id"] == body["id"] and headers["path"] == "/hook"
        post(server, "/api/v2/sandboxes", name="late")
        receiver.wait(lambda _, body: body["sandbox"]["name"] == "late")
        assert {body["type"] for _, body in receiver.received} == {"sandbox.created"}
        listed = run(server, "webhook", "ls")
        assert hook["id"] in listed.stdout and "whsec" not in listed.stdout
        tested = run(server, "webhook", "test", hook["id"])
        assert tested.returncode == 0 and tested.stdout.startswith("delivered"), tested
        receiver.status = 500
        failed = run(server, "webhook", "test", hook["id"])
        assert failed.returncode == 1 and "500" in failed.stderr, failed
        assert run(server, "webhook", "rm", hook["id"]).stdout.split() == [hook["id"]]
        assert run(server, "webhook", "rm", hook["id"]).returncode == 3
    finally:
        receiver.close()


def deliveries(server: Server, hook: str, state: str = "") -> list[dict[str, Any]]:
    query = f"?state={state}" if state else ""
    return httpx.get(f"{server.url}/api/v2/webhooks/{hook}/deliveries{query}", timeout=60).raise_for_status().json()["deliveries"]


def test_deliveries_that_fail_for_too_long_are_dead_until_they_are_sent_by_hand(
    served: Callable[..., Server], receiver: Receiver
) -> None:
    server = served(*LOOPBACK, "--webhook-retry-seconds", "1")
    receiver.status = 503
    hook = post(server, "/api/v2/webhooks", url=receiver.url, types=["sandbox.created"])["id"]
    post(server, "/api/v2/sandboxes", name="one")
    deadline = time.monotonic() + 30
    while not (dead := deliveries(server, hook, "dead")):
        assert time.monotonic() < deadline, deliveries(server, hook)
        time.sleep(0.05)
    assert dead[0]["attempts"] >= 2 and dead[0]["status"] == 503 and "503" in dead[0]["error"], dead
    table = run(server, "webhook", "deliveries", hook, "--state", "dead").stdout
    assert "one" in table and "dead" in table, table
    receiver.status = 200
    assert run(server, "webhook", "redeliver", hook, str(dead[0]["number"])).returncode == 0
    while not deliveries(server, hook, "delivered"):
        assert time.monotonic() < deadline, deliveries(server, hook)
        time.sleep(0.05)


def test_without_an_opened_range_webhooks_reach_no_private_address(served: Callable[..., Server], receiver: Receiver) -> None:
    server = served()
    for url in (receiver.url, f"http://localhost:{receiver.port}", f"http://[::ffff:127.0.0.1]:{receiver.port}", server.url):
        hook = post(server, "/api/v2/webhooks", url=url)
        tested = run(server, "webhook", "test", hook["id"])
        assert tested.returncode == 1 and "not public" in tested.stderr, tested
    assert not receiver.received


def spans(receiver: Receiver) -> list[dict[str, Any]]:
    documents = [body for _, body in list(receiver.received)]
    return [
        span
        for document in documents
        for resource in document["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def whole_trace(receiver: Receiver, root: str) -> dict[str, dict[str, Any]]:
    """The spans of the trace with this root, by their names."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = spans(receiver)
        for span in found:
            if span["name"] == root:
                return {one["name"]: one for one in found if one["traceId"] == span["traceId"]}
        time.sleep(0.05)
    raise AssertionError(f"no trace has the root {root}: {[span['name'] for span in spans(receiver)]}")


def test_a_collector_gets_one_trace_for_each_call(served: Callable[..., Server], receiver: Receiver) -> None:
    server = served("--otlp-endpoint", receiver.url)
    post(server, "/api/v2/sandboxes", name="traced")
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    call = httpx.post(f"{server.url}/sandbox/traced/v1/bash/exec", json={"command": "echo $TRACE"}, headers=headers, timeout=60)
    assert call.status_code == 200 and "handler" not in call.headers["server-timing"], call.headers
    created = whole_trace(receiver, "POST /api/v2/sandboxes")
    assert receiver.received[0][0]["path"] == "/v1/traces"
    engine = [name for name in created if name.startswith("engine.")]
    assert {"sandbox.create", "control.admit", "control.store"} <= set(created) and engine, created.keys()
    called = whole_trace(receiver, "POST /v1/bash/exec")
    assert set(called) == {"POST /v1/bash/exec", "lease", "guest.call", "guest.dial", "guest.handler"}, called.keys()
    root = called["POST /v1/bash/exec"]
    assert (root["traceId"], root["parentSpanId"]) == (trace, "b7ad6b7169203331")
    for child, parent in (("lease", "POST /v1/bash/exec"), ("guest.call", "POST /v1/bash/exec"), ("guest.handler", "guest.call")):
        assert called[child]["parentSpanId"] == called[parent]["spanId"], child
        for edge in ("startTimeUnixNano", "endTimeUnixNano"):
            start, end = (int(called[parent][name]) for name in ("startTimeUnixNano", "endTimeUnixNano"))
            assert start - 1_000_000 <= int(called[child][edge]) <= end + 1_000_000, (child, edge)
    attributes = {one["key"]: one["value"]["stringValue"] for one in root["attributes"]}
    assert attributes["http.response.status_code"] == "200" and attributes["arenite.tenant"] == "default", attributes
    # Not sampled by its caller.
    quiet = {"traceparent": "00-11111111111111111111111111111111-b7ad6b7169203331-00"}
    httpx.get(f"{server.url}/api/v2/me", headers=quiet, timeout=60).raise_for_status()
    # A collector that is gone delays nothing.
    receiver.close()
    begun = time.monotonic()
    for _ in range(50):
        LiveSandbox(server.url, "traced").bash("true")
    assert time.monotonic() - begun < 20
    assert all(span["traceId"] != "1" * 32 for span in spans(receiver))


def test_lines_of_the_log_name_tenant_sandbox_and_step(served: Callable[..., Server]) -> None:
    server = served("--log-format", "json")
    made = post(server, "/api/v2/sandboxes", name="logged")
    lines = [json.loads(line) for line in server.log_path.read_text().splitlines() if line.startswith("{")]
    line = next(line for line in lines if line["fields"]["message"] == "made a sandbox")
    assert line["fields"]["id"] == made["id"] and line["span"]["tenant"] == "default" and line["span"]["id"], line
    httpx.delete(f"{server.url}/api/v2/sandboxes/logged", timeout=60).raise_for_status()
    lines = [json.loads(line) for line in server.log_path.read_text().splitlines() if line.startswith("{")]
    line = next(line for line in lines if line["fields"]["message"] == "removed a sandbox")
    assert line["span"]["sandbox"] == made["id"] and line["span"]["step"] > 0, line
