"""The Kubernetes cluster that `cargo xtask test-kubernetes` starts, as tests use it: kubectl, pods, and its components."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

#: Selects and tolerates the nodes that kwok plays.
ON_FAKE_NODES = {
    "nodeSelector": {"type": "kwok"},
    "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
}


def setting(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        pytest.fail(f"{name} is not set; these tests need a cluster: cargo xtask test-kubernetes")
    return value


@dataclass(frozen=True)
class Cluster:
    kubeconfig: Path
    kubectl: Path
    xtask: Path
    #: An image with busybox and its links.
    busybox: str
    #: An image with arenite's program alone, as /arenite.
    guest: str

    @classmethod
    def of_environment(cls) -> Cluster:
        return cls(
            kubeconfig=Path(setting("ARENITE_TEST_KUBECONFIG")),
            kubectl=Path(setting("ARENITE_TEST_KUBECTL")),
            xtask=Path(setting("ARENITE_TEST_XTASK")),
            busybox=setting("ARENITE_TEST_BUSYBOX_IMAGE"),
            guest=setting("ARENITE_TEST_GUEST_IMAGE"),
        )

    def try_run(self, *words: str, given: str | None = None, timeout: float = 90) -> subprocess.CompletedProcess[str]:
        """Runs kubectl, which may fail."""
        command = [str(self.kubectl), "--kubeconfig", str(self.kubeconfig), *words]
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=timeout)

    def run(self, *words: str, given: str | None = None, timeout: float = 90) -> str:
        done = self.try_run(*words, given=given, timeout=timeout)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}{done.stdout}"
        return done.stdout

    def get(self, *words: str) -> Any:
        """Objects as the API server has them."""
        return json.loads(self.run("get", *words, "--output", "json"))

    def control(self, *words: str) -> None:
        """Runs `cargo xtask kubernetes`."""
        done = subprocess.run([str(self.xtask), "kubernetes", *words], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"xtask kubernetes {' '.join(words)}: {done.stderr}{done.stdout}"

    @contextmanager
    def without(self, component: str) -> Iterator[None]:
        """Kills a component, such as `apiserver` or `kubelet-1`, and starts it again."""
        self.control("stop", component)
        try:
            yield
        finally:
            self.control("start", component)
            if component in ("apiserver", "etcd"):
                self.wait_for_api()

    def wait_for_api(self) -> None:
        command = 'until "$@" get --raw /readyz >&2; do sleep 0.1; done'
        words = ["sh", "-c", command, "sh", str(self.kubectl), "--kubeconfig", str(self.kubeconfig)]
        subprocess.run(words, check=True, capture_output=True, timeout=90)


@dataclass(frozen=True)
class Namespace:
    """A namespace of one test file."""

    cluster: Cluster
    name: str

    def run(self, *words: str, given: str | None = None, timeout: float = 90) -> str:
        return self.cluster.run("--namespace", self.name, *words, given=given, timeout=timeout)

    def get(self, *words: str) -> Any:
        return self.cluster.get("--namespace", self.name, *words)

    def apply(self, *objects: dict[str, Any]) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.run("apply", "--server-side", "--filename", "-", given=json.dumps(listed))

    def wait(self, what: str, condition: str, seconds: int = 60) -> None:
        self.run("wait", what, f"--for={condition}", f"--timeout={seconds}s", timeout=seconds + 10)

    def pod(self, name: str, *command: str, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
        """Describes a pod of busybox. Its container gets `volumeMounts` of `mounts`."""
        container = {"name": "main", "image": self.cluster.busybox, "command": list(command), "volumeMounts": spec.pop("mounts", [])}
        spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container], **spec}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels or {}}, "spec": spec}

    def start(self, name: str, *command: str, **more: Any) -> dict[str, Any]:
        """Starts a pod, and returns it when it is ready."""
        self.apply(self.pod(name, *command, **more))
        self.wait(f"pod/{name}", "condition=Ready")
        return self.get("pod", name)

    def delete(self) -> None:
        self.run("delete", "pods", "--all", "--grace-period=1", timeout=150)
        self.cluster.run("delete", "namespace", self.name, "--wait=false")
