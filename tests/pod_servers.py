"""A server with the engine `kubernetes`, outside the cluster, and an image for its sandboxes."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import httpx
from arenite_server import Server
from clusters import Cluster, Namespace
from sandboxes import LiveSandbox
from small import tiny_files

#: This host's bash and a few programs, for root and for the user 1000.
TINY = "localhost/tiny:1"
MORE = ("id", "env", "pwd", "head", "ps", "tr", "seq", "hostname")


def tiny_archive(folder: Path) -> Path:
    """The image as `docker save` writes it."""
    files = folder / "tiny"
    tiny_files(files, MORE)
    with (files / "etc/passwd").open("a") as passwd:
        passwd.write("gem:x:1000:1000:gem:/home/gem:/bin/bash\n")
    (files / "home/gem").mkdir(parents=True)
    os.chown(files / "home/gem", 1000, 1000)
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(files, arcname=".")
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
        "os": "linux",
        "config": {"Env": ["PATH=/usr/bin", "OF_IMAGE=yes"], "WorkingDir": "/home/gem"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [TINY], "Layers": ["layer.tar"]}]
    archive = folder / "tiny.tar"
    with tarfile.open(archive, "w") as tar:
        for name, content in {
            "manifest.json": json.dumps(manifest).encode(),
            "config.json": json.dumps(config).encode(),
            "layer.tar": layer.getvalue(),
        }.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return archive


class PodServer(Server):
    gives_certificates = False

    def __init__(
        self, folder: Path, cluster: Cluster, namespace: Namespace, args: tuple[str, ...] = (), kubeconfig: Path | None = None
    ):
        kubernetes = ("--engine", "kubernetes", "--kubeconfig", str(kubeconfig or cluster.kubeconfig))
        kubernetes += ("--kubernetes-namespace", namespace.name, "--kubernetes-guest-image", cluster.guest)
        kubernetes += ("--kubernetes-image", f"tiny={TINY}", "--default-image", "tiny")
        super().__init__(folder / "data", args=(*kubernetes, *args))
        self.namespace = namespace

    def create(self, name: str, status: int = 201, **spec: Any) -> Any:
        """A sandbox, or the refusal if another status is expected. Small, so that many fit on a node."""
        resources = {"memory_bytes": 128 << 20, "cpu_millis": 200, "shm_bytes": 16 << 20}
        body = {"name": name, "image": "tiny", "resources": resources, **spec}
        answer = httpx.post(f"{self.url}/api/v2/sandboxes", json=body, timeout=300)
        assert answer.status_code == status, answer.text
        return LiveSandbox(self.url, name) if status == 201 else answer.json()

    def pod(self, sandbox: LiveSandbox) -> dict[str, Any]:
        return self.namespace.get("pod", f"arenite-{sandbox.id}")

    def left(self) -> list[str]:
        """Objects of sandboxes that the cluster still has."""
        return self.namespace.run("get", "pods,secrets", "--selector", "arenite.sandbox", "--output", "name").split()
