"""Volumes in buckets, on a server with S3's protocol: shared, read by the bucket's own client, and kept over all that can end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server
from buckets import ACCESS_KEY, BUCKET, SECRET_KEY, BucketServer, bucket_server, path_of_rclone
from commands import run
from operation.conftest import own_server  # noqa: F401
from small import MIB, SmallServer, small_server, tiny_image, within


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    with bucket_server(tmp_path_factory.mktemp("bucket") / "objects") as server:
        yield server


@pytest.fixture(scope="module")
def small(bucket: BucketServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallServer]:
    folder = tmp_path_factory.mktemp("small")
    declared = bucket.declare(folder / "shared.toml")
    gone = bucket.declare(folder / "gone.toml", url="s3://not-there")
    args = ("--rclone", path_of_rclone(), "--bucket", f"shared={declared}", "--bucket", f"gone={gone}")
    with small_server(folder, args=args) as server:
        yield server


@pytest.fixture
def fresh(small: SmallServer, bucket: BucketServer) -> Iterator[SmallServer]:
    if bucket.process is None:
        bucket.start()
    if small.process is None:
        small.start()
    yield small
    if bucket.process is None:
        bucket.start()
    small.delete_all_sandboxes()
    with small.api(timeout=120) as api:
        for volume in api.get("/api/v2/volumes").json()["volumes"]:
            api.delete(f"/api/v2/volumes/{volume['name']}").raise_for_status()
    assert bucket.keys() == [], "a removed volume leaves no object"
    within(30, "nothing is mounted", lambda: clients(small) == {} and mounts(small) == [])


@pytest.fixture
def api(fresh: SmallServer) -> Iterator[httpx.Client]:
    with fresh.api(timeout=120) as api:
        yield api


def clients(server: SmallServer) -> dict[int, str]:
    """The command lines of the rclones that this server's volumes have."""
    records = (server.data_dir / "buckets").glob("v*.json")
    pids = [json.loads(record.read_text())["pid"] for record in records]
    lines = {pid: Path(f"/proc/{pid}/cmdline") for pid in pids}
    return {pid: line.read_bytes().replace(b"\0", b" ").decode() for pid, line in lines.items() if line.exists()}


def is_running(pid: int) -> bool:
    """Whether a process runs: one that nobody has waited for has no command line."""
    line = Path(f"/proc/{pid}/cmdline")
    return line.exists() and line.read_bytes() != b""


def mounts(server: SmallServer) -> list[str]:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if point.startswith(f"{server.data_dir}/buckets/")]


def create(api: httpx.Client, name: str, **more: Any) -> dict[str, Any]:
    answer = api.post("/api/v2/volumes", json={"name": name, "size_bytes": 64 * MIB, "bucket": "shared", **more})
    assert answer.status_code == 201, answer.text
    return answer.json()


def mounted(name: str, path: str = "/data", **more: Any) -> dict[str, Any]:
    return {"name": name, "path": path, **more}


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def key(volume: dict[str, Any], path: str) -> str:
    return f"of/tests/default/{volume['id']}/{path}"


def test_sandboxes_and_the_buckets_own_client_share_files(fresh: SmallServer, api: httpx.Client, bucket: BucketServer) -> None:
    made = create(api, "data", labels={"team": "a"})
    assert (made["state"], made["bucket"], made["size_enforced"], made["used_bytes"]) == ("ready", "shared", False, None)
    writer = fresh.create("writer", volumes=[mounted("data")])
    reader = fresh.create("reader", volumes=[mounted("data", "/mnt/place", read_only=True), mounted("data", "/part", sub_path="a/b")])
    writer.output("echo one > /data/file; mkdir /data/folder /data/empty; echo two > /data/folder/other; echo x > /data/a/b/deep")
    writer.output("dd if=/dev/urandom of=/data/large bs=1M count=20 2>&1")
    assert reader.output("cat /mnt/place/file /mnt/place/folder/other /part/deep") == "one\ntwo\nx"
    assert reader.output("sha256sum < /mnt/place/large") == writer.output("sha256sum < /data/large")
    refused = reader.bash("echo x > /mnt/place/new")
    assert refused.exit_code != 0 and "Read-only file system" in refused.stderr, refused
    within(30, "the bucket has it", lambda: bucket.has(key(made, "folder/other"), b"two\n"))
    within(30, "the bucket has all", lambda: bucket.size(key(made, "large")) == 20 * MIB)
    assert key(made, "empty/") in bucket.keys()
    options = [line.split()[5] for line in writer.output("cat /proc/self/mountinfo").splitlines() if line.split()[4] == "/data"]
    assert len(options) == 1 and {"nosuid", "nodev", "rw"} <= set(options[0].split(",")), options
    # As volumes of the storage: the ids are mapped.
    assert writer.output("stat -c %u:%g:%a /data/file /data") == "1000:1000:777\n1000:1000:777"
    bucket.client.put_object(Bucket=BUCKET, Key=key(made, "from/outside"), Body=b"by another client")
    within(15, "the sandbox sees it", lambda: reader.bash("cat /mnt/place/from/outside").stdout == "by another client")
    described = api.get("/api/v2/volumes/data").json()
    assert (described["state"], described["waiting_uploads"], described["sandboxes"]) == ("ready", 0, ["reader", "writer"])

    for box in (writer, reader):
        assert box.delete().status_code == 200
    within(30, "the client has ended", lambda: clients(fresh) == {} and mounts(fresh) == [])
    later = fresh.create("later", volumes=[mounted("data")])
    assert later.output("cat /data/file") == "one"


def test_nobody_sees_the_credentials(fresh: SmallServer, api: httpx.Client, bucket: BucketServer) -> None:
    create(api, "data")
    box = fresh.create("box", volumes=[mounted("data")])
    (pid,) = clients(fresh)
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    assert int(status["Uid"].split()[0]) >= 0x7000_0000 and int(status["CapEff"].strip(), 16) == 0, status
    assert status["NoNewPrivs"].strip() == "1", status
    told = [box.output("cat /proc/self/mountinfo; ls -la /data"), api.get("/api/v2/volumes/data").text, api.get("/api/v2/info").text]
    told += [fresh.log_path.read_text(errors="replace"), *clients(fresh).values()]
    shown = subprocess.run([*fresh.command_line(), "--show-config"], capture_output=True, text=True, timeout=60)
    told.append(shown.stdout + shown.stderr)
    for secret in (ACCESS_KEY, SECRET_KEY):
        assert all(secret not in text for text in told)
        assert subprocess.run(["grep", "-rqs", secret, str(fresh.data_dir / "buckets"), str(fresh.data_dir / "run")]).returncode == 1


def test_names_with_anything_in_them(fresh: SmallServer, api: httpx.Client, bucket: BucketServer) -> None:
    made = create(api, "data")
    box = fresh.create("box", volumes=[mounted("data")])
    names = ["a b", "new\nline", "tab\tand\x01", "ü–漢字", "%41", "‛quoted", "back\\slash", "quote'\"", "-rf", "a:b*c?<d>|", "..a", " x "]
    quoted = [name.encode() for name in names] + [b"\xff\xfe", b"n" * 200]
    for number, name in enumerate(quoted):
        octal = "".join(f"\\{byte:03o}" for byte in name)
        box.output(f"mkdir -p $'/data/in {octal}'; echo {number} > $'/data/in {octal}/{octal}'")
    within(40, "all is uploaded", lambda: api.get("/api/v2/volumes/data").json()["waiting_uploads"] == 0)
    assert len([one for one in bucket.keys(key(made, "")) if not one.endswith("/")]) == len(quoted)
    # Another mount reads the names from the bucket, in which control characters are others.
    assert box.delete().status_code == 200
    within(30, "it is unmounted", lambda: clients(fresh) == {})
    again = fresh.create("again", volumes=[mounted("data")])
    others = {ord("\n"): "␊", ord("\t"): "␉", 1: "␁", ord("‛"): "‛‛"}
    quoted[: len(names)] = [name.translate(others).encode() for name in names]
    for number, name in enumerate(quoted):
        octal = "".join(f"\\{byte:03o}" for byte in name)
        assert again.output(f"cat $'/data/in {octal}/{octal}'") == str(number), name
    listed = {one["name"] for one in api.get("/api/v2/volumes/data/files").json()["files"]}
    assert {f"in {name.translate(others)}" for name in names} <= listed


def test_the_buckets_server_stops_and_starts(fresh: SmallServer, api: httpx.Client, bucket: BucketServer) -> None:
    made = create(api, "data")
    box = fresh.create("box", volumes=[mounted("data")])
    bucket.client.put_object(Bucket=BUCKET, Key=key(made, "before"), Body=b"before\n")
    assert box.output("ls /data") == "before"
    bucket.stop()
    # What a sandbox closes now was acknowledged.
    box.output("for n in 1 2 3; do echo $n > /data/meanwhile-$n; done; sync /data/meanwhile-3")
    failed = box.bash("cat /data/before")
    assert failed.exit_code != 0 and "Input/output error" in failed.stderr, failed
    described = api.get("/api/v2/volumes/data").json()
    assert (described["state"], described["waiting_uploads"]) == ("unreachable", 3), described
    assert "the bucket shared can't be reached" in described["problem"] and "refused" in described["problem"], described
    refused = api.post("/api/v2/volumes", json={"name": "other", "bucket": "shared"})
    assert code(refused) == (502, "sandbox_failed") and "can't be reached" in refused.json()["message"], refused.text
    bucket.start()
    for n in (1, 2, 3):
        within(60, "the bucket has it", lambda n=n: bucket.has(key(made, f"meanwhile-{n}"), f"{n}\n".encode()))
    assert box.output("cat /data/before /data/meanwhile-2") == "before\n2"
    assert api.get("/api/v2/volumes/data").json()["state"] == "ready"


def test_nothing_is_lost_when_all_ends(fresh: SmallServer, api: httpx.Client, bucket: BucketServer) -> None:
    made = create(api, "data")
    box = fresh.create("box", volumes=[mounted("data")])
    box.output("ls /data")
    bucket.stop()
    box.output("echo kept > /data/file && sync /data/file")
    fresh.kill()
    for pid in clients(fresh):
        os.kill(pid, signal.SIGKILL)
    fresh.start()
    # The mount is replaced in a sandbox that runs on: the error is another than that of a client that has ended.
    within(40, "the sandbox has a mount that answers", lambda: "Input/output error" in (box.bash("cat /data/file").stderr or ""))
    assert api.get("/api/v2/volumes/data").json()["waiting_uploads"] == 1
    # It is uploaded without a sandbox and a call, also after another restart.
    assert box.delete().status_code == 200
    fresh.restart()
    assert api.get("/api/v2/volumes/data").json()["waiting_uploads"] == 1
    bucket.start()
    within(90, "the bucket has it", lambda: bucket.has(key(made, "file"), b"kept\n"))
    within(30, "the client has ended", lambda: clients(fresh) == {} and mounts(fresh) == [])


def test_a_client_that_dies_is_started_again(fresh: SmallServer, api: httpx.Client, bucket: BucketServer) -> None:
    create(api, "data")
    box = fresh.create("box", volumes=[mounted("data"), mounted("data", "/ro", read_only=True), mounted("data", "/sub", sub_path="s")])
    box.output("echo one > /data/file; echo two > /sub/file")
    (pid,) = clients(fresh)
    os.kill(pid, signal.SIGKILL)
    within(40, "it is mounted again", lambda: box.bash("cat /data/file /ro/file /sub/file").stdout == "one\none\ntwo\n")
    assert clients(fresh).keys() != {pid}
    refused = box.bash("echo x > /ro/new")
    assert refused.exit_code != 0 and "Read-only file system" in refused.stderr, refused
    assert box.output("echo more > /data/more; cat /ro/more; stat -c %u /data/more") == "more\n1000"


def test_a_killed_server_adopts_the_client(fresh: SmallServer, api: httpx.Client) -> None:
    create(api, "data")
    box = fresh.create("box", volumes=[mounted("data")])
    before = clients(fresh)
    fresh.kill()
    fresh.start()
    assert clients(fresh) == before and box.output("echo x > /data/file; cat /data/file") == "x"
    fresh.restart()
    assert clients(fresh) == before and box.output("cat /data/file") == "x"
    assert run(fresh, "pause", "box", "--kind", "disk").returncode == 0
    within(40, "a paused sandbox needs no client", lambda: clients(fresh) == {} and mounts(fresh) == [])
    assert box.output("cat /data/file") == "x"


def test_two_write_one_file(fresh: SmallServer, api: httpx.Client, bucket: BucketServer) -> None:
    made = create(api, "data")
    boxes = [fresh.create(f"box-{n}", volumes=[mounted("data")]) for n in range(2)]
    # Each replaces the file as a whole, by a rename.
    write = "for i in {1..10}; do dd if=/dev/zero of=/data/NUMBER bs=100k count=NUMBER 2>/dev/null; mv /data/NUMBER /data/file; done"
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda n: boxes[n].output(write.replace("NUMBER", str(n + 1))), range(2)))
    # And both append to one, as to a file of one file system.
    with ThreadPoolExecutor(2) as pool:
        append = "for i in {1..20}; do echo line NUMBER >> /data/lines; done"
        list(pool.map(lambda n: boxes[n].output(append.replace("NUMBER", str(n))), range(2)))
    within(30, "all is uploaded", lambda: api.get("/api/v2/volumes/data").json()["waiting_uploads"] == 0)
    assert len(bucket.read(key(made, "file"))) in (102_400, 204_800)
    assert sorted(bucket.keys(key(made, ""))) == [key(made, ""), key(made, "file"), key(made, "lines")]
    lines = bucket.read(key(made, "lines"))
    assert sorted(lines.decode().split("\n")[:-1]) == ["line 0"] * 20 + ["line 1"] * 20
    assert boxes[1].output("sha256sum < /data/lines") == boxes[0].output("sha256sum < /data/lines")


def test_files_by_api(fresh: SmallServer, api: httpx.Client, bucket: BucketServer) -> None:
    made = create(api, "data")
    path = "/api/v2/volumes/data/content?path=folder/file"
    assert code(api.put(path, content=b"x")) == (404, "not_found")
    stored = api.put(f"{path}&create_parents=true", content=b"first" * MIB)
    assert stored.status_code == 200 and stored.json()["size_bytes"] == 5 * MIB, stored.text
    assert api.put(path, content=b"second").status_code == 200
    within(30, "the bucket has it", lambda: bucket.has(key(made, "folder/file"), b"second"))
    assert api.get(path).content == b"second" and api.get(path, headers={"range": "bytes=-3"}).content == b"ond"
    assert [one["name"] for one in api.get("/api/v2/volumes/data/files?path=folder").json()["files"]] == ["file"]
    assert code(api.post("/api/v2/volumes/data/copy", json={"name": "copy"})) == (501, "unsupported")
    assert code(api.delete("/api/v2/volumes/data/content?path=folder")) == (409, "conflict")
    assert api.delete("/api/v2/volumes/data/content?path=folder&recursive=true").status_code == 200
    within(30, "the bucket has no file", lambda: not [one for one in bucket.keys(key(made, "")) if not one.endswith("/")])
    large = api.put("/api/v2/volumes/data/content?path=large", content=b"x" * (65 * MIB))
    assert code(large) == (507, "exhausted"), large.text


def test_what_waits_for_its_upload_is_bounded(fresh: SmallServer, api: httpx.Client, bucket: BucketServer) -> None:
    made = create(api, "data")
    box = fresh.create("box", volumes=[mounted("data")])
    for name in ("first", "second", "third"):
        # What is uploaded makes room.
        write = f"dd if=/dev/zero of=/data/{name} bs=1M count=40"
        within(30, "there is room", lambda write=write: box.bash(write).exit_code == 0)
        within(30, "the bucket has it", lambda name=name: bucket.size(key(made, name)) == 40 * MIB)
    failed = box.bash("dd if=/dev/zero of=/data/large bs=1M count=100")
    assert failed.exit_code != 0 and "Input/output error" in failed.stderr, failed
    box.output("rm /data/large")
    within(30, "there is room", lambda: box.bash("echo x > /data/after && cat /data/after").stdout == "x\n")
    assert box.output("stat -c %s /data/first") == str(40 * MIB)


def test_a_bucket_that_is_gone(fresh: SmallServer, api: httpx.Client, bucket: BucketServer) -> None:
    refused = api.post("/api/v2/volumes", json={"name": "other", "bucket": "gone"})
    assert code(refused) == (502, "sandbox_failed") and "no such bucket" in refused.json()["message"], refused.text
    unknown = api.post("/api/v2/volumes", json={"name": "other", "bucket": "s3://x"})
    assert code(unknown) == (400, "invalid_request") and "gone, shared" in unknown.json()["hint"], unknown.text
    assert [one["name"] for one in api.get("/api/v2/volumes").json()["volumes"]] == []
    made = create(api, "data")
    api.put("/api/v2/volumes/data/content?path=file", content=b"x").raise_for_status()
    within(30, "the bucket has it", lambda: bucket.has(key(made, "file"), b"x"))
    within(30, "it is unmounted", lambda: clients(fresh) == {})
    bucket.stop()
    kept = api.delete("/api/v2/volumes/data")
    assert code(kept) == (502, "sandbox_failed") and api.get("/api/v2/volumes/data").json()["state"] == "removing", kept.text
    bucket.start()
    assert api.delete("/api/v2/volumes/data").status_code == 200
    assert bucket.keys() == []


def test_without_a_client_creates_are_refused(fresh: SmallServer, api: httpx.Client, tmp_path: Path) -> None:
    create(api, "data")
    fresh.stop()
    args, old = fresh.args, tmp_path / "rclone"
    old.write_text("#!/bin/sh\necho rclone v1.60.1-DEV\n")
    old.chmod(0o755)
    fresh.args = tuple(str(old) if word == path_of_rclone() else word for word in args)
    try:
        fresh.start()
        refused = api.post("/api/v2/volumes", json={"name": "other", "bucket": "shared"})
        assert code(refused) == (501, "unsupported") and "1.60.1" in refused.json()["message"], refused.text
        assert "install rclone" in refused.json()["hint"]
        refused = api.post("/api/v2/sandboxes", json={"name": "x", "image": "tiny", "volumes": [mounted("data")]})
        assert code(refused) == (501, "unsupported"), refused.text
    finally:
        fresh.stop()
        fresh.args = args
        fresh.start()
    environment = {**os.environ, "ARENITE_RCLONE": path_of_rclone()}
    doctor = subprocess.run([*fresh.command_line()[:1], "doctor", "--json"], capture_output=True, text=True, env=environment)
    assert "volumes can be in buckets" in doctor.stdout, doctor.stdout


def test_the_command_line(fresh: SmallServer) -> None:
    made = run(fresh, "volume", "create", "data", "--bucket", "shared", "--size", "64MiB")
    assert (made.returncode, made.stdout, made.stderr) == (0, "data\n", ""), made
    listed = run(fresh, "volume", "ls").stdout
    assert "shared" in listed and "not enforced" not in listed, listed
    assert run(fresh, "volume", "rm", "data").returncode == 0


def test_a_removed_installation_keeps_the_objects(own_server: Callable[..., Server], bucket: BucketServer, tmp_path: Path) -> None:  # noqa: F811
    if bucket.process is None:
        bucket.start()
    declared = bucket.declare(tmp_path / "shared.toml")
    args = ("--default-image", "tiny", "--rclone", path_of_rclone(), "--bucket", f"shared={declared}")
    server = own_server(kind=SmallServer, args=args)
    server.start()
    tiny_image(server.in_pool())
    with server.api() as api:
        made = create(api, "data")
    box = server.create("box", volumes=[mounted("data")])
    box.output("echo kept > /data/file")
    within(30, "the bucket has it", lambda: bucket.has(key(made, "file"), b"kept\n"))
    before = clients(server)
    server.kill()
    removed = run(server, "reset", "--all", "--force", "--data-dir", str(server.data_dir))
    assert removed.returncode == 0 and "whose objects stay" in removed.stdout + removed.stderr, removed
    assert not server.data_dir.exists() and mounts(server) == [] and not any(is_running(pid) for pid in before)
    assert bucket.read(key(made, "file")) == b"kept\n"
    assert not list(Path("/sys/fs/cgroup").glob(f"*/arenite-*-bucket/s{made['id'][1:]}"))
    for left in bucket.keys():
        bucket.client.delete_object(Bucket=BUCKET, Key=left)
