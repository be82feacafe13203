"""Trajectories in object storage: they are uploaded when they end, and read from there by servers that never had them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server, binary, free_port
from commands import run
from objects import Directory, Moto, moto
from operation.conftest import own_server  # noqa: F401
from small import SmallServer, events, tiny_image, within

FORMATS = ("jsonl", "agentflow-rollout", "agentflow-synthesis", "atif", "openai-messages", "sharegpt", "asciicast")
#: Of a body that is no text, and longer than a line of a log may be.
BODY = bytes(range(256)) * 400

Start = Callable[..., SmallServer]


@pytest.fixture(params=["directory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Directory | Moto]:
    if request.param == "directory":
        yield Directory(tmp_path / "store")
    else:
        with moto() as made:
            yield made


@pytest.fixture
def start(own_server: Callable[..., Server]) -> Iterator[Start]:  # noqa: F811
    made = []

    def begin(store: Directory | Moto, *args: str) -> SmallServer:
        server = own_server(kind=SmallServer, args=("--default-image", "tiny", "--trajectory-store", store.url, *args))
        server.environment = dict(store.environment)
        server.start()
        tiny_image(server.data_dir / "pool")
        made.append(server)
        return server

    yield begin
    for server in made:
        if server.process is None:
            server.start()
        server.delete_all_sandboxes()


def ended(server: SmallServer, name: str, calls: int = 3) -> str:
    """Records a trajectory, ends it, and returns its id."""
    box = server.create(name)
    for number in range(calls):
        assert box.output(f"echo call {number}") == f"call {number}"
    sent = box.http.post("/v1/file/upload", files={"file": ("data", BODY)}, data={"path": "/tmp/data"})
    assert sent.status_code == 200, sent.text
    assert box.http.get("/v1/file/download", params={"path": "/tmp/data"}).content == BODY
    identity = box.id
    assert box.delete().status_code == 200
    return identity


def listed(server: Server, **query: str) -> list[dict[str, Any]]:
    return httpx.get(f"{server.url}/api/v1/trajectories", params=query, timeout=60).raise_for_status().json()["trajectories"]


def read(server: Server, path: str) -> httpx.Response:
    return httpx.get(f"{server.url}/api/v1/trajectories/{path}", timeout=60)


def warnings(server: Server) -> str:
    return str(httpx.get(f"{server.url}/api/v2/info", timeout=30).raise_for_status().json()["warnings"])


def is_archived(server: Server, identity: str) -> bool:
    return [one["archived"] for one in listed(server, sandbox=identity)] == [True]


def test_a_server_reads_what_another_one_recorded(store: Directory | Moto, start: Start) -> None:
    first = start(store)
    identity = ended(first, "box")
    live = first.create("live")
    live.output("true")
    within(30, "it is archived", lambda: is_archived(first, identity))
    assert [one["archived"] for one in listed(first)] == [False, True]
    assert [len(store.names(folder)) for folder in ("index", "logs", "bodies")] == [1, 1, 2 if BODY else 0], store.names("bodies")
    paths = [f"{identity}/export?format={format}&origin=all" for format in FORMATS]
    paths += [identity, f"{identity}?format=jsonl&bodies=inline", f"{identity}/sessions", f"{identity}/verify", f"{identity}/steps/2/arguments"]
    recorded = {path: read(first, path) for path in paths}
    assert {answer.status_code for answer in recorded.values()} == {200}, recorded
    assert recorded[f"{identity}/verify"].json()["problems"] == []
    digests = set(re.findall(r'"blake3":"([0-9a-f]{64})"', recorded[identity].text))
    assert digests

    second = start(store)
    assert [one["trajectory"] for one in listed(second)] == [identity]
    assert listed(second) == [one for one in listed(first) if one["trajectory"] == identity]
    assert listed(second, sandbox="box") and not listed(second, worker="nobody")
    for path, answer in recorded.items():
        again = read(second, path)
        assert (again.status_code, again.content) == (200, answer.content), path
    for digest in digests:
        assert read(second, f"{identity}/blobs/{digest}").content == read(first, f"{identity}/blobs/{digest}").content
    assert read(second, f"{identity}/blobs/{'0' * 64}").status_code == 404
    assert read(second, "sabcdefghijk").status_code == 404
    with httpx.stream("GET", f"{second.url}/api/v1/trajectories/{identity}", params={"follow": "true"}, timeout=30) as stream:
        names = [name for name, _ in events(stream)]
    assert names[-1] == "end" and names.count("step") == len(recorded[identity].json()["steps"])
    shown = run(second, "trajectory", "show", "box")
    assert shown.returncode == 0 and "call 2" in shown.stdout, shown
    assert identity in run(second, "trajectory", "ls").stdout
    assert "all as written" in run(second, "trajectory", "verify", "--all").stdout
    assert httpx.get(f"{second.url}/trajectory/{identity}", timeout=30).status_code == 200


def test_pages_have_local_and_archived_trajectories_once(store: Directory | Moto, start: Start) -> None:
    first = start(store)
    made = [ended(first, f"box-{number}", calls=1) for number in range(7)]
    within(60, "all are archived", lambda: all(one["archived"] for one in listed(first)))
    second = start(store)
    made += [ended(second, f"late-{number}", calls=1) for number in range(2)]
    made.append(second.create("live").id)
    seen: list[str] = []
    cursor = None
    while cursor != "":
        query = {"limit": "3", **({"cursor": cursor} if cursor else {})}
        page = httpx.get(f"{second.url}/api/v1/trajectories", params=query, timeout=60).raise_for_status().json()
        assert len(page["trajectories"]) <= 3 and "warnings" not in page
        seen += [one["trajectory"] for one in page["trajectories"]]
        cursor = page["next_cursor"] or ""
    assert seen == made[::-1]


def test_local_copies_are_removed_when_they_are_archived(store: Directory | Moto, start: Start) -> None:
    server = start(store, "--trajectory-local-days", "0")
    identity = ended(server, "box")
    live = server.create("live")
    live.output("true")
    within(30, "it is archived", lambda: is_archived(server, identity))
    logs = server.data_dir / "trajectories/logs/default"
    exported = read(server, f"{identity}/export").content
    # A start looks for what can be removed, and so does the server every five minutes.
    server.restart()
    within(30, "it is removed here", lambda: not any((logs / f"{identity}.{kind}").exists() for kind in ("jsonl", "archived")))
    assert (logs / f"{live.id}.jsonl").exists()
    assert [one["trajectory"] for one in listed(server)] == [live.id, identity]
    assert read(server, f"{identity}/export").content == exported


def test_an_upload_is_repeated_until_it_is_done(start: Start, tmp_path: Path) -> None:
    directory = Directory(tmp_path / "store")
    directory.path.rmdir()
    server = start(directory)
    within(30, "it says what is wrong", lambda: "file://" in warnings(server))
    ready = httpx.get(f"{server.url}/ready", timeout=10).json()
    assert ready["status"] == "ready" and ready["warnings"] == ["trajectories can't be archived now"], ready
    identity = ended(server, "box")
    assert read(server, identity).status_code == 200
    page = httpx.get(f"{server.url}/api/v1/trajectories", timeout=30).json()
    assert [one["trajectory"] for one in page["trajectories"]] == [identity] and page["warnings"], page
    server.kill()
    server.start()
    assert not directory.path.exists()
    directory.path.mkdir()
    within(60, "it is archived", lambda: is_archived(server, identity))
    assert warnings(server) == "[]" and "warnings" not in httpx.get(f"{server.url}/ready", timeout=10).json()
    metrics = httpx.get(f"{server.url}/metrics", timeout=10).text
    assert "arenite_trajectory_archived_total 1" in metrics and "arenite_trajectory_archive_waiting 0" in metrics


def test_a_bucket_that_is_away_holds_nothing_up(start: Start) -> None:
    port = free_port()
    away = Moto(port)
    server = start(away)
    identity = ended(server, "box")
    within(60, "it says what is wrong", lambda: "s3://trajectories/of/tests" in warnings(server))
    assert "AWS" not in warnings(server)
    refused = read(server, "sabcdefghijk")
    assert refused.status_code == 503 and refused.headers["retry-after"], refused.text
    with moto(port) as there:
        within(120, "it is archived", lambda: is_archived(server, identity))
        assert len(there.names("index")) == 1


def test_a_long_trajectory_is_sent_in_parts(start: Start) -> None:
    with moto() as bucket:
        server = start(bucket)
        box = server.create("box")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: box.output("printf %07000d 7"), range(800)))
        identity = box.id
        box.delete()
        [log] = list((server.data_dir / "trajectories/logs/default").glob("*.jsonl"))
        assert log.stat().st_size > 9 << 20, "it is sent in one part"
        within(60, "it is archived", lambda: is_archived(server, identity))
        second = start(bucket)
        assert read(second, f"{identity}/verify").json() == read(server, f"{identity}/verify").json()
        last = read(second, f"{identity}?after=690").json()["steps"]
        assert len(last) > 10 and last == read(server, f"{identity}?after=690").json()["steps"]


def test_a_damaged_object_is_named(start: Start, tmp_path: Path) -> None:
    directory = Directory(tmp_path / "store")
    identity = ended(first := start(directory), "box")
    within(30, "it is archived", lambda: is_archived(first, identity))
    second = start(directory)
    [log] = [directory.path / name for name in directory.names("logs")]
    whole = log.read_bytes()
    for damaged, said in ((whole[:-1], "bytes"), (whole[:-2] + b"!\n", "BLAKE3")):
        log.write_bytes(damaged)
        refused = read(second, identity)
        assert refused.status_code == 500 and log.name in refused.text and said in refused.text, refused.text
    log.write_bytes(whole)
    assert read(second, identity).status_code == 200
    body = directory.path / directory.names("bodies")[0]
    body.write_bytes(b"changed")
    problems = read(second, f"{identity}/verify").json()["problems"]
    assert [body.name in problem["what"] for problem in problems] == [True], problems
    assert read(second, f"{identity}/blobs/{body.name}").status_code == 500
    [entry] = [directory.path / name for name in directory.names("index")]
    entry.unlink()
    assert read(second, identity).status_code == 404


@pytest.mark.parametrize(
    ("args", "environment", "said"),
    [
        (("--trajectory-store", "http://bucket"), {}, "s3://BUCKET/PREFIX"),
        (("--trajectory-store", "s3://key:secret@bucket"), {}, "credentials are in the environment"),
        (("--trajectory-store", "file://relative"), {}, "whole path"),
        (("--trajectory-store", "az://container"), {}, "AZURE_STORAGE_ACCOUNT_NAME"),
        (("--trajectory-store", "s3://bucket"), {"AWS_ACCESS_KEY_ID": "test"}, "AWS_SECRET_ACCESS_KEY"),
        (("--trajectory-local-days", "3"), {}, "trajectory_store has to be set"),
    ],
)
def test_a_wrong_store_is_refused_at_the_start(
    start: Start, own_server: Callable[..., Server], args: tuple[str, ...], environment: dict[str, str], said: str  # noqa: F811
) -> None:
    refused = run(own_server(), "serve", "--validate", *args) if not environment else _validate(environment, *args)
    assert refused.returncode != 0 and said in refused.stderr and "secret@" not in refused.stderr, refused.stderr


def _validate(environment: dict[str, str], *args: str) -> Any:
    import os
    import subprocess

    command = [str(binary()), "serve", "--validate", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | environment, check=False)


def test_an_entry_of_another_tenant_is_not_listed(start: Start, tmp_path: Path) -> None:
    directory = Directory(tmp_path / "store")
    identity = ended(server := start(directory), "box")
    within(30, "it is archived", lambda: is_archived(server, identity))
    [entry] = [directory.path / name for name in directory.names("index")]
    assert json.loads(entry.read_text())["tenant"] == "default"
    entry.write_text(entry.read_text().replace('"tenant":"default"', '"tenant":"other"'))
    second = start(directory)
    assert listed(second) == [] and read(second, identity).status_code == 404
