"""The cluster itself can do what the other tests expect of it."""

from __future__ import annotations

import subprocess
import time

import httpx
from clusters import ON_FAKE_NODES, Cluster, Namespace

PORT = 8000
SERVE = f"mkdir /www && hostname >/www/index.html && exec httpd -f -p {PORT} -h /www"


def page(address: str) -> str:
    """What a server in a pod answers, which may not listen yet."""
    with httpx.Client(transport=httpx.HTTPTransport(retries=5), timeout=10) as http:
        return http.get(f"http://{address}:{PORT}/").raise_for_status().text.strip()


def test_pods_run_on_each_node_and_the_host_reaches_them(namespace: Namespace) -> None:
    for node in ("node1", "node2"):
        name = f"on-{node}"
        pod = namespace.start(name, "sh", "-c", SERVE, nodeName=node)
        assert pod["spec"]["nodeName"] == node
        assert page(pod["status"]["podIP"]) == name
        assert namespace.run("exec", name, "--", "hostname").strip() == name
    # Pods of different nodes reach each other.
    address = namespace.get("pod", "on-node2")["status"]["podIP"]
    assert namespace.run("exec", "on-node1", "--", "wget", "-qO-", f"http://{address}:{PORT}/").strip() == "on-node2"
    namespace.run("delete", "pod", "on-node1")
    left = [pod["metadata"]["name"] for pod in namespace.get("pods")["items"]]
    assert "on-node1" not in left


def test_the_host_and_pods_reach_services(namespace: Namespace) -> None:
    namespace.start("behind", "sh", "-c", SERVE, labels={"app": "behind"}, nodeName="node2")
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "front"},
        "spec": {"selector": {"app": "behind"}, "ports": [{"port": PORT}]},
    }
    namespace.apply(service)
    address = namespace.get("service", "front")["spec"]["clusterIP"]
    deadline = time.monotonic() + 30
    while True:
        try:
            assert page(address) == "behind"
            break
        except httpx.TransportError:
            assert time.monotonic() < deadline, "the Service has no forwarding"
    namespace.start("client", "sleep", "1000", nodeName="node1")
    assert namespace.run("exec", "client", "--", "wget", "-qO-", f"http://{address}:{PORT}/").strip() == "behind"


def test_a_claim_keeps_its_files_when_its_pod_goes(namespace: Namespace) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "disk"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    volumes = [{"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}]
    mounts = [{"name": "disk", "mountPath": "/disk"}]
    namespace.apply(claim)
    namespace.start("first", "sh", "-c", "echo kept >/disk/file; exec sleep 1000", volumes=volumes, mounts=mounts)
    namespace.run("delete", "pod", "first")
    namespace.start("second", "sleep", "1000", volumes=volumes, mounts=mounts)
    assert namespace.run("exec", "second", "--", "cat", "/disk/file") == "kept\n"


def test_pods_outlive_a_restart_of_the_api_server(cluster: Cluster, namespace: Namespace) -> None:
    pod = namespace.start("outliving", "sh", "-c", SERVE)
    with cluster.without("apiserver"):
        assert cluster.try_run("get", "--raw", "/readyz", timeout=30).returncode != 0
        assert page(pod["status"]["podIP"]) == "outliving"
    again = namespace.get("pod", "outliving")
    assert again["metadata"]["uid"] == pod["metadata"]["uid"]
    assert again["status"]["containerStatuses"][0]["restartCount"] == 0


def test_pods_outlive_a_restart_of_their_kubelet(cluster: Cluster, namespace: Namespace) -> None:
    pod = namespace.start("kept", "sh", "-c", SERVE, nodeName="node1")
    with cluster.without("kubelet-1"):
        assert page(pod["status"]["podIP"]) == "kept"
    namespace.start("after", "sleep", "1000", nodeName="node1")
    assert namespace.get("pod", "kept")["status"]["containerStatuses"][0]["restartCount"] == 0


def test_pods_of_fake_nodes_report_to_run(namespace: Namespace) -> None:
    pod = namespace.start("fake", "sleep", "1000", **ON_FAKE_NODES)
    assert pod["spec"]["nodeName"].startswith("fake")
    assert namespace.cluster.try_run("--namespace", namespace.name, "exec", "fake", "--", "true").returncode != 0


def test_a_claim_takes_a_sandbox_of_the_warm_pool(namespace: Namespace) -> None:
    extensions = "extensions.agents.x-k8s.io/v1beta1"
    pod = namespace.pod("template", "sleep", "1000")["spec"]
    template = {
        "apiVersion": extensions,
        "kind": "SandboxTemplate",
        "metadata": {"name": "shape"},
        "spec": {"podTemplate": {"spec": pod}},
    }
    pool = {
        "apiVersion": extensions,
        "kind": "SandboxWarmPool",
        "metadata": {"name": "pool"},
        "spec": {"replicas": 1, "sandboxTemplateRef": {"name": "shape"}},
    }
    claim = {
        "apiVersion": extensions,
        "kind": "SandboxClaim",
        "metadata": {"name": "claim"},
        "spec": {"warmPoolRef": {"name": "pool"}},
    }
    namespace.apply(template, pool)
    namespace.wait("sandboxwarmpool/pool", "jsonpath={.status.readyReplicas}=1")
    warm = {sandbox["metadata"]["uid"] for sandbox in namespace.get("sandboxes.agents.x-k8s.io")["items"]}
    namespace.apply(claim)
    namespace.wait("sandboxclaim/claim", "condition=Ready")
    taken = namespace.get("sandboxclaim", "claim")["status"]["sandbox"]["name"]
    assert namespace.get("sandboxes.agents.x-k8s.io", taken)["metadata"]["uid"] in warm
    namespace.run("delete", "sandboxwarmpool/pool", "sandboxclaim/claim")


def test_loaded_images_are_on_each_node(cluster: Cluster, namespace: Namespace) -> None:
    """The guest's image has no shell: its program is started by a pod of each node."""
    for node in ("node1", "node2"):
        name = f"guest-{node}"
        pod = namespace.pod(name, "/arenite", "--version", nodeName=node)
        pod["spec"]["containers"][0]["image"] = cluster.guest
        namespace.apply(pod)
        namespace.wait(f"pod/{name}", "jsonpath={.status.phase}=Succeeded")
        assert namespace.run("logs", name).startswith("arenite ")


def test_status_lists_the_components(cluster: Cluster) -> None:
    words = [str(cluster.xtask), "kubernetes", "status"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout
    assert str(cluster.kubeconfig) in shown
    for component in ("apiserver", "kubelet-1", "kubelet-2", "agent-sandbox", "kwok"):
        assert any(line.split()[:2] == [component, "runs"] for line in shown.splitlines()), shown
