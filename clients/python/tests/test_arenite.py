"""The client `arenite` against a server that refuses, breaks off, and comes back. `tests/operation/test_client_packages.py` has
the real server."""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import arenite
import httpx
import pytest
from arenite import _wire, models
from arenite.errors import error_class
from scripted_server import ScriptedServer, answer, events

PACKAGE = Path(__file__).resolve().parent.parent
NOW = "2026-01-01T00:00:00Z"
INFO = {
    "id": "sabcdefghijk", "name": "demo", "state": "running", "spec": {"image": "base"}, "isolation": [], "tier": "namespace", "origin": "api",
    "revision": 1, "created_at": NOW, "last_used_at": NOW, "state_since": NOW, "stages": [], "urls": {"path": "/sandbox/demo/", "host": "x"},
}


@pytest.fixture
def serve() -> Iterator[Callable[..., ScriptedServer]]:
    servers: list[ScriptedServer] = []

    def start(*answers: bytes) -> ScriptedServer:
        servers.append(ScriptedServer(*answers))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_wire, "backoff", lambda _: 0.01)
    for name in ("ARENITE_SERVER", "ARENITE_CA"):
        monkeypatch.delenv(name, raising=False)


#: Runs an action with a client of an address, in either of the two worlds. Iterators are read to their end.
Run = Callable[[str, Callable[[Any], Any]], Any]


def run_sync(url: str, action: Callable[[Any], Any]) -> Any:
    with arenite.Client(url, retries=2) as client:
        found = action(client)
        return list(found) if isinstance(found, Iterator) else found


def run_async(url: str, action: Callable[[Any], Any]) -> Any:
    async def main() -> Any:
        async with arenite.AsyncClient(url, retries=2) as client:
            found = action(client)
            if inspect.isawaitable(found):
                return await found
            return [one async for one in found] if hasattr(found, "__aiter__") else found

    return asyncio.run(main())


@pytest.fixture(params=[run_sync, run_async])
def run(request: pytest.FixtureRequest) -> Run:
    return request.param  # type: ignore[no-any-return]


def sandbox_of(client: Any) -> Any:
    kind = arenite.Sandbox if isinstance(client, arenite.Client) else arenite.AsyncSandbox
    return kind(client, models.SandboxInfo.model_validate(INFO))


def send(method: str, **arguments: Any) -> Callable[[Any], Any]:
    return lambda client: client.request(method, "/x", **arguments)


def test_both_clients_have_the_same_methods() -> None:
    for name in (name for name in arenite.__all__ if name.startswith("Async")):
        ours, other = getattr(arenite, name), getattr(arenite, name.removeprefix("Async"))
        names = {member.replace("aclose", "close") for member in dir(ours) if not member.startswith("_")}
        assert names == {member for member in dir(other) if not member.startswith("_")}, name
        for member in names - {"close"}:
            first, second = getattr(ours, member), getattr(other, member)
            if callable(first):
                assert list(inspect.signature(first).parameters) == list(inspect.signature(second).parameters), member


def test_generated_files_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, str(PACKAGE / "generate.py"), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


ERRORS = [
    (404, {"code": "not_found", "message": "no x", "hint": "list them"}, arenite.NotFound, "list them"),
    (
        404,
        {"type": "about:blank", "title": "Not found", "status": 404, "detail": "no x", "code": "not_found", "hint": "list"},
        arenite.NotFound,
        "list",
    ),
    (403, {"code": "quota_exceeded", "detail": "no x", "quota": "sandboxes"}, arenite.QuotaExceeded, None),
    (409, {"code": "already_exists", "message": "no x"}, arenite.AlreadyExists, None),
    (409, {"code": "a_newer_code", "message": "no x"}, arenite.Conflict, None),
    (404, {"success": False, "message": "no x", "data": None, "hint": "list them"}, arenite.NotFound, "list them"),
    (
        200,
        {"success": False, "message": "no x", "data": {"error_type": "permission_denied"}, "hint": None},
        arenite.Forbidden,
        None,
    ),
    (400, {"code": "400", "error": "no x"}, arenite.InvalidRequest, None),
    (504, {"error": {"code": "timeout", "message": "no x"}}, arenite.ServerTimedOut, None),
]


@pytest.mark.parametrize(("status", "body", "kind", "hint"), ERRORS)
def test_errors_of_every_format(
    run: Run, serve: Callable[..., ScriptedServer], status: int, body: Any, kind: type[arenite.APIError], hint: str | None
) -> None:
    server = serve(answer(status, body, x_request_id="r1"))
    with pytest.raises(kind, match="no x") as caught:
        run(server.url, send("POST"))
    assert type(caught.value) is kind
    assert (caught.value.hint, caught.value.request_id, caught.value.body) == (hint, "r1", body)


def test_malformed_fields_are_named(run: Run, serve: Callable[..., ScriptedServer]) -> None:
    body = {"success": False, "message": "bad", "data": None, "detail": [{"loc": ["body", "x"], "msg": "Field required"}]}
    with pytest.raises(arenite.InvalidRequest, match="bad; body.x: Field required"):
        run(serve(answer(422, body)).url, send("POST"))


def test_answers_that_are_not_json(run: Run, serve: Callable[..., ScriptedServer]) -> None:
    server = serve(b"HTTP/1.1 502 X\r\ncontent-length: 5\r\n\r\n<html")
    with pytest.raises(arenite.SandboxFailed, match="the server answered 502: <html"):
        run(server.url, send("POST"))
    server = serve(b"HTTP/1.1 200 X\r\ncontent-length: 5\r\ncontent-type: application/json\r\n\r\n<html")
    with pytest.raises(arenite.ConnectionFailed, match="not JSON"):
        run(server.url, send("GET"))


def test_every_code_of_the_server_has_a_class() -> None:
    codes = typing.get_args(typing.get_args(models.ErrorCode)[0])
    assert len(codes) > 10
    for code in codes:
        assert error_class(code, 500 if code == "internal" else 400) is not arenite.APIError


def test_a_wrong_key_is_refused_at_once(run: Run, serve: Callable[..., ScriptedServer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARENITE_API_KEY", "arn_wrong")
    server = serve(answer(401, {"code": "unauthorized", "message": "Unauthorized"}))
    with pytest.raises(arenite.Unauthorized):
        run(server.url, lambda client: client.info())
    assert [request.headers["x-api-key"] for request in server.requests] == ["arn_wrong"]


def test_a_server_that_is_gone(run: Run, serve: Callable[..., ScriptedServer]) -> None:
    server = serve(answer(200, {}))
    server.close()
    with pytest.raises(arenite.ConnectionFailed, match="no server answers at http://127.0.0.1.*ARENITE_SERVER") as caught:
        run(server.url, send("POST"))
    assert isinstance(caught.value.__cause__, httpx.ConnectError)


def test_a_slow_server(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_wire, "CREATE_TIMEOUT", 0.1)
    # The kernel accepts the connection, and nobody answers.
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(arenite.RequestTimedOut):
        run(f"http://127.0.0.1:{listener.getsockname()[1]}", lambda client: client.sandboxes.create())


CUT = answer(200, {"a": 1})[:-3]


@pytest.mark.parametrize("first", [answer(503), answer(502), answer(429), CUT, b""])
def test_reads_are_repeated(run: Run, serve: Callable[..., ScriptedServer], first: bytes) -> None:
    server = serve(first, answer(200, {"a": 1}))
    assert run(server.url, send("GET")) == {"a": 1}
    assert len(server.requests) == 2


@pytest.mark.parametrize("first", [answer(503), answer(429, retry_after="0"), CUT, b""])
def test_writes_are_sent_once(run: Run, serve: Callable[..., ScriptedServer], first: bytes) -> None:
    server = serve(first, answer(200, {}))
    with pytest.raises(arenite.AreniteError):
        run(server.url, send("POST", json={}))
    assert len(server.requests) == 1


def test_repetitions_have_an_end(run: Run, serve: Callable[..., ScriptedServer]) -> None:
    server = serve(answer(503, {"code": "internal", "message": "the store is away"}))
    with pytest.raises(arenite.ServerFailed, match="the store is away"):
        run(server.url, send("GET"))
    assert len(server.requests) == 3, "once, and two repetitions"


@pytest.mark.parametrize("first", [answer(503), answer(429, retry_after="0"), answer(201, INFO)[:-3], b""])
def test_a_create_is_repeated_with_its_key(run: Run, serve: Callable[..., ScriptedServer], first: bytes) -> None:
    server = serve(first, answer(201, INFO))
    sandbox = run(server.url, lambda client: client.sandboxes.create(image="base", labels={"a": "b"}))
    assert (sandbox.name, sandbox.id) == ("demo", "sabcdefghijk")
    keys = {request.headers["idempotency-key"] for request in server.requests}
    assert len(server.requests) == 2 and len(keys) == 1
    assert [json.loads(request.body) for request in server.requests] == [{"image": "base", "labels": {"a": "b"}}] * 2
    run(server.url, lambda client: client.sandboxes.create())
    assert server.requests[2].headers["idempotency-key"] not in keys, "another create has another key"


def test_retry_after_is_respected(run: Run, serve: Callable[..., ScriptedServer], monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("asyncio.sleep", note)
    monkeypatch.setattr("time.sleep", pauses.append)
    server = serve(answer(429, retry_after="7"), answer(200, {}))
    run(server.url, send("GET"))
    # Other threads of the tests sleep too, for milliseconds.
    assert [pause for pause in pauses if pause >= 1] == [7.0]
    server = serve(answer(429, {"code": "exhausted", "message": "slow down"}, retry_after="3600"))
    with pytest.raises(arenite.Exhausted) as caught:
        run(server.url, send("GET"))
    assert (caught.value.retry_after, len(server.requests)) == (3600.0, 1), "too long to wait for"
    assert _wire.seconds("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert _wire.seconds("soon") is None


STEP = {
    "v": 1, "step": 1, "tenant": "default", "sandbox_id": "sabcdefghijk", "sandbox_name": "demo", "dialect": "aio",
    "action": "x", "started_at": NOW, "request_id": "r", "bytes_in": 0, "bytes_out": 0,
}


def step(number: int) -> str:
    return f"event: step\nid: {number}\ndata: {json.dumps(STEP | {'step': number})}\n\n"


def follow(client: Any) -> Any:
    return client.trajectories.get("demo").steps(follow=True)


def test_a_broken_stream_continues(run: Run, serve: Callable[..., ScriptedServer]) -> None:
    stopping = events(step(2), "event: server_stopping\ndata: {}\n\n") + b"0\r\n\r\n"
    ended = events(": alive\n\n", step(3), "event: end\ndata: {}\n\n") + b"0\r\n\r\n"
    server = serve(events(step(1), step(2)[:20]), stopping, ended)
    assert [one.step for one in run(server.url, follow)] == [1, 2, 3]
    assert [request.headers.get("last-event-id") for request in server.requests] == [None, "1", "2"]


def test_a_stream_that_breaks_each_time_fails(run: Run, serve: Callable[..., ScriptedServer]) -> None:
    server = serve(events(step(1)), events())
    with pytest.raises(arenite.ConnectionFailed):
        run(server.url, follow)
    assert len(server.requests) == 3, "one that had a step, and two without"


def test_a_download_that_breaks_leaves_the_target(run: Run, serve: Callable[..., ScriptedServer], tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    server = serve(CUT, answer(200, {"a": 1}))
    with pytest.raises(arenite.ConnectionFailed):
        run(server.url, lambda client: sandbox_of(client).files.download("/a b", target))
    assert (target.read_text(), list(tmp_path.iterdir())) == ("old", [target])
    run(server.url, lambda client: sandbox_of(client).files.download("/a b", target))
    assert (target.read_text(), list(tmp_path.iterdir())) == ('{"a": 1}', [target])
    assert server.requests[0].line == "GET /sandbox/demo/v1/file/download?path=%2Fa+b HTTP/1.1"


GROUP = {"name": "a b", "created_at": NOW, "expires_at": NOW, "ending": False, "sandboxes": 0, "ttl_seconds": 60}


@pytest.mark.parametrize("first", [answer(503), CUT])
def test_several_are_created_at_once_and_once(run: Run, serve: Callable[..., ScriptedServer], first: bytes) -> None:
    refused = {"type": "x#exhausted", "title": "X", "status": 429, "detail": "full", "message": "full", "code": "exhausted", "index": 1}
    made = answer(207, {"requested": 2, "sandboxes": [INFO], "errors": [refused]})
    server = serve(first, made)
    batch = run(server.url, lambda client: client.sandboxes.create_many(2, at_least=1, image="base"))
    assert ([one.name for one in batch], len(batch), batch[0].id, batch.errors[0].code) == (["demo"], 1, INFO["id"], "exhausted")
    assert [json.loads(one.body) for one in server.requests] == [{"image": "base", "count": 2, "min": 1}] * 2
    assert len({one.headers["idempotency-key"] for one in server.requests}) == 1


def test_a_group_is_named_in_its_creates(run: Run, serve: Callable[..., ScriptedServer]) -> None:
    server = serve(answer(200, GROUP), answer(201, INFO))
    group = run(server.url, lambda client: client.groups.get("a b"))
    assert server.requests[0].line == "GET /api/v2/groups/a%20b HTTP/1.1"
    kind = arenite.Group if isinstance(group, arenite.Group) else arenite.AsyncGroup
    run(server.url, lambda client: kind(client, group.info).create(image="base", group="other"))
    assert json.loads(server.requests[1].body) == {"image": "base", "group": "a b"}


VOLUME = {
    "name": "v", "id": "v12345678901", "state": "ready", "size_bytes": 1 << 30, "size_enforced": True, "used_bytes": None,
    "labels": {}, "node": None, "created_at": NOW, "sandboxes": [],
}
ENTRY = {"name": "f", "kind": "file", "size_bytes": 5, "mode": "0644", "modified_at": NOW}


def test_files_of_a_volume_are_bytes_in_both_directions(run: Run, serve: Callable[..., ScriptedServer]) -> None:
    pages = [answer(200, {"files": [ENTRY], "next_cursor": "c"}), answer(200, {"files": [ENTRY], "next_cursor": None})]
    server = serve(answer(200, VOLUME), answer(200, ENTRY), *pages, answer(200, {**VOLUME, "name": "copy"}))
    volume = run(server.url, lambda client: client.volumes.get("v"))
    kind = arenite.Volume if isinstance(volume, arenite.Volume) else arenite.AsyncVolume
    written = run(server.url, lambda client: kind(client, volume.info).write("a b/f", "hello"))
    assert (written.size_bytes, server.requests[1].body) == (5, b"hello")
    assert server.requests[1].line == "PUT /api/v2/volumes/v/content?path=a+b%2Ff&create_parents=true HTTP/1.1"
    found = run(server.url, lambda client: kind(client, volume.info).files("a b"))
    assert [one.name for one in found] == ["f", "f"] and "cursor=c" in server.requests[3].line
    copy = run(server.url, lambda client: kind(client, volume.info).copy("copy", size_bytes=1 << 30))
    assert copy.name == "copy" and server.requests[4].line == "POST /api/v2/volumes/v/copy HTTP/1.1"
    assert json.loads(server.requests[4].body) == {"name": "copy", "size_bytes": 1 << 30}


SNAPSHOT = {
    "name": "s", "state": "d12345678901", "sandbox": "box", "image": "base", "tier": "namespace", "labels": {}, "note": None,
    "disk_bytes": 1, "memory_bytes": None, "created_at": NOW, "node": None, "nodes": [],
}


def test_snapshots_have_files_and_are_files(run: Run, serve: Callable[..., ScriptedServer], tmp_path: Path) -> None:
    page = answer(200, {"files": [ENTRY], "next_cursor": None})
    server = serve(page, answer(200, {"not": "text"}), answer(200, {"an": "archive"}), answer(201, SNAPSHOT))
    assert [one.name for one in run(server.url, lambda client: client.snapshots.files("s", "a b"))] == ["f"]
    assert run(server.url, lambda client: client.snapshots.read("s", "a b/f")) == '{"not": "text"}'
    assert server.requests[1].line == "GET /api/v2/snapshots/s/content?path=a+b%2Ff HTTP/1.1"
    file = tmp_path / "s.tar"
    run(server.url, lambda client: client.snapshots.export("s", file))
    assert json.loads(file.read_text()) == {"an": "archive"} and list(tmp_path.iterdir()) == [file]
    made = run(server.url, lambda client: client.snapshots.import_file(file, name="s"))
    assert (made.name, server.requests[3].body) == ("s", file.read_bytes())
    assert server.requests[3].line == "POST /api/v2/snapshots/import?name=s HTTP/1.1"


EVENT = {"id": "1-1", "type": "sandbox.died", "at": NOW, "sandbox": {"id": "s1", "name": "demo", "labels": {}}, "reason": "x"}


def test_events_are_read_to_their_end(run: Run, serve: Callable[..., ScriptedServer]) -> None:
    first = answer(200, {"events": [EVENT], "next_after": "1-1", "gap": True})
    server = serve(first, answer(200, {"events": [], "next_after": "1-1", "gap": False}))
    found = run(server.url, lambda client: client.events(types=["sandbox.died"], labels={"a": "b"}, sandboxes=["x", "y"]))
    assert [one.type for one in found] == ["gap", "sandbox.died"]
    assert [one.line.split()[1].partition("?")[2] for one in server.requests] == [
        "type=sandbox.died&sandbox=x&sandbox=y&label=a%3Db",
        "type=sandbox.died&sandbox=x&sandbox=y&label=a%3Db&after=1-1",
    ]


def test_a_stream_of_events_reports_gaps(run: Run, serve: Callable[..., ScriptedServer]) -> None:
    gap = 'event: gap\ndata: {"message": "missing"}\n\n'
    event = f"event: sandbox.died\nid: 1-1\ndata: {json.dumps(EVENT)}\n\n"
    server = serve(events(gap, ": alive\n\n", event) + b"0\r\n\r\n")
    found = run(server.url, lambda client: client.events(follow=True, after="1-0"))
    assert (found[0], found[1].sandbox.name, len(found)) == (arenite.EventGap(), "demo", 2)
    assert "after=1-0&follow=true" in server.requests[0].line


def test_webhooks(run: Run, serve: Callable[..., ScriptedServer]) -> None:
    hook = {"id": "w1", "url": "https://x", "types": [], "created_at": NOW}
    server = serve(answer(200, {"webhooks": [hook]}), answer(200, {"webhooks": [hook | {"id": "w2"}], "next_cursor": None}))
    assert [one.id for one in run(server.url, lambda client: client.webhooks.list())] == ["w1"]
    run(server.url, lambda client: client.webhooks.delete("w/1"))
    assert server.requests[1].line == "DELETE /api/v2/webhooks/w%2F1 HTTP/1.1"
    server = serve(b"", answer(201, hook | {"secret": "whsec_x"}))
    assert run(server.url, lambda client: client.webhooks.create("https://x")).secret == "whsec_x"
    assert len({request.headers["idempotency-key"] for request in server.requests}) == 1


def test_model_routes(run: Run, serve: Callable[..., ScriptedServer]) -> None:
    budget = {"tokens": None, "cost_usd": None}
    info = {"name": "main", "upstream": "https://x/v1", "dialect": "openai", "secret": None, "models": [], "prices": []}
    info |= {"budget": budget, "budget_each": budget, "requests_per_minute": None, "timeout_seconds": 600}
    info |= {"created_at": NOW, "changed_at": NOW}
    counts = ("calls", "estimated_calls", "prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd")
    details = info | {"usage": dict.fromkeys(counts, 0)}
    server = serve(answer(200, details), answer(200, {"models": [info], "next_cursor": None}), answer(200, {"name": "main"}))
    assert run(server.url, lambda client: client.models.set("main", "https://x/v1", models=["a-*"])).usage.calls == 0
    assert server.requests[0].line == "PUT /api/v2/models/main HTTP/1.1"
    assert [one.name for one in run(server.url, lambda client: client.models.list())] == ["main"]
    run(server.url, lambda client: client.models.delete("main"))
    assert server.requests[2].line == "DELETE /api/v2/models/main HTTP/1.1"


def test_lists_are_read_page_by_page(run: Run, serve: Callable[..., ScriptedServer]) -> None:
    pages = ({"sandboxes": [INFO | {"name": name}], "next_cursor": cursor} for name, cursor in (("a", "c/1"), ("b", None)))
    server = serve(*(answer(200, page) for page in pages))
    found = run(server.url, lambda client: client.sandboxes.list(state="running", limit=1))
    assert [sandbox.name for sandbox in found] == ["a", "b"]
    lines = [request.line.split()[1].partition("?")[2] for request in server.requests]
    assert lines == ["state=running&limit=1", "state=running&limit=1&cursor=c%2F1"]


def test_any_list_is_read_page_by_page(run: Run, serve: Callable[..., ScriptedServer]) -> None:
    pages = [{"groups": [{"name": name}], "next_cursor": cursor} for name, cursor in (("a", "c"), ("b", None))]
    one = {"bytes": 1, "ended": False, "first_at": NOW, "last_at": NOW, "sandbox_name": "x", "steps": 1}
    recorded = [{"trajectories": [one | {"trajectory": name}], "next_cursor": cursor} for name, cursor in (("s1", "d"), ("s2", None))]
    server = serve(*(answer(200, page) for page in (*pages, *recorded)))
    found = run(server.url, lambda client: client.pages("/api/v2/groups", "groups", {"limit": 1}))
    assert found == [{"name": "a"}, {"name": "b"}]
    summaries = run(server.url, lambda client: client.trajectories.list(sandbox="x"))
    assert [summary.trajectory for summary in summaries] == ["s1", "s2"]
    lines = [request.line.split()[1] for request in server.requests]
    assert lines[:2] == ["/api/v2/groups?limit=1", "/api/v2/groups?limit=1&cursor=c"]
    assert lines[2:] == ["/api/v1/trajectories?sandbox=x", "/api/v1/trajectories?sandbox=x&cursor=d"]


def test_names_are_one_segment(run: Run, serve: Callable[..., ScriptedServer]) -> None:
    server = serve(answer(404, {"code": "not_found", "message": "no"}))
    with pytest.raises(arenite.NotFound):
        run(server.url, lambda client: client.sandboxes.get("../../x?y=1 é"))
    assert server.requests[0].line == "GET /api/v2/sandboxes/..%2F..%2Fx%3Fy%3D1%20%C3%A9 HTTP/1.1"


def test_changes_name_what_they_change(run: Run, serve: Callable[..., ScriptedServer]) -> None:
    server = serve(*[answer(200, INFO | {"revision": 2})] * 4)
    for act, line, body in (
        (lambda sandbox: sandbox.extend(600), "POST /api/v2/sandboxes/demo/extend", {"seconds": 600}),
        (lambda sandbox: sandbox.set_timeout(900), "PATCH /api/v2/sandboxes/demo", {"expires_in_seconds": 900}),
        (lambda sandbox: sandbox.set_timeout(None), "PATCH /api/v2/sandboxes/demo", {"expires_in_seconds": None}),
        (lambda sandbox: sandbox.set_labels({"a": "1", "b": None}), "PATCH /api/v2/sandboxes/demo", {"labels": {"a": "1", "b": None}}),
    ):
        assert run(server.url, lambda client, act=act: act(sandbox_of(client))).revision == 2
        assert (server.requests[-1].line, json.loads(server.requests[-1].body)) == (f"{line} HTTP/1.1", body)


def test_fields_with_names_that_python_reserves() -> None:
    assert models.Step.model_fields["class_"].alias == "class"


def test_answers_of_a_newer_server(run: Run, serve: Callable[..., ScriptedServer]) -> None:
    server = serve(answer(200, INFO | {"state": "checkpointing", "attestation": {"name": "tpm"}}))
    sandbox = run(server.url, lambda client: client.sandboxes.get("demo"))
    assert (sandbox.info.state, sandbox.info.attestation) == ("checkpointing", {"name": "tpm"})


@pytest.mark.parametrize("address", ["127.0.0.1:8080", "ftp://x", "http://", "http://u@x", "http://x/?q", "http://a b"])
def test_addresses_that_can_not_work(address: str) -> None:
    for kind in (arenite.Client, arenite.AsyncClient):
        with pytest.raises(ValueError, match="invalid address"):
            kind(address)


def test_the_address_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with arenite.Client() as client:
        assert client.base_url == "http://127.0.0.1:8080"
    monkeypatch.setenv("ARENITE_SERVER", "http://box.example/prefix/")
    with arenite.Client() as client:
        sandbox = sandbox_of(client)
    assert sandbox.mcp_url == "http://box.example/prefix/sandbox/demo/mcp"
    assert sandbox.preview_url(3000) == "http://box.example/prefix/sandbox/demo/proxy/3000/"
