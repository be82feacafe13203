"""Volumes: shared by sandboxes, kept over restarts, copied, limited, removed; their files by API; tenants and nodes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server
from commands import run
from nodes import nodes_of
from operation.conftest import own_server, postgres  # noqa: F401
from postgres import Postgres
from sandboxes import LiveSandbox
from small import MIB, SmallServer, small_server, tiny_image, within
from tenant import TenantsServer


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of the host that the operator declares."""
    top = tmp_path_factory.mktemp("host")
    (top / "shared").mkdir(mode=0o700)
    (top / "shared/from-host").write_text("from the host")
    return top


@pytest.fixture(scope="module")
def small(host: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallServer]:
    declared = ("--volume", f"shared={host}/shared", "--volume", f"library={host}/shared:ro")
    with small_server(tmp_path_factory.mktemp("small"), args=declared) as server:
        yield server


@pytest.fixture
def fresh(small: SmallServer) -> Iterator[SmallServer]:
    if small.process is None:
        small.start()
    yield small
    small.delete_all_sandboxes()
    with small.api() as api:
        for volume in api.get("/api/v2/volumes").json()["volumes"]:
            api.delete(f"/api/v2/volumes/{volume['name']}").raise_for_status()
    assert on_disk(small) == set(), "a removed volume leaves nothing"


@pytest.fixture
def api(fresh: SmallServer) -> Iterator[httpx.Client]:
    with fresh.api(timeout=120) as api:
        yield api


def on_disk(server: SmallServer) -> set[str]:
    return {path.name for path in (server.in_pool() / "volumes").iterdir()}


def create(api: httpx.Client, name: str, mib: int = 64, **more: Any) -> dict[str, Any]:
    answer = api.post("/api/v2/volumes", json={"name": name, "size_bytes": mib * MIB, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()


def mounted(name: str, path: str = "/data", **more: Any) -> dict[str, Any]:
    return {"name": name, "path": path, **more}


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def test_sandboxes_share_a_volume_that_outlives_them(fresh: SmallServer, api: httpx.Client) -> None:
    made = create(api, "data", labels={"team": "a"})
    assert made["state"] == "ready" and made["size_enforced"] and made["labels"] == {"team": "a"}, made
    writer = fresh.create("writer", volumes=[mounted("data")])
    reader = fresh.create("reader", volumes=[mounted("data", "/mnt/deep/place", read_only=True)])
    assert writer.output("stat -c %u:%g:%a /data") == "1000:1000:1777"
    writer.output("echo one > /data/file; mkdir /data/folder; echo two > /data/folder/other")
    assert reader.output("cat /mnt/deep/place/file /mnt/deep/place/folder/other") == "one\ntwo"
    refused = reader.bash("echo x > /mnt/deep/place/new")
    assert refused.exit_code != 0 and "Read-only file system" in refused.stderr, refused
    options = [line.split()[5] for line in writer.output("cat /proc/self/mountinfo").splitlines() if line.split()[4] == "/data"]
    assert len(options) == 1 and {"nosuid", "nodev", "rw"} <= set(options[0].split(",")), options
    # The use is counted when the pool is written to the disk.
    subprocess.run(["sync", "-f", str(fresh.in_pool())], check=True)
    described = api.get("/api/v2/volumes/data").json()
    assert described["sandboxes"] == ["reader", "writer"] and described["used_bytes"] > 0, described
    spec = writer.details()["spec"]["volumes"]
    assert spec == [{"name": "data", "path": "/data", "read_only": False, "volume_id": made["id"]}]

    for box in (writer, reader):
        assert box.delete().status_code == 200
    later = fresh.create("later", volumes=[mounted("data")])
    assert later.output("cat /data/file") == "one"


def test_a_user_that_is_not_root_can_write(server: Server) -> None:
    with server.api() as api:
        create(api, "of-a-user")
        body = {"name": "volume-user", "image": "base", "volumes": [mounted("of-a-user", "/home/gem/data", sub_path="a/b")]}
        try:
            assert (made := api.post("/api/v2/sandboxes", json=body)).status_code == 201, made.text
            box = LiveSandbox(server.url, "volume-user")
            assert box.output("id -u") == "1000"
            box.output("cd /home/gem/data && echo x > file && mkdir folder && rm -r file folder && echo kept > kept")
            uploaded = api.put("/api/v2/volumes/of-a-user/content?path=a/b/uploaded", content=b"from outside")
            assert uploaded.status_code == 200, uploaded.text
            box.output("cd /home/gem/data && echo more >> uploaded && stat -c %u uploaded")
            assert api.get("/api/v2/volumes/of-a-user/content?path=a/b/uploaded").text == "from outsidemore\n"
        finally:
            api.delete("/api/v2/sandboxes/volume-user")
            api.delete("/api/v2/volumes/of-a-user").raise_for_status()


def test_a_directory_of_a_volume_is_mounted_without_following_links(fresh: SmallServer, api: httpx.Client, host: Path) -> None:
    create(api, "data")
    whole = fresh.create("whole", volumes=[mounted("data")])
    part = fresh.create("part", volumes=[mounted("data", sub_path="sets/first"), mounted("data", "/other", sub_path="sets")])
    part.output("echo x > /data/file")
    assert whole.output("cat /data/sets/first/file") == part.output("cat /other/first/file") == "x"
    assert whole.output("stat -c %u:%a /data/sets/first") == "1000:1777"
    whole.output("cd /data && mkdir -p real && : > plain")
    # A sandbox may leave links: here, the host does it for an image without ln.
    volume = api.get("/api/v2/volumes/data").json()["id"]
    top = fresh.in_pool() / "volumes" / volume
    (top / "link").symlink_to(host)
    (top / "inner").symlink_to("real")
    for bad, status in (("link", 409), ("link/shared", 409), ("inner/x", 409), ("plain/x", 409), ("../x", 400), ("/x", 400), ("a//b", 400)):
        body = {"name": "refused", "image": "tiny", "volumes": [mounted("data", sub_path=bad)]}
        answer = api.post("/api/v2/sandboxes", json=body)
        assert answer.status_code == status, (bad, answer.text)
    assert sorted(path.name for path in host.iterdir()) == ["shared"]
    # The same for a directory of the operator's, which sandboxes write as well.
    operators = fresh.create("operators", volumes=[mounted("shared", sub_path="new/below"), mounted("library", "/library")])
    operators.output("echo y > /data/file")
    assert (host / "shared/new/below/file").read_text() == "y\n" and operators.output("cat /library/new/below/file") == "y"
    body = {"name": "refused", "image": "tiny", "volumes": [mounted("library", sub_path="missing")]}
    assert api.post("/api/v2/sandboxes", json=body).status_code == 404


def test_a_tenants_volume_comes_before_the_operators_directory(fresh: SmallServer, api: httpx.Client) -> None:
    before = fresh.create("before", volumes=[mounted("shared")])
    create(api, "shared")
    after = fresh.create("after", volumes=[mounted("shared")])
    assert before.output("cat /data/from-host") == "from the host"
    assert after.output("ls /data") == ""
    body = {"name": "x", "image": "tiny", "volumes": [mounted("missing")]}
    answer = api.post("/api/v2/sandboxes", json=body)
    assert code(answer) == (400, "invalid_request") and "volume create" in answer.json()["hint"], answer.text


def test_mounts_are_there_after_restarts(fresh: SmallServer, api: httpx.Client) -> None:
    made = create(api, "data")
    box = fresh.create("box", volumes=[mounted("data", sub_path="a")])
    box.output("echo kept > /data/file")
    fresh.restart()
    assert box.output("cat /data/file; echo more > /data/other") == "kept"
    assert api.get("/api/v2/volumes/data").json() | {"used_bytes": 0} == made | {"used_bytes": 0, "sandboxes": ["box"]}
    pid = json.loads((fresh.data_dir / "run" / box.details()["id"] / "sandbox.json").read_text().splitlines()[-1])["pid"]
    os.kill(pid, signal.SIGKILL)
    within(20, "it has failed", lambda: fresh.states()["box"] == "failed")
    assert run(fresh, "start", "box").returncode == 0
    assert box.output("cat /data/file /data/other") == "kept\nmore"

    # In use: not by force while it runs, by force once it has ended.
    for query in ("", "?force=true"):
        answer = api.delete(f"/api/v2/volumes/data{query}")
        assert code(answer) == (409, "conflict") and "sandbox box" in answer.json()["message"], answer.text
    pid = json.loads((fresh.data_dir / "run" / box.details()["id"] / "sandbox.json").read_text().splitlines()[-1])["pid"]
    os.kill(pid, signal.SIGKILL)
    within(20, "it has failed", lambda: fresh.states()["box"] == "failed")
    assert code(api.delete("/api/v2/volumes/data")) == (409, "conflict")
    assert api.delete("/api/v2/volumes/data?force=true").status_code == 200
    again = run(fresh, "start", "box")
    assert again.returncode != 0 and "there is no volume" in again.stderr, again.stderr


def test_copies_share_their_files_until_they_change(fresh: SmallServer, api: httpx.Client) -> None:
    create(api, "data", 128)
    box = fresh.create("box", volumes=[mounted("data")])
    box.output("dd if=/dev/zero of=/data/large bs=1M count=40 2>&1; echo one > /data/file")
    answer = api.post("/api/v2/volumes/data/copy", json={"name": "copy", "labels": {"of": "data"}})
    assert answer.status_code == 201, answer.text
    assert (answer.json()["size_bytes"], answer.json()["labels"]) == (128 * MIB, {"of": "data"})
    other = fresh.create("other", volumes=[mounted("copy")])
    box.output("echo two > /data/file")
    other.output("echo three > /data/file; echo x > /data/new")
    assert (box.output("cat /data/file"), other.output("cat /data/file")) == ("two", "three")
    assert api.get("/api/v2/volumes/data/content?path=new").status_code == 404
    assert code(api.post("/api/v2/volumes/data/copy", json={"name": "copy"})) == (409, "already_exists")
    assert code(api.post("/api/v2/volumes/missing/copy", json={"name": "x"})) == (404, "not_found")


def test_a_full_volume_says_so_and_fills_no_other(fresh: SmallServer, api: httpx.Client) -> None:
    create(api, "full", 32)
    create(api, "other", 32)
    box = fresh.create("box", volumes=[mounted("full"), mounted("other", "/other")])
    result = box.bash("dd if=/dev/zero of=/data/large bs=1M count=64")
    assert result.exit_code != 0 and "quota exceeded" in result.stderr, result
    answer = api.put("/api/v2/volumes/full/content?path=more", content=b"x" * (24 * MIB))
    assert code(answer) == (507, "exhausted") and "volume full: there is no space left" in answer.json()["message"], answer.text
    assert str(32 * MIB) in answer.json()["hint"]
    assert api.get("/api/v2/volumes/full/content?path=more").status_code == 404
    box.output("dd if=/dev/zero of=/other/large bs=1M count=16 2>&1; dd if=/dev/zero of=/tmp/large bs=1M count=16 2>&1")
    changed = api.patch("/api/v2/volumes/full", json={"size_bytes": 96 * MIB, "labels": {"a": "b"}})
    assert changed.status_code == 200 and changed.json()["size_bytes"] == 96 * MIB, changed.text
    box.output("dd if=/dev/zero of=/data/more bs=1M count=30 2>&1")


def test_ten_thousand_files_come_in_pages(fresh: SmallServer, api: httpx.Client) -> None:
    create(api, "data")
    box = fresh.create("box", volumes=[mounted("data")])
    box.output("mkdir /data/many; cd /data/many; for ((i = 0; i < 10000; i++)); do : > f$i; done; : > $'new\\nline'; : > 'a b'")
    names, cursor = [], ""
    while cursor is not None:
        query = {"path": "many"} | ({"cursor": cursor} if cursor else {})
        page = api.get("/api/v2/volumes/data/files", params=query).raise_for_status().json()
        names += [one["name"] for one in page["files"]]
        cursor = page["next_cursor"]
    assert len(names) == len(set(names)) == 10_002 and {"new\nline", "a b", "f0", "f9999"} <= set(names)
    entry = page["files"][-1]
    assert (entry["kind"], entry["size_bytes"], entry["mode"]) == ("file", 0, "0644"), entry
    assert code(api.delete("/api/v2/volumes/data/content?path=many")) == (409, "conflict")
    assert api.delete("/api/v2/volumes/data/content?path=many&recursive=true").status_code == 200
    assert box.output("ls /data") == ""


def test_uploads_appear_whole_or_not_at_all(fresh: SmallServer, api: httpx.Client) -> None:
    create(api, "data")
    path = "/api/v2/volumes/data/content?path=folder/file"
    assert code(api.put(path, content=b"x")) == (404, "not_found")
    assert api.put(f"{path}&create_parents=true", content=b"first").status_code == 200
    with socket.create_connection(("127.0.0.1", fresh.port)) as cut:
        cut.sendall(f"PUT {path} HTTP/1.1\r\nHost: 127.0.0.1:{fresh.port}\r\nContent-Length: {8 * MIB}\r\n\r\n".encode())
        cut.sendall(b"x" * (3 * MIB))
    with ThreadPoolExecutor(8) as pool:
        contents = [bytes([65 + n]) * (2 * MIB) for n in range(8)]
        answers = list(pool.map(lambda content: api.put(path, content=content), contents))
    assert all(answer.status_code == 200 for answer in answers)
    assert api.get(path).content in contents
    assert [one["name"] for one in api.get("/api/v2/volumes/data/files?path=folder").json()["files"]] == ["file"]
    part = api.get(path, headers={"range": "bytes=-5"})
    assert (part.status_code, len(part.content), part.headers["content-range"]) == (206, 5, f"bytes {2 * MIB - 5}-{2 * MIB - 1}/{2 * MIB}")
    head = api.head(path)
    assert head.headers["content-length"] == str(2 * MIB) and head.headers["content-disposition"] == "attachment"


def test_files_by_api_follow_no_link(fresh: SmallServer, api: httpx.Client, host: Path) -> None:
    made = create(api, "data")
    top = fresh.in_pool() / "volumes" / made["id"]
    (top / "way-out").symlink_to(host / "shared")
    (top / "file").symlink_to(host / "shared/from-host")
    (top / "up").symlink_to("../../..")
    kinds = {one["name"]: one["kind"] for one in api.get("/api/v2/volumes/data/files").json()["files"]}
    assert kinds == {"way-out": "link", "file": "link", "up": "link"}
    for bad in ("file", "way-out/from-host", "up/control.sqlite"):
        for method in ("GET", "PUT", "DELETE"):
            if bad == "file" and method != "GET":
                continue
            answer = api.request(method, "/api/v2/volumes/data/content", params={"path": bad})
            assert code(answer) == (409, "conflict"), (method, bad, answer.text)
    assert code(api.get("/api/v2/volumes/data/files?path=way-out")) == (409, "conflict")
    # A link itself is replaced, and removed.
    assert api.put("/api/v2/volumes/data/content?path=file", content=b"own").status_code == 200
    assert api.delete("/api/v2/volumes/data/content?path=way-out&recursive=true").status_code == 200
    assert (host / "shared/from-host").read_text() == "from the host"
    for bad in ("..", "a/../b", "./a", "a//b", "a\0b", "x" * 256, "y/" * 3000):
        answer = api.get("/api/v2/volumes/data/content", params={"path": bad})
        assert code(answer) == (400, "invalid_request"), (bad, answer.text)


def test_what_volumes_hold_is_metered(fresh: SmallServer, api: httpx.Client) -> None:
    made = create(api, "metered")
    api.put("/api/v2/volumes/metered/content?path=file", content=os.urandom(32 * MIB)).raise_for_status()

    def used() -> float:
        rows = api.get("/api/v2/usage?group=sandbox").json()["rows"]
        of_volume = [row for row in rows if row.get("volume") == made["id"]]
        assert len(of_volume) < 2 and all(row["name"] == "metered" and "sandbox" not in row for row in of_volume)
        return sum(row["disk_gib_hours"] for row in of_volume)

    within(40, "it is measured", lambda: used() > 0)
    first = used()
    assert first < 60 / 3600 * 40 / 1024, "not more than its size over this time"
    fresh.kill()
    fresh.start()
    within(40, "it is measured on", lambda: used() > first)
    total = api.get("/api/v2/usage").json()["rows"][0]["disk_gib_hours"]
    assert total >= used() * 0.9
    assert made["id"] in api.get("/api/v2/usage?group=sandbox&format=csv").text


def test_the_command_line(fresh: SmallServer) -> None:
    def volume(*words: str) -> Any:
        done = run(fresh, "volume", *words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert volume("create", "data", "--size", "64MiB", "--label", "team=a")["size_bytes"] == 64 * MIB
    assert volume("cp", "data", "copy")["size_bytes"] == 64 * MIB
    assert volume("set", "data", "--size", "1GiB", "--unlabel", "team")["labels"] == {}
    assert volume("inspect", "data")["size_bytes"] == 1 << 30
    assert [one["name"] for one in volume("ls")["volumes"]] == ["copy", "data"]
    made = run(fresh, "create", "box", "--image", "tiny", "--volume", "data/below:/data", "--volume", "copy:/copy:ro")
    assert made.returncode == 0, made.stderr
    assert LiveSandbox(fresh.url, "box").output("echo x > /data/file; ls /data") == "file"
    listed = run(fresh, "volume", "ls").stdout
    assert "data" in listed and "1.0 GiB" in listed, listed
    refused = run(fresh, "volume", "rm", "data")
    assert refused.returncode != 0 and "in use by sandbox box" in refused.stderr, refused.stderr
    run(fresh, "rm", "box")
    assert volume("rm", "data")[0]["removed"] is True
    assert run(fresh, "volume", "rm", "copy").stdout == "copy\n"
    assert run(fresh, "volume", "inspect", "data").returncode != 0


def test_a_lost_store_loses_no_volume(fresh: SmallServer, api: httpx.Client) -> None:
    made = create(api, "data", labels={"a": "b"})
    api.put("/api/v2/volumes/data/content?path=file", content=b"kept").raise_for_status()
    fresh.stop()
    for path in fresh.data_dir.glob("control.sqlite*"):
        path.unlink()
    fresh.start()
    again = api.get("/api/v2/volumes/data").json()
    assert again | {"used_bytes": 0} == made | {"used_bytes": 0}
    assert api.get("/api/v2/volumes/data/content?path=file").text == "kept"


def test_without_a_pool_sizes_are_not_enforced(own_server: Callable[..., Server]) -> None:  # noqa: F811
    server = own_server(kind=SmallServer)
    # As a host without btrfs leaves it.
    (server.data_dir / "plain").mkdir(parents=True)
    server.data_dir.chmod(0o700)
    server.start()
    tiny_image(server.data_dir / "plain")
    with server.api() as api:
        made = create(api, "data", 16)
        assert (made["size_enforced"], made["used_bytes"]) == (False, None)
        box = server.create("box", image="tiny", volumes=[mounted("data", sub_path="a")])
        assert box.output("echo x > /data/file; cat /data/file") == "x"
        assert code(api.post("/api/v2/volumes/data/copy", json={"name": "copy"})) == (501, "unsupported")
        assert box.delete().status_code == 200
        assert api.delete("/api/v2/volumes/data").status_code == 200
        assert list((server.data_dir / "plain/volumes").iterdir()) == []


@pytest.fixture(params=["sqlite", "postgres"])
def tenants(request: pytest.FixtureRequest, own_server: Callable[..., Server]) -> Iterator[TenantsServer]:  # noqa: F811
    database = Postgres() if request.param == "postgres" else None
    server = own_server(args=("--tenants", "--default-image", "tiny", "--tenant-limit", "volumes=3,volume-space=100MiB"))
    if database is not None:
        server.environment = {"ARENITE_STORE": database.url}
    server.start()
    tiny_image(server.data_dir / "pool")
    tenants = TenantsServer(server)
    yield tenants
    for tenant in tenants.operator.json("GET", "/api/v2/tenants")["tenants"]:
        if tenant["name"] != "default":
            tenants.operator.json("DELETE", f"/api/v2/tenants/{tenant['name']}?force=true")
    server.stop()
    if database is not None:
        database.remove()


def test_tenants_have_their_own_volumes_and_quotas(tenants: TenantsServer) -> None:
    acme, other = tenants.tenant("acme"), tenants.tenant("other")
    create(acme.http, "data", 32)
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/files"), ("GET", "/content?path=x"), ("PUT", "/content?path=x")):
        theirs = other.http.request(method, f"/api/v2/volumes/data{path}")
        missing = other.http.request(method, f"/api/v2/volumes/missing{path}")
        assert code(theirs) == code(missing) == (404, "not_found"), (method, path, theirs.text)
        assert theirs.json()["message"].replace("data", "missing") == missing.json()["message"]
    refused = other.http.post("/api/v2/sandboxes", json={"volumes": [mounted("data")]})
    assert code(refused) == (403, "forbidden"), refused.text
    create(other.http, "data", 32)
    made = acme.json("POST", "/api/v2/sandboxes", json={"name": "box", "volumes": [mounted("data")]})
    assert made["spec"]["volumes"][0]["volume_id"] == acme.json("GET", "/api/v2/volumes/data")["id"]
    # Ten creates race for the last two places.
    with ThreadPoolExecutor(10) as pool:
        body = [{"name": f"race-{n}", "size_bytes": 16 * MIB} for n in range(10)]
        answers = list(pool.map(lambda one: acme.http.post("/api/v2/volumes", json=one), body))
    assert sorted(answer.status_code for answer in answers) == [201] * 2 + [403] * 8
    quota = next(answer for answer in answers if answer.status_code == 403).json()["quota"]
    assert quota == {"quota": "volumes", "limit": 3, "used": 3, "requested": 1}
    large = acme.http.patch("/api/v2/volumes/data", json={"size_bytes": 69 * MIB})
    assert code(large) == (403, "quota_exceeded") and large.json()["quota"]["quota"] == "volume_bytes", large.text
    used = {one["quota"]: one["used"] for one in acme.json("GET", "/api/v2/me")["quotas"]}
    assert (used["volumes"], used["volume_bytes"]) == (3, 64 * MIB)
    reader = acme.new_key("read")["key"]
    assert acme.http.get("/api/v2/volumes", headers={"x-api-key": reader}).status_code == 200
    assert acme.http.get("/api/v2/volumes/data/files", headers={"x-api-key": reader}).status_code == 403
    bound = acme.new_key("manage", bound=["box"])["key"]
    assert acme.http.get("/api/v2/volumes", headers={"x-api-key": bound}).status_code == 403
    # A removed tenant leaves nothing.
    assert code(tenants.operator.http.delete("/api/v2/tenants/other")) == (409, "conflict")
    for name in ("acme", "other"):
        tenants.operator.json("DELETE", f"/api/v2/tenants/{name}?force=true")
    assert list((tenants.server.data_dir / "pool/volumes").iterdir()) == []


def test_a_volume_is_on_the_node_that_made_it(postgres: Postgres, own_server: Callable[..., Server]) -> None:  # noqa: F811
    with nodes_of(postgres, own_server) as nodes:
        red, green, blue = nodes.values()
        with red.api() as on_red, green.api() as on_green, blue.api() as on_blue:
            made = create(on_red, "data")
            assert made["node"] == "red"
            assert on_green.put("/api/v2/volumes/data/content?path=file", content=b"x" * MIB).status_code == 200
            assert on_blue.get("/api/v2/volumes/data/content?path=file").content == b"x" * MIB
            assert [one["node"] for one in on_blue.get("/api/v2/volumes").json()["volumes"]] == ["red"]
            assert code(on_green.post("/api/v2/volumes", json={"name": "data"})) == (409, "already_exists")
            boxes = [node.create(f"of-{name}", volumes=[mounted("data")]) for name, node in nodes.items()]
            assert {box.output("cat /data/file | sha256sum") for box in boxes} == {boxes[0].output("sha256sum < /data/file")}
            assert on_green.get("/api/v2/volumes/data").json()["sandboxes"] == ["of-blue", "of-green", "of-red"]
            create(on_green, "elsewhere")
            both = {"name": "both", "volumes": [mounted("data"), mounted("elsewhere", "/other")]}
            answer = on_blue.post("/api/v2/sandboxes", json=both)
            assert code(answer) == (409, "conflict") and "on the node green" in answer.json()["message"], answer.text
            for box in boxes:
                assert box.delete().status_code == 200
            for name in ("data", "elsewhere"):
                assert on_blue.delete(f"/api/v2/volumes/{name}").status_code == 200
            assert on_red.get("/api/v2/volumes").json()["volumes"] == []
