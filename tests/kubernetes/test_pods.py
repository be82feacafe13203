"""The engine `kubernetes`: sandboxes as pods of a real cluster."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from clusters import Cluster, Namespace
from pod_servers import TINY, PodServer, tiny_archive
from sandboxes import LiveSandbox
from waiting import until

GUEST_PORT = 8901


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="arenite-pods-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def server(cluster: Cluster, namespace: Namespace, folder: Path) -> Iterator[PodServer]:
    cluster.control("load", str(tiny_archive(folder)))
    # The level that most clusters demand of what strangers run.
    cluster.run("label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce=restricted")
    server = PodServer(folder, cluster, namespace)
    server.start()
    try:
        yield server
    finally:
        if server.process is None:
            server.start()
        server.delete_all_sandboxes()
        server.stop()


@pytest.fixture(autouse=True)
def end_of_test(server: PodServer) -> Iterator[None]:
    yield
    if server.process is None:
        server.start()
    server.delete_all_sandboxes()


def test_a_sandbox_is_a_restricted_pod_with_all_calls(server: PodServer) -> None:
    box = server.create("first", env={"GREETING": "hello"}, hostname="own-name")
    assert box.output("echo $GREETING $OF_IMAGE; pwd; id -u; hostname") == "hello yes\n/home/gem\n1000\nown-name"
    assert box.details()["tier"] == "namespace"
    written = box.http.post("/v1/file/write", json={"file": "/tmp/a/b.txt", "content": "one\n"}).json()
    assert written["success"], written
    assert box.output("cat /tmp/a/b.txt") == "one"
    assert box.client.shell.exec_command(command="echo $((40+2))").data.output.strip() == "42"
    # Neither the keys of its server nor the cluster's credentials are for its commands.
    variables = box.output("env")
    assert "ARENITE_SERVER_KEYS" not in variables and "KUBERNETES_SERVICE_HOST" not in variables
    assert box.bash("ls /var/run/secrets/kubernetes.io").exit_code != 0
    pod = server.pod(box)
    assert pod["metadata"]["labels"]["arenite.network"] == "open"
    assert pod["spec"]["automountServiceAccountToken"] is False
    owner = pod["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("Secret", f"arenite-{box.id}")
    # What it is for is in no field of the pod.
    assert "GREETING" not in json.dumps(pod)
    assert box.delete().status_code == 200
    assert server.left() == []


def by_mcp(box: LiveSandbox, command: str) -> str:
    """The answer of a tool that runs a command."""
    tool = {"name": "sandbox_execute_bash", "arguments": {"cmd": command}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": tool}
    headers = {"accept": "application/json, text/event-stream"}
    answer = httpx.post(f"{box.url}/mcp", json=call, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_the_agent_sandbox_dialect(server: PodServer) -> None:
    box = server.create("tools")
    assert "from-mcp" in by_mcp(box, "echo from-mcp")
    listed = httpx.get(f"{server.url}/api/v1/sandbox", timeout=30).json()
    assert [one["name"] for one in listed["data"]] == ["tools"]


def test_twenty_at_once(server: PodServer) -> None:
    with ThreadPoolExecutor(20) as pool:
        made = list(pool.map(server.create, [f"many-{n}" for n in range(20)]))
        # By AIO Sandbox's SDK, and by MCP.
        by_sdk = list(pool.map(lambda box: box.client.shell.exec_command(command="hostname").data.output.strip(), made))
        answers = list(pool.map(lambda box: by_mcp(box, "echo I am $(hostname)."), made))
    assert by_sdk == [box.name for box in made]
    assert [f"I am {box.name}." in answer for box, answer in zip(made, answers, strict=True)] == [True] * 20
    with ThreadPoolExecutor(20) as pool:
        assert all(answer.status_code == 200 for answer in pool.map(LiveSandbox.delete, made))
    assert server.left() == []


def test_pause_stops_all_processes_and_keeps_them(server: PodServer) -> None:
    box = server.create("paused")
    script = "n=0; while true; do n=$((n+1)); echo $n > /tmp/count; sleep 0.05; done"
    box.bash(script, async_mode=True)
    until(lambda: box.bash("cat /tmp/count").stdout)
    assert httpx.post(f"{server.url}/api/v2/sandboxes/paused/pause", timeout=60).status_code == 200
    pod = f"arenite-{box.id}"
    count = ("exec", pod, "--container", "sandbox", "--", "cat", "/tmp/count")
    before = server.namespace.run(*count)
    time.sleep(0.5)
    assert server.namespace.run(*count) == before, "it runs on"
    # The next server finds it paused.
    server.kill()
    server.start()
    assert box.details()["state"] == "paused"
    # A call wakes it, and the loop goes on.
    count_now = int(box.output("cat /tmp/count"))
    until(lambda: int(box.output("cat /tmp/count")) > count_now)


def test_a_killed_server_finds_its_pods_again(server: PodServer) -> None:
    box = server.create("adopted", labels={"a": "b"})
    box.output("echo kept > /tmp/file")
    uid = server.pod(box)["metadata"]["uid"]
    server.kill()
    # Without its store, too: the record is in the cluster.
    for file in server.data_dir.glob("control.sqlite*"):
        file.unlink()
    server.start()
    assert box.details()["spec"]["labels"] == {"a": "b"}
    assert box.output("cat /tmp/file") == "kept"
    assert server.pod(box)["metadata"]["uid"] == uid


def test_a_server_killed_during_creates_leaves_nothing_double(server: PodServer) -> None:
    def create(name: str) -> None:
        body = {"name": name, "image": "tiny", "resources": {"memory_bytes": 128 << 20, "cpu_millis": 200, "shm_bytes": 16 << 20}}
        try:
            httpx.post(f"{server.url}/api/v2/sandboxes", json=body, timeout=60)
        except httpx.TransportError:
            pass

    with ThreadPoolExecutor(6) as pool:
        waiting = [pool.submit(create, f"cut-{n}") for n in range(6)]
        time.sleep(0.6)
        server.kill()
        for one in waiting:
            one.result()
    server.start()
    with httpx.Client(base_url=server.url, timeout=30) as api:
        alive = api.get("/api/v2/sandboxes").json()["sandboxes"]
    # Each sandbox has one pod and one record, and nothing else is there.
    until(lambda: len(server.left()) == 2 * len(alive))
    for one in alive:
        assert LiveSandbox(server.url, one["name"]).output("hostname") == one["name"]


def test_creates_wait_for_a_restart_of_the_api_server(server: PodServer) -> None:
    before = server.create("before")
    with ThreadPoolExecutor(4) as pool:
        with server.namespace.cluster.without("apiserver"):
            waiting = [pool.submit(server.create, f"during-{n}") for n in range(4)]
            # Calls into sandboxes need no API server.
            assert before.output("echo still") == "still"
        made = [one.result() for one in waiting]
    assert sorted(box.output("hostname") for box in made) == [f"during-{n}" for n in range(4)]
    pods = [name for name in server.left() if name.startswith("pod/")]
    assert len(pods) == 5


def test_a_pod_that_ends_by_itself_fails_its_sandbox(server: PodServer) -> None:
    box = server.create("deleted-outside")
    server.namespace.run("delete", "pod", f"arenite-{box.id}", "--grace-period=1")
    until(lambda: box.details()["state"] == "failed")
    assert "deleted from the cluster" in box.details()["died"]["message"], box.details()
    refused = httpx.post(f"{server.url}/api/v2/sandboxes/deleted-outside/start", timeout=60)
    assert refused.status_code == 501, refused.text
    box.delete()
    assert server.left() == []


def test_an_image_that_can_not_be_pulled_is_named(cluster: Cluster, namespace: Namespace, server: PodServer) -> None:
    refused = server.create("stranger", status=403, image="registry.invalid/none:1")
    assert "image_registry" in refused["hint"], refused
    folder = Path(tempfile.mkdtemp(prefix="arenite-pods-"))
    named = ("--kubernetes-image", "gone=localhost/gone:1", "--kubernetes-name", "other")
    other = PodServer(folder, cluster, namespace, args=named)
    other.start()
    try:
        refused = other.create("gone", status=502, image="gone")
        answered = datetime.now(UTC)
        assert "localhost/gone:1" in refused["detail"], refused
        failed = namespace.run("get", "events", "--field-selector", "reason=Failed", "--output", "json")
        events = [event for event in json.loads(failed)["items"] if "localhost/gone:1" in event["message"]]
        said = min(datetime.fromisoformat(event["firstTimestamp"]) for event in events)
        # The time of an event is in whole seconds.
        assert answered - said < timedelta(seconds=3), (said, answered)
        assert server.left() == []
    finally:
        other.stop()
        shutil.rmtree(folder, ignore_errors=True)


def test_a_pod_that_fits_on_no_node_is_said_at_once(server: PodServer) -> None:
    begun = time.monotonic()
    resources = {"memory_bytes": 1 << 43, "cpu_millis": 200, "shm_bytes": 16 << 20}
    refused = server.create("huge", status=502, resources=resources)
    assert "Unschedulable" in refused["detail"] and "memory" in refused["detail"], refused
    assert time.monotonic() - begun < 10
    assert server.left() == []


def test_what_kubernetes_can_not_enforce_is_refused(server: PodServer) -> None:
    refused = server.create("none", status=501, network="none")
    assert "network policies" in refused["detail"], refused
    refused = server.create("tier", status=501, tier="gvisor")
    assert "kubernetes_runtime_class" in refused["hint"], refused
    refused = server.create("pids", status=501, resources={"pids": 99})
    assert "podPidsLimit" in refused["detail"], refused
    assert server.left() == []


def test_only_its_server_reaches_a_guest(server: PodServer) -> None:
    box = server.create("guarded")
    address = server.pod(box)["status"]["podIP"]
    # Without TLS, and with TLS but without the server's key.
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{address}:{GUEST_PORT}/internal/pod", timeout=10)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.raises((ssl.SSLError, ConnectionError)):
        with socket.create_connection((address, GUEST_PORT), timeout=10) as plain, context.wrap_socket(plain) as stream:
            stream.sendall(b"GET /internal/pod HTTP/1.1\r\nhost: a\r\n\r\n")
            assert not stream.recv(1000)
            raise ConnectionError("closed")
    # Another server's key is another server.
    server.stop()
    identity = server.data_dir / "kubernetes-identity.pem"
    kept = identity.read_bytes()
    identity.unlink()
    server.start()
    refused = box.http.post("/v1/bash/exec", json={"command": "true"})
    assert refused.status_code == 502, refused.text
    server.stop()
    identity.write_bytes(kept)
    server.start()
    assert box.output("echo back") == "back"


def test_a_pool_has_pods_in_advance(cluster: Cluster, namespace: Namespace, server: PodServer, folder: Path) -> None:
    del server
    (folder / "templates").mkdir()
    (folder / "templates" / "ready.toml").write_text(
        'image = "tiny"\npool = 2\n[resources]\nmemory_bytes = 134217728\ncpu_millis = 200\nshm_bytes = 16777216\n'
    )
    settings = ("--templates-dir", str(folder / "templates"), "--kubernetes-name", "pooled")
    other = PodServer(folder / "pooled", cluster, namespace, args=settings)
    other.data_dir.parent.mkdir()
    other.start()
    selector = ("get", "pods", "--selector", "arenite.installation=pooled", "--output", "name")
    try:
        until(lambda: len(namespace.run(*selector).split()) == 2, patience=60)
        time.sleep(2)
        before = set(namespace.run(*selector).split())
        answer = httpx.post(f"{other.url}/api/v2/sandboxes", json={"name": "claimed", "template": "ready", "env": {"A": "1"}}, timeout=60)
        assert answer.status_code == 201, answer.text
        box = LiveSandbox(other.url, "claimed")
        assert f"pod/arenite-{box.id}" in before, "it was created for this"
        assert box.output("echo $A") == "1"
    finally:
        other.delete_all_sandboxes()
        other.stop()
    # What was not claimed does not outlive its server.
    other.start()
    other.stop()
    until(lambda: not namespace.run("get", "secrets", "--selector", "arenite.installation=pooled", "--output", "name"), patience=60)


def test_a_template_of_the_operator_is_merged(cluster: Cluster, namespace: Namespace, server: PodServer, folder: Path) -> None:
    del server
    file = folder / "template.yaml"
    file.write_text(
        "metadata:\n  labels: {team: research}\nspec:\n  containers:\n  - name: sandbox\n    env: [{name: FROM_TEMPLATE, value: 'yes'}]\n"
        "  nodeSelector: {kubernetes.io/os: linux}\n"
    )
    settings = ("--kubernetes-template", str(file), "--kubernetes-name", "templated")
    other = PodServer(folder / "templated", cluster, namespace, args=settings)
    other.data_dir.parent.mkdir()
    other.start()
    try:
        box = other.create("shaped")
        assert box.output("echo $FROM_TEMPLATE") == "yes"
        pod = other.pod(box)
        assert pod["metadata"]["labels"]["team"] == "research" and "nodeSelector" in pod["spec"]
        assert pod["spec"]["containers"][0]["image"] == TINY
    finally:
        other.delete_all_sandboxes()
        other.stop()


def test_a_warm_pool_of_agent_sandbox_gives_pods(cluster: Cluster, namespace: Namespace, server: PodServer, folder: Path) -> None:
    del server
    settings = ("--kubernetes-warm-pool", "tiny=tiny-pool", "--kubernetes-name", "claiming")
    other = PodServer(folder / "claiming", cluster, namespace, args=settings)
    other.data_dir.parent.mkdir()
    shown = subprocess.run(other.command_line(("--show-warm-pool", "tiny")), capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    objects = json.loads(shown.stdout)
    pool = objects["items"][1]
    pool["spec"]["replicas"] = 2
    container = objects["items"][0]["spec"]["podTemplate"]["spec"]["containers"][0]
    # The default resources are more than two of these nodes have.
    container["resources"] = {"limits": {"memory": "128Mi", "cpu": "200m"}, "requests": {"memory": "64Mi", "cpu": "20m"}}
    namespace.apply(*objects["items"])
    namespace.wait("sandboxwarmpool/tiny-pool", "jsonpath={.status.readyReplicas}=2", 120)
    warm = {pod["metadata"]["name"] for pod in namespace.get("pods")["items"]}
    other.start()
    try:
        begun = time.monotonic()
        answer = httpx.post(f"{other.url}/api/v2/sandboxes", json={"name": "warm", "image": "tiny", "env": {"A": "1"}}, timeout=120)
        assert answer.status_code == 201, answer.text
        took = time.monotonic() - begun
        box = LiveSandbox(other.url, "warm")
        pod = namespace.get("pods", "--selector", f"arenite.sandbox={box.id}")["items"][0]
        assert pod["metadata"]["name"] in warm, "it was created for this"
        assert pod["metadata"]["ownerReferences"][0]["kind"] == "Sandbox"
        assert box.output("echo $A $OF_IMAGE") == "1 yes"
        print(f"a claim took {took:.2f} s")
        other.kill()
        other.start()
        assert box.output("echo again") == "again"
        assert box.delete().status_code == 200
        assert not namespace.run("get", "sandboxclaims", "--output", "name")
        assert not [p for p in namespace.get("pods")["items"] if p["metadata"]["uid"] == pod["metadata"]["uid"]]
    finally:
        if other.process is None:
            other.start()
        other.delete_all_sandboxes()
        other.stop()
        namespace.run("delete", "sandboxwarmpool/tiny-pool", "sandboxtemplate/tiny-pool")
