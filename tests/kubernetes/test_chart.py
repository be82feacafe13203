"""The chart and install.yaml on a real API server with PodSecurity, and their server as a pod of the repository's image."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from arenite_server import REPOSITORY, binary
from clusters import Cluster
from pod_servers import TINY, tiny_archive
from postgres import Postgres
from small import within

CHART = REPOSITORY / "deploy/helm/arenite"
INSTALL = REPOSITORY / "deploy/install.yaml"
RENDERINGS = [INSTALL, *(file for file in sorted((REPOSITORY / "deploy/helm/golden").glob("*.yaml")) if ".values." not in file.name)]
NODES = [file for file in RENDERINGS if file.name.startswith("nodes")]
PODS = [file for file in RENDERINGS if file not in NODES]
#: The images of the repository, as nodes have them. Not `latest`, which would be pulled.
IMAGE = "localhost/arenite:test"
NODE_IMAGE = "localhost/arenite-node:test"
LEVEL = "pod-security.kubernetes.io"

pytestmark = pytest.mark.timeout(600)


def xtask(cluster: Cluster, *words: str) -> str:
    done = subprocess.run([str(cluster.xtask), *words], cwd=REPOSITORY, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="arenite-chart-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def images(cluster: Cluster, folder: Path) -> None:
    """Gives the nodes the images of the server and of sandboxes."""
    file = folder / "arenite.tar"
    xtask(cluster, "container-image", "--program", str(binary()), "--name", IMAGE, "--output", str(file))
    cluster.control("load", str(file))
    file.unlink()
    cluster.control("load", str(tiny_archive(folder)))


@contextmanager
def namespaces(cluster: Cluster, *names: str, level: str | None = None) -> Iterator[None]:
    for name in names:
        cluster.run("create", "namespace", name)
        if level:
            cluster.run("label", "namespace", name, *(f"{LEVEL}/{mode}={level}" for mode in ("enforce", "warn")))
    try:
        yield
    finally:
        cluster.run("delete", "namespace", *names, "--ignore-not-found", "--timeout=120s", timeout=150)


def known(file: Path) -> str:
    """The objects of a file that this API server has definitions for: those of Prometheus' operator are missing."""
    return yaml.safe_dump_all(item for item in yaml.safe_load_all(file.read_text()) if item and item["kind"] != "ServiceMonitor")


def violations(cluster: Cluster, text: str) -> list[str]:
    """What the API server says of pods that it would refuse: it warns of their Deployments, StatefulSets, and DaemonSets."""
    done = cluster.try_run("apply", "--dry-run=server", "-f", "-", given=text)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if "would violate PodSecurity" in line]


@pytest.mark.parametrize("file", PODS, ids=lambda file: file.name)
def test_the_api_server_accepts_each_rendering(cluster: Cluster, file: Path) -> None:
    text = known(file)
    named = {"arenite", *re.findall(r"^  namespace: (\S+)$", text, re.MULTILINE)}
    with namespaces(cluster, *sorted(named), level="restricted"):
        assert violations(cluster, text) == []
        broken = text.replace("allowPrivilegeEscalation: false", "allowPrivilegeEscalation: true")
        assert violations(cluster, broken)


@pytest.mark.parametrize("file", NODES, ids=lambda file: file.name)
def test_only_the_pods_of_nodes_need_privileges(cluster: Cluster, file: Path) -> None:
    text = known(file)
    with namespaces(cluster, "arenite", level="privileged"):
        assert violations(cluster, text) == []
        cluster.run("label", "--overwrite", "namespace", "arenite", f"{LEVEL}/warn=restricted")
        (refused,) = violations(cluster, text)
        assert "privileged" in refused and "hostPath" in refused and "host namespaces" in refused, refused
        others = [item for item in yaml.safe_load_all(text) if item["kind"] != "DaemonSet"]
        assert len(others) > 3 and violations(cluster, yaml.safe_dump_all(others)) == []


class Installed:
    """A server in a namespace."""

    def __init__(self, cluster: Cluster, namespace: str, workload: str = "deployment/arenite", component: str = "control-plane"):
        self.cluster = cluster
        self.namespace = namespace
        self.workload = workload
        self.selector = f"app.kubernetes.io/component={component}"
        self.key = ""

    def run(self, *words: str, timeout: float = 90) -> str:
        return self.cluster.run("-n", self.namespace, *words, timeout=timeout)

    def wait(self) -> None:
        done = self.cluster.try_run("-n", self.namespace, "rollout", "status", self.workload, "--timeout=180s", timeout=200)
        if done.returncode:
            state = self.cluster.try_run("-n", self.namespace, "describe", "pods").stdout
            logs = self.cluster.try_run("-n", self.namespace, "logs", self.workload, "--tail=50")
            raise AssertionError(f"{done.stderr}\n{state[-3000:]}\n{logs.stdout}{logs.stderr}")

    @property
    def url(self) -> str:
        """The host reaches pods directly."""
        pods = self.cluster.get("-n", self.namespace, "pods", "-l", self.selector)["items"]
        (pod,) = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return f"http://{pod['status']['podIP']}:8080"

    def get_pod(self) -> dict[str, Any]:
        (pod,) = self.cluster.get("-n", self.namespace, "pods", "-l", self.selector)["items"]
        return pod

    def call(self, method: str, path: str, body: Any = None, host: str | None = None, key: str | None = None) -> httpx.Response:
        headers = {"x-api-key": self.key if key is None else key} | ({"host": host} if host else {})
        return httpx.request(method, f"{self.url}{path}", json=body, headers=headers, timeout=120, trust_env=False)

    def output(self, name: str, command: str) -> str:
        done = self.call("POST", f"/sandbox/{name}/v1/bash/exec", {"command": command})
        assert done.status_code == 200, done.text
        return done.json()["data"]["stdout"]

    def use(self, name: str) -> None:
        """What Agent-Sandbox's README does."""
        made = self.call("POST", "/api/v1/sandbox", {"name": name, "memory_limit": "256Mi", "cpu_limit": "500m"})
        assert made.status_code == 200 and made.json()["data"] == f"Sandbox {name} created successfully", made.text
        assert self.output(name, "id -u; echo hello") == "1000\nhello\n"
        gone = self.call("DELETE", f"/api/v1/sandbox/{name}")
        assert gone.status_code == 200, gone.text

    def create(self, name: str, **spec: Any) -> None:
        resources = {"memory_bytes": 256 << 20, "cpu_millis": 500}
        made = self.call("POST", "/api/v2/sandboxes", {"name": name, "resources": resources, **spec})
        assert made.status_code == 201, made.text


def test_install_yaml_works_as_agent_sandboxs_readme_says(cluster: Cluster, images: None, tmp_path: Path) -> None:
    # The nodes have no registry, so the names of both images are replaced.
    settings = f'    default_image = "tiny"\n    kubernetes_image = ["tiny={TINY}"]\n    engine ='
    text = INSTALL.read_text().replace("arenite:0.1.0", IMAGE).replace("    engine =", settings)
    file = tmp_path / "install.yaml"
    file.write_text(text)
    server = Installed(cluster, "arenite")
    with namespaces(cluster, "arenite"):
        cluster.run("apply", "-n", "arenite", "-f", str(file))
        assert cluster.get("namespace", "arenite")["metadata"]["labels"][f"{LEVEL}/enforce"] == "restricted"
        server.wait()
        logs = server.run("logs", "deployment/arenite")
        key = re.search(r"operator key: (arn_\S+)", logs)
        assert key, logs
        server.key = key[1]
        server.use("sandbox-01")
        assert server.call("GET", "/healthz", host="arenite.arenite.svc").status_code == 200
        service = cluster.get("-n", "arenite", "endpoints", "arenite")
        assert [port["port"] for port in service["subsets"][0]["ports"]] == [8080]
    cluster.run("delete", "-f", str(file), "--ignore-not-found")


@pytest.fixture(scope="module")
def helm(cluster: Cluster) -> str:
    return xtask(cluster, "chart", "--helm").strip().splitlines()[-1]


def test_values_that_cannot_work_are_refused(helm: str) -> None:
    def render(*values: str) -> subprocess.CompletedProcess[str]:
        sets = [word for value in values for word in ("--set", value)]
        return subprocess.run([helm, "template", "arenite", str(CHART), *sets], capture_output=True, text=True, timeout=60)

    for value, reason in {
        "replicas=2": "/replicas",
        "settings.api_key=secret": "api_key",
        "settings.store=postgres://u:p@h/d": "store",
        "apiKey.value=short": "/apiKey/value",
        "apiKey.create=false": "callers would need no key",
        "ingress.enabled=true": "a name in hosts",
        "unknown=1": "unknown",
        "mode=machines": "/mode",
        "mode=nodes": "share a Postgres database",
        "mode=nodes,postgres.enabled=true,nodes.dataDir=data": "dataDir",
        "mode=nodes,postgres.enabled=true,podDisruptionBudget.enabled=true": "is for the mode pods",
        "mode=nodes,postgres.enabled=true,sandboxes.images.base=b": "remove sandboxes.images",
        "mode=nodes,postgres.enabled=true,sandboxes.volumes.storageClass=s": "remove sandboxes.volumes.storageClass",
        "sandboxes.volumes.accessMode=ReadWriteOncePod": "/sandboxes/volumes/accessMode",
    }.items():
        done = render(value)
        assert done.returncode != 0 and reason in done.stderr, (value, done.stderr)
    both = render("postgres.enabled=true", "database.url=postgres://u:p@h/d")
    assert both.returncode != 0 and "excludes" in both.stderr
    keys = [re.search(r"^  api-key: (\S+)$", render().stdout, re.MULTILINE) for _ in range(2)]
    assert keys[0] and keys[1] and keys[0][1] != keys[1][1], "each installation has its own key"


class Release(Installed):
    """A release of Helm, in a namespace of the same name; its sandboxes are in another one."""

    def __init__(self, cluster: Cluster, helm: str, name: str, folder: Path, *of: str):
        super().__init__(cluster, name, *of)
        self.helm = helm
        self.values = folder / "values.yaml"
        self.sandboxes = f"{name}-sandboxes"

    def call_helm(self, *words: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        environment |= {"KUBECONFIG": str(self.cluster.kubeconfig), "HELM_CACHE_HOME": "/nonexistent", "HELM_CONFIG_HOME": "/nonexistent"}
        command = [self.helm, *words, "--namespace", self.namespace]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout

    def put(self, action: str, **values: Any) -> str:
        """Installs or upgrades it, with values besides those that this cluster needs."""
        is_node = values.get("mode") == "nodes"
        repository, tag = (NODE_IMAGE if is_node else IMAGE).rsplit(":", 1)
        needed = {"image": {"repository": repository, "tag": tag}, "settings": {"default_image": TINY if is_node else "tiny"}}
        sandboxes = {} if is_node else {"images": {"tiny": TINY}, **values.pop("sandboxes", {})}
        self.values.write_text(yaml.safe_dump({**needed, "sandboxes": sandboxes, **values}))
        text = self.call_helm(action, "arenite", str(CHART), "--values", str(self.values))
        self.wait()
        secret = self.cluster.get("-n", self.namespace, "secret", "arenite-api-key")
        self.key = base64.b64decode(secret["data"]["api-key"]).decode()
        return text


@contextmanager
def released(cluster: Cluster, helm: str, name: str, folder: Path, *of: str, level: str = "restricted") -> Iterator[Release]:
    release = Release(cluster, helm, name, folder, *of)
    with namespaces(cluster, name, level=level):
        try:
            yield release
        finally:
            release.call_helm("uninstall", "arenite", "--ignore-not-found", "--wait")
            cluster.run("delete", "namespace", release.sandboxes, "--ignore-not-found", "--timeout=120s", timeout=150)


def test_helm_installs_upgrades_and_uninstalls(cluster: Cluster, helm: str, images: None, tmp_path: Path) -> None:
    with released(cluster, helm, "t-helm", tmp_path) as release:
        notes = release.put("install", hosts=["arenite.example.org"])
        assert "get secret arenite-api-key" in notes
        assert cluster.get("namespace", release.sandboxes)["metadata"]["labels"][f"{LEVEL}/enforce"] == "restricted"
        first = release.key
        assert len(first) == 40
        assert release.call("GET", "/api/v2/me", key="").status_code == 401
        assert release.call("GET", "/healthz", host="arenite.example.org").status_code == 200
        assert release.call("GET", "/healthz", host="evil.example").status_code == 403
        release.use("demo")

        # Its Role has what volumes of tenants need.
        made = release.call("POST", "/api/v2/volumes", {"name": "data", "size_bytes": 64 << 20})
        assert made.status_code == 201, made.text
        release.create("user", volumes=[{"name": "data", "path": "/data"}])
        assert release.output("user", "echo kept > /data/file; cat /data/file") == "kept\n"
        grown = release.call("PATCH", "/api/v2/volumes/data", {"size_bytes": 128 << 20})
        assert grown.status_code == 200, grown.text
        claims = cluster.get("-n", release.sandboxes, "persistentvolumeclaims")["items"]
        assert ["data" in claim["metadata"]["annotations"]["arenite.memo"] for claim in claims] == [True]
        assert release.call("DELETE", "/api/v2/sandboxes/user").is_success
        assert release.call("DELETE", "/api/v2/volumes/data").is_success

        # The server's volume has the rows and the key that guests know it by.
        release.create("kept")
        release.output("kept", "echo here > /tmp/file")
        release.put("upgrade", hosts=["arenite.example.org"], podAnnotations={"changed": "yes"})
        assert release.key == first, "an upgrade keeps the generated key"
        assert release.output("kept", "cat /tmp/file") == "here\n"
        release.run("delete", "pods", "-l", release.selector)
        release.wait()
        assert release.output("kept", "cat /tmp/file") == "here\n"

        release.call_helm("uninstall", "arenite", "--wait")
        assert len(cluster.get("-n", release.sandboxes, "pods")["items"]) == 1, "the sandbox outlives its server"
        kept = release.run("get", "persistentvolumeclaims,secrets,deployments,services", "-o", "name").split()
        assert [name for name in kept if "helm.release" not in name] == ["persistentvolumeclaim/arenite"]
        # Another installation finds all of it.
        release.put("install")
        assert release.output("kept", "cat /tmp/file") == "here\n"
        assert release.call("DELETE", "/api/v2/sandboxes/kept").is_success


@pytest.fixture
def machine(cluster: Cluster, folder: Path) -> Iterator[Path]:
    """A data directory on a machine that is selected for a node of Arenite."""
    file = folder / "arenite-node.tar"
    xtask(cluster, "container-image", "--node", "--program", str(binary()), "--name", NODE_IMAGE, "--output", str(file))
    cluster.control("load", str(file))
    file.unlink()
    data = Path(tempfile.mkdtemp(prefix="arenite-machine-"))
    nodes = cluster.get("nodes")["items"]
    # The cluster's nodes are one machine.
    name = next(node["metadata"]["name"] for node in nodes if node["metadata"]["labels"].get("type") != "kwok")
    cluster.run("label", "node", name, "arenite.node=true")
    try:
        yield data
    finally:
        cluster.run("label", "node", name, "arenite.node-")
        reset = [str(binary()), "reset", "--all", "--force", "--data-dir", str(data)]
        subprocess.run(reset, check=True, timeout=120, capture_output=True)
        shutil.rmtree(data, ignore_errors=True)


def test_sandboxes_of_a_node_outlive_its_pods(cluster: Cluster, helm: str, machine: Path, tmp_path: Path) -> None:
    postgres = Postgres()
    values: dict[str, Any] = {
        "mode": "nodes",
        "nodes": {"dataDir": str(machine)},
        "database": {"url": postgres.url},
        "extraVolumes": [{"name": "postgres", "hostPath": {"path": str(postgres.dir)}}],
        "extraVolumeMounts": [{"name": "postgres", "mountPath": str(postgres.dir)}],
    }
    of_node = ("daemonset/arenite", "node")
    try:
        with released(cluster, helm, "t-nodes", tmp_path, *of_node, level="privileged") as release:
            notes = release.put("install", **values)
            assert "arenite.node" in notes

            def arenite(*words: str) -> str:
                return release.run("exec", "daemonset/arenite", "--", "/arenite", *words)

            pod = release.get_pod()
            (row,) = json.loads(arenite("node", "ls", "--json"))["nodes"]
            assert (row["name"], row["state"]) == (pod["spec"]["nodeName"], "up")
            assert json.loads(postgres.sql("SELECT facts FROM nodes"))["address"] == f"{pod['status']['podIP']}:8902"
            archive = tiny_archive(tmp_path)
            shutil.move(archive, machine / "tiny.tar")
            arenite("image", "load", str(machine / "tiny.tar"))
            (machine / "tiny.tar").unlink()
            release.create("kept")
            release.output("kept", "echo here > /tmp/file")
            reach = "read -r _ gateway < /etc/resolv.conf; exec 3<>/dev/tcp/$gateway/53 && echo open"
            assert release.output("kept", reach) == "open\n"

            def process() -> int:
                (record,) = machine.glob("run/s*/sandbox.json")
                return json.loads(record.read_text().splitlines()[1])["pid"]

            pid = process()

            def container() -> str:
                return release.get_pod()["status"]["containerStatuses"][0]["containerID"]

            def restart() -> None:
                # A node of the cluster has a PID namespace, so the number in `server.lock` is not this host's.
                serves = "^/arenite serve --config /etc/arenite/arenite.toml"
                (server,) = subprocess.run(["pgrep", "--full", serves], capture_output=True, text=True).stdout.split()
                os.kill(int(server), signal.SIGKILL)

            def replace() -> None:
                release.run("delete", "pods", "-l", release.selector)

            def upgrade() -> None:
                release.put("upgrade", **values, podAnnotations={"changed": "yes"})

            def is_taken_over() -> bool:
                try:
                    return container() != before and release.call("GET", "/api/v2/sandboxes/kept").json()["state"] == "running"
                except (httpx.TransportError, LookupError, ValueError):
                    # There is no pod, or it does not answer yet.
                    return False

            for change in (restart, replace, upgrade):
                before = container()
                change()
                within(90, f"the sandbox is taken over after {change.__name__}", is_taken_over)
                assert (process(), release.output("kept", "cat /tmp/file")) == (pid, "here\n")
                assert release.output("kept", reach) == "open\n"
            assert release.call("DELETE", "/api/v2/sandboxes/kept").is_success
            assert not list(machine.glob("run/s*"))
    finally:
        postgres.remove()


def test_sudo_is_possible_where_the_operator_says_so(cluster: Cluster, helm: str, images: None, tmp_path: Path) -> None:
    """The template of docs/KUBERNETES.md. Images of the tests have no sudo, so this asks the kernel."""
    text = (REPOSITORY / "docs/KUBERNETES.md").read_text()
    (block,) = re.findall(r"```yaml\n(sandboxes:\n  podSecurity: baseline\n.*?)```", text, re.DOTALL)
    with released(cluster, helm, "t-sudo", tmp_path) as release:
        release.put("install", **yaml.safe_load(block), persistence={"enabled": False})
        release.create("demo")
        status = dict(line.split(":", 1) for line in release.output("demo", "head -70 /proc/self/status").splitlines())
        assert status["NoNewPrivs"].strip() == "0"
        # SETUID has the number 7, SYS_ADMIN 21.
        bound = int(status["CapBnd"], 16)
        assert bound & 1 << 7 and not bound & 1 << 21 and int(status["CapEff"], 16) == 0
        assert release.call("DELETE", "/api/v2/sandboxes/demo").is_success


def test_the_account_has_the_rights_that_the_document_lists_and_no_others(cluster: Cluster) -> None:
    text = known(REPOSITORY / "deploy/helm/golden/sqlite.yaml").replace("replicas: 1", "replicas: 0")
    with namespaces(cluster, "arenite"):
        cluster.run("apply", "-f", "-", given=text)

        def may(verb: str, resource: str, *where: str) -> bool:
            account = "system:serviceaccount:arenite:arenite"
            return cluster.try_run("auth", "can-i", verb, resource, *where, "--as", account).stdout.strip() == "yes"

        ours = ("-n", "arenite-sandboxes")
        granted = [("create", "pods", *ours), ("watch", "pods", *ours), ("watch", "events", *ours), ("patch", "secrets", *ours)]
        granted.append(("create", "tokenreviews.authentication.k8s.io"))
        assert [words for words in granted if not may(*words)] == []
        refused = [
            ("patch", "pods", *ours),
            ("create", "pods", "--subresource=exec", *ours),
            ("patch", "pods", "--subresource=ephemeralcontainers", *ours),
            ("create", "roles", *ours),
            ("create", "serviceaccounts", "--subresource=token", *ours),
            ("create", "sandboxclaims.extensions.agents.x-k8s.io", *ours),
            ("get", "secrets", "-n", "arenite"),
            ("list", "pods", "-n", "arenite"),
            ("list", "pods", "-n", "kube-system"),
            ("list", "nodes"),
            ("list", "namespaces"),
        ]
        assert [words for words in refused if may(*words)] == []
    cluster.run("delete", "-f", "-", "--ignore-not-found", given=text)
