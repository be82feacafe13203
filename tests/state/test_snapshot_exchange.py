"""Snapshots without a sandbox: their files by API, and their archives on another server."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import socket
import tarfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import waiting
from arenite_server import Server
from commands import run
from operation.conftest import own_server  # noqa: F401
from sandboxes import LiveSandbox
from small import tiny_image
from tenant import TenantsServer

# All that an import has to give back: for each file kind, mode, owner, size, links, time, target, xattrs, content. A line for each
# file of the test, and a hash for each directory of the image. Left out is what the server writes at each start, and mounts.
TREE = r"""
import collections, hashlib, os, stat
mounts = {line.split()[4] for line in open("/proc/self/mountinfo")}
own = {"/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/usr/local/bin/aio", "/tmp", "/var/tmp", "/etc", "/usr/local/bin"}
def line(path):
    about = os.lstat(path)
    kind = stat.S_IFMT(about.st_mode)
    content = target = ""
    xattrs = []
    try:
        if kind == stat.S_IFREG and about.st_size < 1 << 30:
            content = hashlib.sha256(open(path, "rb").read()).hexdigest()
        if kind == stat.S_IFLNK:
            target = os.readlink(path)
        if kind in (stat.S_IFREG, stat.S_IFDIR):
            xattrs = sorted((x, os.getxattr(path, x).hex()) for x in os.listxattr(path))
    except PermissionError:
        pass
    size = about.st_size if kind == stat.S_IFREG else 0
    links = about.st_nlink if kind != stat.S_IFDIR else 0
    return repr((path, about.st_mode, about.st_uid, about.st_gid, size, links, about.st_mtime_ns, target, xattrs, content))
hashes, count = collections.defaultdict(hashlib.sha256), 0
for folder, names, files in os.walk("/"):
    names[:] = sorted(name for name in names if os.path.join(folder, name) not in mounts | {"/tmp", "/var/tmp"})
    for name in sorted(names + files):
        path = os.path.join(folder, name)
        if path in mounts or path in own:
            continue
        count += 1
        if path.startswith("/home/"):
            print(line(path))
        else:
            hashes["/".join(path.split("/")[:3])].update(line(path).encode())
for name, found in sorted(hashes.items()):
    print(name, found.hexdigest())
print("files:", count)
"""

FILL = r"""
set -e
mkdir -p tree/deep/er && cd tree
echo one > deep/er/file && chmod 4750 deep/er/file
ln deep/er/file second && ln -s /etc/passwd out && ln -s .. up
python3 - <<'X'
import os
os.setxattr("deep", "user.note", b"a\nb=c")
os.setxattr("second", "user.note", bytes(range(256)))
open(b"raw\xff\n name", "wb").write(b"raw")
with open("sparse", "wb") as file:
    file.truncate(3 << 20); file.seek(1 << 20); file.write(b"middle")
with open("huge", "wb") as file:
    file.truncate(40 << 30)
os.utime("deep/er/file", ns=(5, 1234567890123456789))
os.utime("out", ns=(5, 987654321), follow_symlinks=False)
X
mkfifo -m 666 pipe && mkdir -m 1777 empty && touch -d @-100.25 old
touch -d @1000000000.125 deep/er deep empty
"""


def name() -> str:
    return f"s-{uuid.uuid4().hex[:10]}"


class Api:
    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=300)

    def call(self, method: str, path: str, status: int = 200, **more: Any) -> Any:
        answer = self.http.request(method, f"/api/v2{path}", **more)
        assert answer.status_code == status, (method, path, answer.text)
        return answer.json()

    def files(self, snapshot: str, path: str, **query: Any) -> dict[str, dict[str, Any]]:
        page = self.call("GET", f"/snapshots/{snapshot}/files", params={"path": path, **query})
        found = {file["name"]: file for file in page["files"]}
        while page["next_cursor"]:
            page = self.call("GET", f"/snapshots/{snapshot}/files", params={"path": path, "cursor": page["next_cursor"], **query})
            assert not found.keys() & {file["name"] for file in page["files"]}
            found |= {file["name"]: file for file in page["files"]}
        return found

    def content(self, snapshot: str, path: str, **headers: str) -> httpx.Response:
        return self.http.get(f"/api/v2/snapshots/{snapshot}/content", params={"path": path}, headers=headers)


@pytest.fixture
def api(server: Server) -> Api:
    return Api(server.url)


@pytest.fixture
def sealed(api: Api, sandbox: Callable[..., LiveSandbox]) -> Iterator[Callable[..., str]]:
    """Makes snapshots of new sandboxes that ran a line."""
    made: list[str] = []

    def seal(line: str, **more: Any) -> str:
        box, called = sandbox(image="base"), name()
        box.output(line)
        api.call("POST", "/snapshots", 201, json={"name": called, "sandbox": box.name, **more})
        made.append(called)
        box.delete()
        return called

    yield seal
    for called in made:
        api.http.delete(f"/api/v2/snapshots/{called}")


def test_files_of_a_snapshot_are_read_without_a_sandbox(api: Api, sealed: Callable[..., str], server: Server, tmp_path: Path) -> None:
    called = sealed(
        "set -e; mkdir tree; cd tree; echo hello > file; chmod 640 file; printf 'x%.0s' $(seq 100) > bytes; ln -s /etc out;"
        "ln -s file link; mkfifo pipe; mkdir many; cd many; seq 3000 | xargs touch; cd ..;"
        "sudo -n rm -r /etc/skel 2>/dev/null || true; rm -f /home/gem/.profile; touch /home/gem/.bashrc"
    )
    root = api.files(called, "")
    assert {"etc", "home", "usr"} <= root.keys() and root["etc"]["kind"] == "directory"
    tree = api.files(called, "/home/gem/tree")
    kinds = {"file": "file", "bytes": "file", "out": "link", "link": "link", "pipe": "other", "many": "directory"}
    assert {one: file["kind"] for one, file in tree.items()} == kinds
    assert (tree["file"]["size_bytes"], tree["file"]["mode"]) == (6, "0640")
    # What the image has and the sandbox removed is not there; what it changed is there once.
    assert ".profile" not in api.files(called, "home/gem") and ".bashrc" in api.files(called, "home/gem")
    assert api.content(called, "home/gem/.profile").status_code == 404
    assert api.content(called, "home/gem/tree/file").text == "hello\n"
    assert "root:" in api.content(called, "etc/passwd").text, "a file of the image"
    part = api.content(called, "home/gem/tree/bytes", range="bytes=90-")
    assert (part.status_code, part.content, part.headers["content-range"]) == (206, b"x" * 10, "bytes 90-99/100")
    assert api.content(called, "home/gem/tree/bytes", range="bytes=100-").status_code == 416
    numbers = [str(n) for n in range(1, 3001)]
    assert list(api.files(called, "home/gem/tree/many", limit=700)) == sorted(numbers)
    for path, status in [
        ("home/gem/tree", 409), ("home/gem/tree/pipe", 409), ("home/gem/tree/link", 409), ("home/gem/tree/out/passwd", 409),
        ("home/gem/tree/no", 404), ("../etc/passwd", 400), ("home/gem/tree/file/x", 409), ("", 409), ("a/%00", 404),
    ]:  # fmt: skip
        assert api.content(called, path).status_code == status, path
    api.call("GET", f"/snapshots/{called}/files", 409, params={"path": "home/gem/tree/out"})
    api.call("GET", f"/snapshots/{name()}/files", 404)
    listed = run(server, "snapshot", "files", called, "/home/gem/tree")
    assert listed.returncode == 0 and "many/" in listed.stdout and "0640" in listed.stdout, listed
    assert run(server, "snapshot", "cp", f"{called}:/home/gem/tree/file", str(tmp_path)).returncode == 0
    assert (tmp_path / "file").read_text() == "hello\n"
    assert run(server, "snapshot", "cp", f"{called}:/home/gem/tree/file", "-").stdout == "hello\n"
    assert "409" not in run(server, "snapshot", "cp", f"{called}:/home/gem/tree/out", "-").stdout


@pytest.fixture
def other(own_server: Callable[..., Server]) -> Iterator[Server]:  # noqa: F811
    """A server on another data directory, without images."""
    server = own_server()
    server.args = ("--prepared-slots", "1", "--storage-size", "3GiB", "--disk-reserve", "1MiB", "--default-image", "tiny")
    server.start()
    yield server
    server.delete_all_sandboxes()


def pool_of(server: Server) -> set[str]:
    """What the pool of a server has, once nothing waits to be removed."""
    waiting.until(lambda: not list((server.data_dir / "pool/snapshots").glob("next-*")), "no copy is left")
    places = ("layers", "images", "building", "snapshots", "uppers")
    return {f"{place}/{entry.name}" for place in places for entry in (server.data_dir / "pool" / place).iterdir()} - {
        f"uppers/{entry.name}" for entry in (server.data_dir / "pool/uppers").iterdir() if (entry / "unused").exists()
    }


@pytest.mark.timeout(600)
def test_an_archive_gives_the_same_tree_on_another_server(
    api: Api, sandbox: Callable[..., LiveSandbox], server: Server, other: Server, tmp_path: Path
) -> None:
    box, called, file = sandbox(image="base"), name(), tmp_path / "snapshot.tar"
    box.output(FILL, timeout=120)
    box.output("rm -rf /home/gem/.profile; echo changed >> /home/gem/.bashrc")
    api.call("POST", "/snapshots", 201, json={"name": called, "sandbox": box.name, "labels": {"team": "a"}, "note": "the note"})
    tree = box.output('python3 -c "$TREE"', env={"TREE": TREE}, timeout=200)
    assert "/home/gem/tree/deep/er/file" in tree and int(tree.split()[-1]) > 10_000
    done = run(server, "snapshot", "export", called, "-o", str(file))
    assert done.returncode == 0, done.stderr
    assert file.stat().st_size < 2 << 30, "holes take no space"
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot.tar"]
    with tarfile.open(file) as archive:
        index = json.load(archive.extractfile("index.json"))  # type: ignore[arg-type]
        assert len(index["manifests"]) == 1 and "oci-layout" in archive.getnames()
        for part in archive.getmembers():
            if part.name.startswith("blobs/") and part.size < 1 << 20:
                content = archive.extractfile(part).read()  # type: ignore[union-attr]
                assert part.name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"
    api.call("DELETE", f"/snapshots/{called}")
    before = pool_of(other)
    done = run(other, "snapshot", "import", str(file), "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert (made["name"], made["note"], made["labels"], made["sandbox"]) == (called, "the note", {"team": "a"}, box.name)
    there = Api(other.url)
    there.call("POST", "/snapshots/import", 409, content=file.open("rb"))
    again = there.call("POST", "/snapshots/import", 201, params={"name": "again"}, content=file.open("rb"))
    assert again["image"] == made["image"], "the image is there once"
    other.restart()
    copy = there.call("POST", "/sandboxes", 201, json={"snapshot": called})["name"]
    live = LiveSandbox(other.url, copy)
    assert live.output('python3 -c "$TREE"', env={"TREE": TREE}, timeout=200).splitlines() == tree.splitlines()
    blocks, size = live.output("stat -c '%b %s' tree/huge").split()
    assert (int(blocks), int(size)) == (0, 40 << 30)
    assert int(live.output("stat -c %b tree/sparse")) < 1024
    assert live.output("cat tree/second") == "one"
    assert there.content(called, "home/gem/tree/second").text == "one\n"
    # What it came with goes with the last that needs it.
    there.call("DELETE", f"/snapshots/{called}")
    assert live.output("echo well") == "well"
    live.delete()
    there.call("DELETE", "/snapshots/again")
    assert {entry for entry in pool_of(other) - before if not entry.startswith("uppers/")} == set()


def part(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size = len(content)
    archive.addfile(about, io.BytesIO(content))


def archive_of(layers: list[bytes], *, diffs: list[str] | None = None, **annotations: str) -> bytes:
    """An archive of a snapshot with these layers."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:

        def blob(content: bytes) -> dict[str, Any]:
            digest = hashlib.sha256(content).hexdigest()
            part(archive, f"blobs/sha256/{digest}", content)
            return {"digest": f"sha256:{digest}", "size": len(content), "mediaType": "x"}

        described = [blob(layer) for layer in layers]
        config = {
            "architecture": "amd64",
            "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": diffs or [layer["digest"] for layer in described]},
        }
        prefix = "dev.arenite.snapshot."
        manifest = {
            "schemaVersion": 2,
            "config": blob(json.dumps(config).encode()),
            "layers": described,
            "annotations": {f"{prefix}{key}": value for key, value in {"version": "1", "name": "evil", **annotations}.items()},
        }
        index = {"schemaVersion": 2, "manifests": [blob(json.dumps(manifest).encode())]}
        part(archive, "index.json", json.dumps(index).encode())
    return written.getvalue()


def layer(*entries: tuple[str, bytes, int, str]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for path, kind, mode, link in entries:
            about = tarfile.TarInfo(path)
            about.type, about.mode, about.linkname = kind, mode, link
            archive.addfile(about)
    return written.getvalue()


def test_hostile_archives_are_refused_and_leave_nothing(other: Server) -> None:
    api = Api(other.url)
    tiny_image(other.data_dir / "pool")
    below, empty = layer(("etc", tarfile.DIRTYPE, 0o755, "")), layer(("home", tarfile.DIRTYPE, 0o755, ""))
    before = pool_of(other)
    gzip = bytes([0x1F, 0x8B]) + bytes(510)
    hostile = {
        "no archive": b"x" * 2000,
        "empty": b"",
        "one layer": archive_of([empty]),
        "a name with ..": archive_of([below, layer(("../out", tarfile.REGTYPE, 0o644, ""))]),
        "a link out": archive_of([below, layer(("a", tarfile.SYMTYPE, 0o777, "/"), ("a/../../x", tarfile.REGTYPE, 0o644, ""))]),
        "a device": archive_of([below, layer(("disk", tarfile.BLKTYPE, 0o666, ""))]),
        "a device below": archive_of([layer(("disk", tarfile.CHRTYPE, 0o666, "")), empty]),
        "a foreign hard link": archive_of([below, layer(("x", tarfile.LNKTYPE, 0o644, "../../etc/passwd"))]),
        "compressed": archive_of([below, gzip]),
        "other bytes": archive_of([below, empty], diffs=["sha256:" + "0" * 64] * 2),
        "a version": archive_of([below, empty], version="2"),
        "a name": archive_of([below, empty], name="Not A Name"),
        "a tier": archive_of([below, empty], tier="none"),
        "labels": archive_of([below, empty], labels="[]"),
        "a note": archive_of([below, empty], note="x" * 2000),
        "cut": archive_of([below, empty])[:-6000],
    }
    for what, content in hostile.items():
        answer = api.http.post("/api/v2/snapshots/import", content=content)
        assert answer.status_code == 400, (what, answer.status_code, answer.text)
        assert pool_of(other) == before, what
    assert api.call("GET", "/snapshots")["snapshots"] == []

    def cut_off() -> Iterator[bytes]:
        yield archive_of([below, empty])[:1000]
        raise ConnectionError

    with pytest.raises((httpx.HTTPError, ConnectionError)):
        api.http.post("/api/v2/snapshots/import", content=cut_off(), headers={"content-length": "100000"})
    lengthless = api.http.post("/api/v2/snapshots/import", content=iter([b"x"]))
    assert lengthless.status_code == 411, lengthless.text
    for length, status in [(65 << 30, 400), (50 << 30, 429)]:
        # The answer comes before the body.
        with socket.create_connection(("127.0.0.1", other.port), timeout=30) as line:
            line.sendall(f"POST /api/v2/snapshots/import HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode())
            assert line.recv(4096).split()[1] == str(status).encode()
    api.call("POST", "/snapshots/import", 201, content=archive_of([below, empty]))
    assert api.call("GET", "/snapshots/evil")["sandbox"] == "imported"
    api.call("DELETE", "/snapshots/evil")
    assert pool_of(other) == before


@pytest.mark.parametrize("moment", [0.2, 0.6, 1.2])
def test_a_killed_server_leaves_no_half_of_an_import(other: Server, moment: float) -> None:
    tiny_image(other.data_dir / "pool")
    before = pool_of(other)
    big = io.BytesIO()
    with tarfile.open(fileobj=big, mode="w") as archive:
        for number in range(40):
            part(archive, f"file-{number}", random.randbytes(2 << 20))
    content = archive_of([big.getvalue(), layer(("home", tarfile.DIRTYPE, 0o755, ""))])

    def send() -> None:
        with contextlib.suppress(httpx.HTTPError):
            httpx.post(f"{other.url}/api/v2/snapshots/import", content=content, timeout=60)

    sending = threading.Thread(target=send)
    sending.start()
    time.sleep(moment)
    other.kill()
    sending.join()
    other.start()
    api = Api(other.url)
    known = api.call("GET", "/snapshots")["snapshots"]
    sealed = {entry for entry in pool_of(other) if entry.startswith("snapshots/")}
    assert sealed == {f"snapshots/{snapshot['state']}" for snapshot in known}
    for snapshot in known:
        assert len(api.files(snapshot["name"], "")) == 41, "all of it is there"
        api.call("DELETE", f"/snapshots/{snapshot['name']}")
    for image in api.call("GET", "/images")["images"]:
        if image["name"].startswith("localhost/"):
            api.call("DELETE", f"/images/{image['name']}")
    assert pool_of(other) == before


def test_a_file_that_an_archive_can_not_have_is_named(api: Api, sealed: Callable[..., str]) -> None:
    called = sealed("mkdir -p tree/below; touch tree/below/.wh.x")
    refused = api.http.get(f"/api/v2/snapshots/{called}/archive")
    assert refused.status_code == 409 and ".wh.x" in refused.json()["message"], refused.text


@pytest.fixture
def tenants(own_server: Callable[..., Server]) -> Iterator[TenantsServer]:  # noqa: F811
    server = own_server(args=("--tenants", "--default-image", "tiny", "--tenant-limit", "snapshots=1"))
    server.start()
    tiny_image(server.data_dir / "pool")
    tenants = TenantsServer(server)
    yield tenants
    for tenant in tenants.operator.json("GET", "/api/v2/tenants")["tenants"]:
        if tenant["name"] != "default":
            tenants.operator.json("DELETE", f"/api/v2/tenants/{tenant['name']}?force=true")


def test_tenants_see_only_their_own(tenants: TenantsServer) -> None:
    acme, rival = tenants.tenant("acme"), tenants.tenant("rival")
    acme.json("POST", "/api/v2/sandboxes", json={"name": "box"})
    acme.json("POST", "/api/v2/snapshots", json={"name": "kept", "sandbox": "box"})
    archive = acme.http.get("/api/v2/snapshots/kept/archive", timeout=60).content
    for path in ("archive", "files", "content?path=etc/passwd"):
        theirs = rival.http.get(f"/api/v2/snapshots/kept/{path}")
        missing = rival.http.get(f"/api/v2/snapshots/missing/{path}")
        assert theirs.status_code == missing.status_code == 404, path
        assert theirs.json()["message"].replace("kept", "missing") == missing.json()["message"]
        reader = acme.http.get(f"/api/v2/snapshots/kept/{path}", headers={"x-api-key": acme.new_key("read")["key"]})
        assert reader.status_code == 403, path
    full = acme.http.post("/api/v2/snapshots/import", params={"name": "other"}, content=archive)
    assert (full.status_code, full.json()["quota"]["quota"]) == (429, "snapshots"), full.text
    made = rival.http.post("/api/v2/snapshots/import", content=archive, timeout=60)
    assert made.status_code == 201, made.text
    image = made.json()["image"]
    assert [one["name"] for one in rival.json("GET", "/api/v2/images")["images"] if one["name"] == image] == [image]
    assert image not in [one["name"] for one in acme.json("GET", "/api/v2/images")["images"]], "it is the tenant's own"
    rival.json("POST", "/api/v2/sandboxes", json={"name": "copy", "snapshot": "kept"})
    read = rival.json("POST", "/sandbox/copy/v1/bash/exec", json={"command": "cat /etc/passwd"})
    assert read["data"]["stdout"].startswith("root:"), read
    rival.json("DELETE", "/api/v2/snapshots/kept")
    assert image in [one["name"] for one in rival.json("GET", "/api/v2/images")["images"]], "a sandbox has it"
