"""Volumes of tenants as PersistentVolumeClaims: shared by pods, kept without them, found again, removed with their claim."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from clusters import Cluster, Namespace
from commands import run
from pod_servers import PodServer, tiny_archive
from waiting import until

MIB = 1 << 20


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="arenite-claims-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def server(cluster: Cluster, namespace: Namespace, folder: Path) -> Iterator[PodServer]:
    cluster.control("load", str(tiny_archive(folder)))
    cluster.run("label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce=restricted")
    server = PodServer(folder, cluster, namespace, args=("--tenant-limit", "volumes=3", "--tenant-limit", "volume-space=2GiB"))
    server.start()
    yield server
    if server.process is not None:
        server.stop()


@pytest.fixture(autouse=True)
def end_of_test(server: PodServer) -> Iterator[None]:
    yield
    if server.process is None:
        server.start()
    server.delete_all_sandboxes()
    with server.api() as api:
        for volume in api.get("/api/v2/volumes").json()["volumes"]:
            api.delete(f"/api/v2/volumes/{volume['name']}").raise_for_status()
    until(lambda: claims(server) == {}, "the end of all claims")


@pytest.fixture
def api(server: PodServer) -> Iterator[httpx.Client]:
    with server.api(timeout=180) as api:
        yield api


def claims(server: PodServer) -> dict[str, Any]:
    """The claims of this server, by the ids of their volumes."""
    found = server.namespace.get("persistentvolumeclaims", "--selector", "arenite.installation=arenite")["items"]
    return {one["metadata"]["labels"]["arenite.volume"]: one for one in found}


def volume(api: httpx.Client, name: str, size_bytes: int = 64 * MIB) -> dict[str, Any]:
    made = api.post("/api/v2/volumes", json={"name": name, "size_bytes": size_bytes, "labels": {"team": "a"}})
    assert made.status_code == 201, made.text
    return made.json()


def cut(server: PodServer) -> None:
    """Kills the server, and loses its store."""
    server.kill()
    for file in server.data_dir.glob("control.sqlite*"):
        file.unlink()


def test_sandboxes_share_a_volume_that_outlives_them(server: PodServer, api: httpx.Client) -> None:
    made = volume(api, "models")
    assert (made["state"], made["used_bytes"], made["size_enforced"], made["node"]) == ("ready", None, False, None)
    claim = claims(server)[made["id"]]
    assert claim["metadata"]["name"] == f"arenite-{made['id']}"
    assert claim["spec"]["resources"]["requests"]["storage"] == str(64 * MIB)
    assert "ownerReferences" not in claim["metadata"]

    first = server.create("first", volumes=[{"name": "models", "path": "/models"}])
    part = {"name": "models", "path": "/home/gem/part", "sub_path": "a/b", "read_only": True}
    second = server.create("second", volumes=[{"name": "models", "path": "/data"}])
    first.output("echo from-first > /models/file")
    assert second.output("cat /data/file") == "from-first"
    second.output("mkdir -p /data/a/b; echo from-second > /data/a/b/deep; echo more >> /data/file")
    assert first.output("cat /models/file") == "from-first\nmore"
    third = server.create("third", volumes=[part])
    assert third.output("cat /home/gem/part/deep; ls /home/gem/part") == "from-second\ndeep"
    refused = third.bash("echo x > /home/gem/part/deep")
    assert refused.exit_code != 0 and "Read-only" in str(refused), refused
    # A directory that was missing is made, and the sandbox may write to it.
    fourth = server.create("fourth", volumes=[{"name": "models", "path": "/new", "sub_path": "made/here"}])
    fourth.output("echo new > /new/file")
    assert first.output("cat /models/made/here/file") == "new"
    nodes = {server.pod(box)["spec"]["nodeName"] for box in (first, second, third, fourth)}
    assert len(nodes) == 1, nodes
    assert api.get("/api/v2/volumes/models").json()["sandboxes"] == ["first", "fourth", "second", "third"]

    for box in (first, second, third, fourth):
        assert box.delete().status_code == 200
    fifth = server.create("fifth", volumes=[{"name": "models", "path": "/models"}])
    assert fifth.output("cat /models/file /models/a/b/deep") == "from-first\nmore\nfrom-second"

    used = api.delete("/api/v2/volumes/models")
    assert used.status_code == 409 and "fifth" in used.text, used.text
    forced = api.delete("/api/v2/volumes/models?force=true")
    assert forced.status_code == 409, forced.text
    assert list(claims(server)) == [made["id"]]
    fifth.delete()
    assert api.delete("/api/v2/volumes/models").status_code == 200
    until(lambda: claims(server) == {}, "the end of the claim", 60)
    assert api.get("/api/v2/volumes/models").status_code == 404


def test_a_sandbox_keeps_its_volume_over_a_kill_and_a_lost_store(server: PodServer, api: httpx.Client) -> None:
    made = volume(api, "kept")
    box = server.create("holder", volumes=[{"name": "kept", "path": "/kept"}])
    box.output("echo here > /kept/file")
    # Its server ended before it had written row and memo.
    orphan = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "arenite-v00000000001", "labels": {"arenite.installation": "arenite", "arenite.volume": "v00000000001"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}},
    }
    foreign = json.loads(json.dumps(orphan).replace("v00000000001", "v00000000002"))
    foreign["metadata"]["labels"]["arenite.installation"] = "other"
    server.namespace.apply(orphan, foreign)
    assert set(claims(server)) == {made["id"], "v00000000001"}
    cut(server)
    server.start()
    until(lambda: set(claims(server)) == {made["id"]}, "the end of the claim without a memo", 60)
    again = api.get("/api/v2/volumes/kept").json()
    assert again == made | {"sandboxes": ["holder"]}
    assert box.output("cat /kept/file") == "here"
    used = api.delete("/api/v2/volumes/kept")
    assert used.status_code == 409 and "holder" in used.text, used.text
    # Another installation's claim is not ours to remove.
    server.namespace.run("get", "persistentvolumeclaim/arenite-v00000000002")
    server.namespace.run("delete", "persistentvolumeclaim/arenite-v00000000002")


@contextmanager
def other_server(server: PodServer, folder: Path, name: str) -> Iterator[PodServer]:
    """A server of the same namespace, with a storage class of its name."""
    settings = ("--kubernetes-name", name, "--kubernetes-volume-class", name)
    other = PodServer(folder / name, server.namespace.cluster, server.namespace, args=settings)
    other.data_dir.parent.mkdir()
    other.start()
    try:
        yield other
    finally:
        if other.process is None:
            other.start()
        other.delete_all_sandboxes()
        other.stop()


def test_two_servers_of_a_namespace_keep_to_their_own_claims(server: PodServer, api: httpx.Client, folder: Path) -> None:
    made = volume(api, "mine")
    with other_server(server, folder, "second") as other, other.api() as theirs:
        assert theirs.get("/api/v2/volumes").json()["volumes"] == []
        second = volume(theirs, "mine")
        cut(other)
        other.start()
        assert [one["id"] for one in theirs.get("/api/v2/volumes").json()["volumes"]] == [second["id"]]
        claim = server.namespace.get("persistentvolumeclaim", f"arenite-{second['id']}")
        assert claim["spec"]["storageClassName"] == "second"
        assert theirs.delete("/api/v2/volumes/mine").status_code == 200
    assert list(claims(server)) == [made["id"]]


def test_a_create_waits_for_a_volume_that_the_cluster_provides_later(server: PodServer, folder: Path) -> None:
    cluster, name = server.namespace.cluster, f"late-{server.namespace.name}"
    provided = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "storageClassName": "late",
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": f"{folder}/late-volume", "type": "DirectoryOrCreate"},
        },
    }

    def said() -> str:
        conditions = [one for pod in server.namespace.get("pods")["items"] for one in pod.get("status", {}).get("conditions", [])]
        return " ".join(one.get("message", "") for one in conditions)

    with other_server(server, folder, "late") as other, other.api() as api, ThreadPoolExecutor(1) as pool:
        volume(api, "late")
        try:
            creating = pool.submit(other.create, "waiting", volumes=[{"name": "late", "path": "/late"}])
            until(lambda: "unbound" in said(), "a pod that can't be scheduled", 60)
            cluster.run("apply", "--filename", "-", given=json.dumps(provided))
            assert creating.result().output("ls -d /late") == "/late"
        finally:
            cluster.run("delete", "persistentvolume", name, "--ignore-not-found", "--wait=false")
        other.delete_all_sandboxes()
        assert api.delete("/api/v2/volumes/late").status_code == 200


def test_a_volume_grows_once_it_is_bound_and_never_shrinks(server: PodServer, api: httpx.Client) -> None:
    made = volume(api, "disk")

    def requested() -> str:
        return claims(server)[made["id"]]["spec"]["resources"]["requests"]["storage"]

    def resize(size_bytes: int) -> httpx.Response:
        return api.patch("/api/v2/volumes/disk", json={"size_bytes": size_bytes})

    first = requested()
    # No pod has used it, so the cluster has not provided it.
    early = resize(128 * MIB)
    assert early.status_code == 409 and "allowVolumeExpansion" in early.json()["hint"], early.text
    assert api.get("/api/v2/volumes/disk").json()["size_bytes"] == 64 * MIB
    smaller = resize(32 * MIB)
    assert smaller.status_code == 501 and "only grow" in smaller.json()["detail"], smaller.text
    assert requested() == first
    server.create("user", volumes=[{"name": "disk", "path": "/disk"}])
    grown = resize(128 * MIB)
    assert (grown.status_code, grown.json()["size_bytes"]) == (200, 128 * MIB), grown.text
    assert requested() != first
    assert api.get("/api/v2/volumes/disk").json()["size_bytes"] == 128 * MIB
    # A lost store has the new size, too.
    cut(server)
    server.start()
    assert api.get("/api/v2/volumes/disk").json()["size_bytes"] == 128 * MIB


def test_quotas_count_claims(server: PodServer, api: httpx.Client) -> None:
    volume(api, "big", 1536 * MIB)
    refused = api.post("/api/v2/volumes", json={"name": "more", "size_bytes": 1024 * MIB})
    assert (refused.status_code, refused.json()["code"]) == (403, "quota_exceeded"), refused.text
    # What was requested for it is gone.
    until(lambda: len(claims(server)) == 1, "the end of the refused claim", 60)


def test_what_a_cluster_can_not_do_is_refused(server: PodServer, api: httpx.Client) -> None:
    volume(api, "files")
    for method, path, body in [
        ("GET", "/files/files", None),
        ("GET", "/files/content?path=a", None),
        ("PUT", "/files/content?path=a", "text"),
        ("DELETE", "/files/content?path=a", None),
        ("POST", "/files/copy", {"name": "copy"}),
        ("POST", "", {"name": "bucket", "bucket": "shared"}),
    ]:
        given = {"content": body} if isinstance(body, str) else {"json": body} if body else {}
        answer = api.request(method, f"/api/v2/volumes{path}", **given)
        assert (answer.status_code, answer.json()["code"]) == (501, "unsupported"), (path, answer.text)
        assert answer.json()["hint"], answer.text
    host = server.create("host", status=501, volumes=[{"name": "no-such", "path": "/data"}])
    assert "directories of the server's host" in host["detail"] and "no-such" in host["detail"], host
    guest = server.create("guest", status=501, volumes=[{"name": "files", "path": "/.arenite/x"}])
    assert "/.arenite/x" in guest["detail"], guest
    assert server.left() == []


def test_a_claim_that_someone_deleted_is_missing(server: PodServer, api: httpx.Client) -> None:
    made = volume(api, "gone")
    server.namespace.run("delete", "persistentvolumeclaim", f"arenite-{made['id']}")
    assert api.get("/api/v2/volumes/gone").json()["state"] == "missing"
    grow = api.patch("/api/v2/volumes/gone", json={"size_bytes": 128 * MIB})
    assert grow.status_code == 409 and "is gone from the cluster" in grow.json()["detail"], grow.text
    assert api.get("/api/v2/volumes/gone").json()["size_bytes"] == 64 * MIB
    assert api.delete("/api/v2/volumes/gone").status_code == 200


def test_the_command_line_has_the_life_of_a_volume(server: PodServer) -> None:
    created = run(server, "volume", "create", "cli", "--size", "64MiB", "--label", "team=a")
    assert created.returncode == 0, created.stderr
    listed = json.loads(run(server, "volume", "ls", "--json").stdout)
    assert [one["name"] for one in listed["volumes"]] == ["cli"]
    made = run(server, "create", "by-cli", "--image", "tiny", "--memory", "128MiB", "--cpu", "0.2", "--volume", "cli:/data")
    assert made.returncode == 0, made.stderr
    ran = run(server, "exec", "by-cli", "-c", "echo kept > /data/file && cat /data/file")
    assert (ran.returncode, ran.stdout.strip()) == (0, "kept"), ran.stderr
    inspected = json.loads(run(server, "volume", "inspect", "cli", "--json").stdout)
    assert (inspected["state"], inspected["sandboxes"]) == ("ready", ["by-cli"])
    used = run(server, "volume", "rm", "cli")
    assert used.returncode != 0 and "by-cli" in used.stderr, used
    smaller = run(server, "volume", "set", "cli", "--size", "16MiB")
    assert smaller.returncode != 0 and "only grow" in smaller.stderr, smaller
    grown = run(server, "volume", "set", "cli", "--size", "128MiB")
    assert grown.returncode == 0, grown.stderr
    copied = run(server, "volume", "cp", "cli", "copy")
    assert copied.returncode != 0 and "hint" in copied.stderr and "sandbox" in copied.stderr, copied
    assert run(server, "rm", "by-cli").returncode == 0
    removed = run(server, "volume", "rm", "cli")
    assert removed.returncode == 0, removed.stderr
