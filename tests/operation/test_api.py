"""The conventions of API v2, on all routes of its document: refusals are problems, lists have pages, filters select, answers say
how long they took."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from arenite_server import Server
from commands import run
from small import tiny_image
from tenant import Tenant, TenantsServer
from workers import Worker

OTHERS = "agent-sandbox"
#: Lists that are numbered logs or measurements, and have no cursor.
LOGS = {"list_events", "list_sandbox_steps", "list_steps", "list_usage"}
#: Lists of which this server has entries without help.
FEW = {"list_corpora": 0, "list_nodes": 0, "list_quarantine": 0, "list_images": 1, "list_pulls": 0, "list_templates": 2, "list_network_records": 0}
SANDBOXES = {
    "a-1": {"labels": {"team": "red", "note": "x=y"}, "client_tag": "mine"},
    "a-2": {"labels": {"team": "blue"}, "group": "g-0"},
    "b-1": {"labels": {"team": "red"}, "template": "default"},
}

Operation = tuple[str, str, dict[str, Any]]


@pytest.fixture(scope="module")
def served(module_server: Callable[..., Server]) -> TenantsServer:
    server = module_server(args=("--default-image", "tiny", "--tenants", "--webhook-allow", "127.0.0.0/8"))
    server.start()
    tiny_image(server.data_dir / "pool")
    return TenantsServer(server)


@pytest.fixture(scope="module")
def operator(served: TenantsServer) -> Iterator[Tenant]:
    """With several entries in every list."""
    operator = served.operator
    for number in range(3):
        operator.json("POST", "/api/v2/groups", json={"name": f"g-{number}", "ttl_seconds": 3600})
        operator.json("POST", "/api/v2/tenants", json={"name": f"t-{number}"})
        operator.new_key("read")
        operator.json("PUT", f"/api/v2/registries/r-{number}.example", json={"user": "u", "password": "p"})
        operator.json("PUT", f"/api/v2/secrets/s-{number}", json={"value": "value-of-it"})
        operator.json("PUT", f"/api/v2/models/m-{number}", json={"upstream": "https://api.example.com/v1"})
        operator.json("POST", "/api/v2/volumes", json={"name": f"v-{number}", "size_bytes": 16 << 20})
        operator.json("PUT", f"/api/v2/volumes/v-0/content?path=f-{number}", content=b"")
        operator.json("POST", "/api/v2/webhooks", json={"url": "http://127.0.0.1:9/", "types": ["sandbox.created"]})
    for name, more in SANDBOXES.items():
        operator.json("POST", "/api/v2/sandboxes", json={"name": name, **more})
    for number in range(2):
        operator.json("POST", "/api/v2/sandboxes/a-1/checkpoints")
        operator.json("POST", "/api/v2/snapshots", json={"name": f"s-{number}", "sandbox": "a-1"})
    operator.json("POST", "/api/v2/sandboxes/a-2/pause")
    workers = []
    for name in ("w-1", "w-2"):
        workers.append(Worker(served.url, name))
        workers[-1].http.headers.update(operator.headers)
        for _ in range(2):
            workers[-1].create("bash")
            workers[-1].ok("bash:run", command="true")
            workers[-1].post("session/destroy", resource_type="bash")
        workers[-1].create("bash")
    yield operator
    for worker in workers:
        worker.leave()
    for name in SANDBOXES:
        operator.json("DELETE", f"/api/v2/sandboxes/{name}")


@pytest.fixture(scope="module")
def operations(served: TenantsServer) -> list[Operation]:
    document = served.operator.json("GET", "/api/v2/openapi.json")
    found = [(method.upper(), path, one) for path, item in document["paths"].items() for method, one in item.items()]
    # Signing in and metrics are for browsers and other programs.
    return [operation for operation in found if OTHERS not in operation[2]["tags"] and operation[1].startswith("/api/")]


def parameters(operation: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one["schema"] for one in operation["parameters"] if one["in"] == "query"}


def filled(path: str, **values: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda name: values.get(name[1], "nothing"), path)


def check_problem(answer: httpx.Response, status: int | None = None) -> dict[str, Any]:
    where = f"{answer.request.method} {answer.request.url}: {answer.status_code} {answer.text}"
    assert status is None or answer.status_code == status, where
    assert answer.headers["content-type"] == "application/problem+json", where
    problem = answer.json()
    assert problem["status"] == answer.status_code and problem["detail"] == problem["message"] and problem["title"], where
    assert problem["type"] == f"/api/v2/docs/errors#{problem['code']}", where
    assert problem["instance"].startswith("/api/"), where
    assert "total;dur=" in answer.headers["server-timing"], where
    return problem


def test_every_refusal_is_a_problem(served: TenantsServer, operator: Tenant, operations: list[Operation]) -> None:
    codes = set()
    reader = httpx.Client(base_url=served.url, headers={"x-api-key": operator.new_key("read")["key"]}, timeout=60)
    assert len(operations) > 50
    for method, path, operation in operations:
        url = filled(path)
        codes.add(check_problem(httpx.request(method, f"{served.url}{url}", timeout=60), 401)["code"])
        unknown = check_problem(operator.http.request(method, url, params={"nonsense": "1"}), 400)
        names = parameters(operation)
        assert "nonsense" in unknown["detail"] and all(name in unknown["hint"] for name in names), unknown
        for name, schema in names.items():
            if schema["type"] in ("integer", "boolean") or schema.get("format") == "date-time" or "enum" in schema:
                refused = check_problem(operator.http.request(method, url, params={name: "nonsense"}), 400)
                assert name in refused["detail"], refused
        if method != "GET":
            codes.add(check_problem(reader.request(method, url), None)["code"])
        if "{" in path:
            missing = operator.http.request(method, url, json={} if method in ("POST", "PATCH", "PUT") else None)
            codes.add(check_problem(missing)["code"])
        codes.add(check_problem(operator.http.request("TRACE", url), 405)["code"])
    taken = check_problem(operator.http.post("/api/v2/sandboxes", json={"name": "a-1"}), 409)
    codes.add(taken["code"])
    assert {"unauthorized", "invalid_request", "forbidden", "not_found", "already_exists"} <= codes, codes
    page = httpx.get(f"{served.url}/api/v2/docs/errors", headers=operator.headers)
    assert page.status_code == 200 and all(f'id="{code}"' in page.text for code in codes)
    for path in ("/api/v2/nothing", "/api/v2/sandboxes/a%2fb", "/api/v1/trajectories/x/y"):
        check_problem(operator.http.get(path))


def test_errors_of_a_batch_are_problems(operator: Tenant) -> None:
    """Two of the names are taken."""
    answer = operator.http.post("/api/v2/sandboxes", json={"name": "a", "count": 3, "min": 1})
    assert answer.status_code == 207, answer.text
    made = answer.json()
    for sandbox in made["sandboxes"]:
        operator.json("DELETE", f"/api/v2/sandboxes/{sandbox['name']}")
    assert [one["index"] for one in made["errors"]] == [1, 2]
    for error in made["errors"]:
        assert (error["type"], error["status"]) == ("/api/v2/docs/errors#already_exists", 409) and "instance" not in error, error
        assert error["detail"] == error["message"] and error["title"] and "retry_after_seconds" in error, error


def test_every_list_is_read_in_pages(operator: Tenant, operations: list[Operation]) -> None:
    time.sleep(1)  # Nothing changes meanwhile but the audit log, whose newest rows come first.
    lists = [one for one in operations if one[0] == "GET" and "cursor" in parameters(one[2])]
    named = {one[2]["operationId"] for one in operations if one[2]["operationId"].startswith("list_")}
    assert named - LOGS == {one[2]["operationId"] for one in lists}
    trajectory = operator.json("GET", "/api/v1/trajectories?worker=w-1")["trajectories"][0]["trajectory"]
    hook = operator.json("GET", "/api/v2/webhooks")["webhooks"][0]["id"]
    for text in ("first", "second"):
        operator.json("POST", f"/api/v1/trajectories/{trajectory}/annotations", json={"text": text})
    for _, path, operation in lists:
        name = "v-0" if "/volumes/" in path else "s-0" if "/snapshots/" in path else "a-1"
        url = filled(path, name=name, id=trajectory if "trajectories" in path else hook)
        name = operation["operationId"]
        whole = operator.json("GET", url, params={"limit": 1000})
        assert whole["next_cursor"] is None, name
        [entries] = [value for value in whole.values() if isinstance(value, list)]
        assert len(entries) >= FEW.get(name, 2), name
        field = next(key for key, value in whole.items() if value is entries)
        read, cursor = [], None
        while True:
            page = operator.json("GET", url, params={"limit": 1} | ({} if cursor is None else {"cursor": cursor}))
            assert len(page[field]) <= 1, name
            read += page[field]
            cursor = page["next_cursor"]
            if cursor is None:
                break
            assert len(read) <= len(entries), name
        assert [identity(one) for one in read] == [identity(one) for one in entries], name
        for bad in ("x", "", (cursor or "A") + "A", "A" * 2000):
            check_problem(operator.http.get(url, params={"cursor": bad}), 400)
        for bad in ("0", "1001", "-1", "x"):
            check_problem(operator.http.get(url, params={"limit": bad}), 400)
        first = operator.json("GET", url, params={"limit": 1})
        if first["next_cursor"] and name != "list_sandboxes":
            check_problem(operator.http.get("/api/v2/sandboxes", params={"cursor": first["next_cursor"]}), 400)


def identity(entry: Any) -> Any:
    """An entry without what changes by itself."""
    if not isinstance(entry, dict):
        return entry
    return {key: entry.get(key) for key in ("id", "name", "number", "time", "trajectory", "worker_id", "event", "object", "digest", "host")}


def test_pages_are_complete_while_sandboxes_come_and_go(operator: Tenant) -> None:
    kept = [f"kept-{number:02}" for number in range(12)]
    for number, name in enumerate(kept):
        operator.json("POST", "/api/v2/sandboxes", json={"name": name, "labels": {"paged": "1"}})
        operator.json("POST", "/api/v2/sandboxes", json={"name": f"gone-{number}", "labels": {"paged": "1"}})
    for order in ("oldest", "newest"):
        read, cursor = [], None
        with ThreadPoolExecutor(1) as others:
            for number in range(12):
                params = {"limit": 5, "label": "paged", "order": order} | ({} if cursor is None else {"cursor": cursor})
                page = operator.json("GET", "/api/v2/sandboxes", params=params)
                read += [one["name"] for one in page["sandboxes"]]
                cursor = page["next_cursor"]
                if cursor is None:
                    break
                if order == "oldest":
                    others.submit(operator.json, "DELETE", f"/api/v2/sandboxes/gone-{number}").result()
                made = {"name": f"new-{order}-{number}", "labels": {"paged": "1"}}
                others.submit(operator.json, "POST", "/api/v2/sandboxes", json=made).result()
        seen = [name for name in read if name in kept]
        assert seen == (kept if order == "oldest" else kept[::-1]), read
        assert len(read) == len(set(read)), read
    for one in operator.json("GET", "/api/v2/sandboxes?label=paged")["sandboxes"]:
        operator.json("DELETE", f"/api/v2/sandboxes/{one['name']}")


def test_every_filter_selects(served: TenantsServer, operator: Tenant, operations: list[Operation]) -> None:
    middle = operator.json("GET", "/api/v2/sandboxes/a-2")
    at = middle["created_at"]
    ours = set(SANDBOXES)
    operator.json("POST", "/api/v2/tenants", json={"name": "empty"})
    expected: dict[str, list[tuple[Any, set[str]]]] = {
        "state": [("paused", {"a-2"}), (["running", "paused"], ours), ("failed", set())],
        "label": [("team", ours), ("team=red", {"a-1", "b-1"}), (["team=red", "note=x=y"], {"a-1"}), ("note=x", set())],
        "template": [("default", ours), ("other", set())],
        "image": [("tiny", ours), ("base", set())],
        "group": [("g-0", {"a-2"}), ("g-1", set())],
        "client_tag": [("mine", {"a-1"})],
        "node": [("red", set())],
        "parent": [(middle["id"], set())],
        "tenant": [("default", ours), ("empty", set())],
        "name_prefix": [("a-", {"a-1", "a-2"}), ("A", set())],
        "search": [("A- team=RED", {"a-1"}), ("tiny", ours), ("tiny nothing", set())],
        "created_after": [(at, {"b-1"})],
        "created_before": [(at, {"a-1"})],
        "order": [("newest", ours), ("oldest", ours)],
    }
    [listed] = [one for _, _, one in operations if one["operationId"] == "list_sandboxes"]
    assert set(parameters(listed)) - {"follow", "limit", "cursor"} == set(expected)
    for name, cases in expected.items():
        for value, names in cases:
            found = operator.json("GET", "/api/v2/sandboxes", params={name: value})["sandboxes"]
            assert {one["name"] for one in found} & ours == names, (name, value)
    for bad in ({"image": "NO"}, {"group": "N o"}, {"parent": "a-2"}, {"follow": "true", "state": "running"}):
        check_problem(operator.http.get("/api/v2/sandboxes", params=bad), 400)

    def names(*words: str) -> list[str]:
        command = run(served.server, "ls", "-q", "--api-key", operator.key, *words)
        assert command.returncode == 0, command.stderr
        return command.stdout.split()

    assert names("--state", "paused", "--label", "team=blue") == ["a-2"]
    assert names("--label", "team=red", "--newest") == ["b-1", "a-1"]
    [ended] = [one for one in operator.json("GET", "/api/v1/trajectories", params={"sandbox": "a-1"})["trajectories"]]
    assert ended["sandbox_name"] == "a-1"
    assert operator.json("GET", "/api/v1/trajectories", params={"sandbox": ended["trajectory"]})["trajectories"] == [ended]
    for query, is_there in (
        ({"since": ended["first_at"]}, True),
        ({"until": ended["first_at"]}, True),
        ({"since": "2999-01-01T00:00:00Z"}, False),
        ({"until": "2001-01-01T00:00:00Z"}, False),
    ):
        found = operator.json("GET", "/api/v1/trajectories", params=query)["trajectories"]
        assert (ended["trajectory"] in [one["trajectory"] for one in found]) == is_there, query


def stages(answer: httpx.Response) -> dict[str, float]:
    parts = [part.split(";dur=") for part in answer.headers["server-timing"].split(", ")]
    return {name: float(took) for name, took in parts}


def test_every_answer_says_how_long_it_took(operator: Tenant, operations: list[Operation]) -> None:
    for method, path, operation in operations:
        if method != "GET" or "{" in path:
            continue
        with operator.http.stream("GET", path) as answer:
            assert answer.status_code == 200, (path, answer.status_code)
            found = stages(answer)
        assert list(found)[:3] == ["auth", "admit", "handler"] and list(found)[-1] == "total", (path, found)
        parts = found["auth"] + found["admit"] + found["handler"]
        assert found.get("store", 0) <= found["handler"] and parts <= found["total"] + 0.01, (path, found)
    made = operator.http.post("/api/v2/sandboxes", json={"name": "timed"})
    assert made.status_code == 201 and 0 < stages(made)["store"] < stages(made)["handler"], made.headers
    # Also in other formats.
    removed = operator.http.delete("/api/v1/sandbox/timed")
    assert removed.status_code == 200 and {"auth", "handler", "store"} <= set(stages(removed)), removed.headers
    assert "store" in stages(operator.http.get("/api/v2/audit"))
    assert "store" not in stages(operator.http.get("/api/v2/sandboxes"))
