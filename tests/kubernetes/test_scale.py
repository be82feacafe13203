"""Many life cycles through the control plane, on nodes that kwok plays: writes of the API server, memory, and our own time.

kwok's pods run nothing. Their guests are played by `crates/kubernetes/examples/guests.rs`, a fake that proves its identity and
takes its assignment as a real guest does. API server, scheduler, records and watches are the real ones.

`ARENITE_TEST_KUBERNETES_SANDBOXES=5000` makes it as long as docs/KUBERNETES.md says.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from clusters import ON_FAKE_NODES, Cluster, Namespace, setting
from pod_servers import PodServer

TOTAL = int(os.environ.get("ARENITE_TEST_KUBERNETES_SANDBOXES", "300"))
#: Sandboxes that are alive at once, and creates at once.
WAVE, AT_ONCE = 100, 20
#: Writes of a sandbox: its Secret, its pod, the review of its token, its key in the Secret, and the two deletes.
WRITES = 6
#: Stages of a create in which Kubernetes or the guest works.
OF_OTHERS = ("record", "pod", "start", "identity", "record of its key", "assignment")

pytestmark = pytest.mark.timeout(3600)


def kubeconfig_of_account(cluster: Cluster, namespace: Namespace, folder: Path) -> Path:
    """Of an account of the server alone, so that the audit log tells its writes from kwok's."""
    namespace.run("create", "serviceaccount", "arenite")
    binding = f"--serviceaccount={namespace.name}:arenite"
    namespace.run("create", "rolebinding", "arenite", "--clusterrole=admin", binding)
    reviews = ("create", "clusterrolebinding", f"reviews-{namespace.name}", "--clusterrole=system:auth-delegator", binding)
    cluster.run(*reviews)
    token = namespace.run("create", "token", "arenite", "--duration=10h").strip()
    config = json.loads(cluster.run("config", "view", "--raw", "--output", "json"))
    for user in config["users"]:
        user["user"] = {"token": token}
    file = folder / "kubeconfig.json"
    file.write_text(json.dumps(config))
    return file


@pytest.fixture
def server(cluster: Cluster, namespace: Namespace, tmp_path: Path) -> Iterator[PodServer]:
    template = tmp_path / "template.yaml"
    template.write_text(yaml.safe_dump({"spec": ON_FAKE_NODES}))
    config = kubeconfig_of_account(cluster, namespace, tmp_path)
    args = ("--kubernetes-template", str(template), "--kubernetes-name", "scaled")
    server = PodServer(tmp_path / "server", cluster, namespace, args, kubeconfig=config)
    server.data_dir.parent.mkdir()
    server.start()
    identity = server.data_dir / "kubernetes-identity.pem"
    words = [setting("ARENITE_TEST_GUESTS"), str(cluster.kubeconfig), namespace.name, "arenite.installation=scaled", str(identity)]
    log = tmp_path / "guests.log"
    with log.open("w") as output:
        guests = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=output, text=True)
    try:
        assert guests.stdout is not None and guests.stdout.readline() == "guests listen\n", log.read_text()
        yield server
    finally:
        server.delete_all_sandboxes()
        server.stop()
        guests.kill()
        guests.wait()
        cluster.run("delete", "clusterrolebinding", f"reviews-{namespace.name}")


def resident(server: PodServer) -> int:
    """Memory of the server's process in MiB."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) // 1024


def writes(namespace: Namespace) -> Counter[str]:
    """What the server's account wrote, by verb and resource, as the API server counts it."""
    account = f"system:serviceaccount:{namespace.name}:arenite"
    found: Counter[str] = Counter()
    with Path(setting("ARENITE_TEST_AUDIT_LOG")).open() as log:
        for line in log:
            event = json.loads(line)
            if event["user"]["username"] == account and event["stage"] == "ResponseComplete":
                found[f"{event['verb']} {event['objectRef']['resource']}"] += 1
    return found


def test_life_cycles_cost_the_same_at_any_number(server: PodServer, namespace: Namespace) -> None:
    own, whole, memory = [], [], []
    resources = {"memory_bytes": 128 << 20, "cpu_millis": 100, "shm_bytes": 16 << 20}
    with httpx.Client(base_url=server.url, timeout=300, limits=httpx.Limits(max_connections=AT_ONCE)) as api:

        def create(name: str) -> dict[str, Any]:
            begun = time.monotonic()
            answer = api.post("/api/v2/sandboxes", json={"name": name, "image": "tiny", "resources": resources})
            took = (time.monotonic() - begun) * 1000
            assert answer.status_code == 201, answer.text
            stages = {stage["name"]: stage["ms"] for stage in answer.json()["stages"]}
            assert set(OF_OTHERS) <= stages.keys(), stages
            whole.append(took)
            own.append(took - sum(stages[name] for name in OF_OTHERS))
            return answer.json()

        def delete(sandbox: dict[str, Any]) -> None:
            answer = api.delete(f"/api/v2/sandboxes/{sandbox['name']}")
            assert answer.status_code in (200, 204), answer.text

        begun = time.monotonic()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for first in range(0, TOTAL, WAVE):
                made = list(pool.map(create, [f"many-{n}" for n in range(first, min(first + WAVE, TOTAL))]))
                list(pool.map(delete, made))
                memory.append(resident(server))
        took = time.monotonic() - begun
    assert server.left() == []
    counted = writes(namespace)
    each = {what: number / TOTAL for what, number in counted.items()}
    centile = lambda values, at: statistics.quantiles(values, n=100)[at - 1]  # noqa: E731
    print(f"\n{TOTAL} life cycles in {took:.0f} s, {AT_ONCE} at once: {sum(each.values()):.2f} writes each {each}")
    print(f"create: p50 {centile(whole, 50):.0f} ms, p99 {centile(whole, 99):.0f} ms")
    print(f"of that our own: p50 {centile(own, 50):.1f} ms, p99 {centile(own, 99):.1f} ms")
    print(f"memory of the server after each wave, MiB: {memory}")
    # A watch or a retry may add some, and an own pod's end is asked for once.
    assert sum(each.values()) <= WRITES * 1.02, each
    settled = memory[len(memory) // 3]
    assert memory[-1] <= settled * 1.15 + 8, memory
