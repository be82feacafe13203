"""Every recorded exchange with AgentFlow's server, said again to ours. What differs on purpose is listed here with its reason."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server

HERE = Path(__file__).resolve().parent
EXCHANGES = [json.loads(line) for line in (HERE / "wire.jsonl").read_text().splitlines()]

#: Exchanges whose answer is another one on purpose: why, and what of the answer has to be so instead.
ON_PURPOSE: dict[str, tuple[str, int, dict[str, Any]]] = {
    "tools": ("hidden tools are hidden", 200, {"count": 17}),
    "get_tools": ("hidden tools are hidden", 200, {"count": 17}),
    "create_badinit_again": ("what failed is tried again", 500, {"code": 4007}),
    "create_notjson": ("a body that can't be read is the client's mistake, and said in JSON", 400, {"code": 4002}),
    "x_list_notobj": ("the same", 400, {"code": 4002}),
    "x_list_empty_body": ("the same", 400, {"code": 4002}),
    "batch_par_race": ("actions of a parallel batch don't share a session that one of them ends", 200, {"code": 0}),
    "root": ("the console is there", 200, {}),
    "plain_execute_path_404": ("the documents' paths are served too", 400, {"code": 4002}),
    "cors_preflight": ("origins have to be configured", 403, {"code": "forbidden"}),
    "openapi": ("written by hand", 200, {"openapi": "3.1.0", "info": {"title": "Sandbox HTTP Service"}}),
    "x_docs": ("another page", 200, {}),
    "x_redoc": ("the same page", 200, {}),
    "x_exec_spoof_session": ("parameters can't forge a session", 200, {"code": 0, "data": {"n": 1}}),
    "x_warmup_str": ("a single name is that name, and not its letters", 200, {"status": "success", "results": {"demo": True}}),
    "x_batch_item_params_null": ("said without Python's words", 500, {"code": 5009}),
    "x_batch_parallel_stop": ("null in the place of parameters used up no session before", 207, {"code": 5010, "message": "2 out of 3 actions failed"}),
    "x_trailing_slash": ("served, and not redirected", 400, {"code": 4002, "message": "Tool not found: nope"}),
}

TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?$")
SESSION = re.compile(r"_[0-9a-f]{8}$")
#: A session that failed was made once more here than there.
FAILED = re.compile(r"^badinit_(w1|cw1)_\d{3}")
#: What our answers say beyond the original's, by where it stands.
BEYOND = {"version", "sandboxes", "engine", "parameters", "session_status", "error_type"}


def masked(value: Any, key: str = "") -> Any:
    match value:
        case dict():
            return {name: masked(part, name) for name, part in value.items()}
        case list():
            return [masked(part) for part in value]
        case str() if key == "trace_id" and value != "trace-param":
            return "<trace>"
        case str() if TIME.match(value):
            return "<time>"
        case str() if key == "ctx":
            return value
        case str():
            return FAILED.sub(r"badinit_\1_N", SESSION.sub("_<hex>", value))
        case int() | float() if key == "execution_time_ms":
            return "<ms>"
    return value


def difference(wanted: Any, got: Any, at: str = "") -> list[str]:
    """Where two answers differ. What only the original can say (its own tracebacks) has to be absent from ours."""
    if isinstance(wanted, dict) and isinstance(got, dict):
        if "traceback" in wanted:
            return [f"{at}: it tells a traceback"] if "traceback" in got else []
        found = []
        for name in sorted(wanted.keys() | got.keys()):
            where = f"{at}.{name}"
            if name not in got:
                found.append(f"{where} is missing")
            elif name not in wanted:
                # A tool that makes its envelope itself got no trace there.
                if name not in BEYOND and not where.endswith("meta.trace_id"):
                    found.append(f"{where} is new: {got[name]!r}")
            else:
                found += difference(wanted[name], got[name], where)
        return found
    if isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        return [d for at_item, (w, g) in enumerate(zip(wanted, got, strict=True)) for d in difference(w, g, f"{at}[{at_item}]")]
    if isinstance(wanted, str) and "Traceback" in wanted and isinstance(got, str):
        return [] if wanted.startswith(got) and "Traceback" not in got else [f"{at}: {got!r}"]
    return [] if wanted == got else [f"{at}: {wanted!r} there, {got!r} here"]


def holds(wanted: Any, got: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(got, dict) and all(name in got and holds(part, got[name]) for name, part in wanted.items())
    return wanted == got


@pytest.fixture
def demo(configured: Callable[[dict[str, Any]], Server], tmp_path: Path) -> tuple[Server, Path]:
    """A server with the backends and APIs that the exchanges were recorded with, and AgentFlow's own file for it."""
    database = tmp_path / "t.db"
    with sqlite3.connect(database) as made:
        made.execute("CREATE TABLE a (x INT, y TEXT)")
        made.execute("INSERT INTO a VALUES (1, 'b')")
    configuration: dict[str, Any] = {
        "server": {"url": "http://127.0.0.1:18890", "port": 18890, "session_ttl": 300},
        "resources": {
            "demo": {
                "enabled": True,
                "description": "demo stateful",
                "backend_class": "demo_backends.DemoBackend",
                "config": {"greeting": "hi", "nested": {"a": 1}},
            },
            "badinit": {"enabled": True, "backend_class": "demo_backends.BadInitBackend", "config": {}},
            "nosuch": {"enabled": True, "backend_class": "demo_backends.NoSuch"},
            "_comment": {"x": 1},
        },
        "apis": {
            "websearch": {"serper_api_key": "", "jina_api_key": ""},
            "doc": {"seed_path": str(tmp_path)},
            "ds": {},
            "text2sql": {"databases": {"t": str(database)}},
        },
    }
    theirs = tmp_path / "theirs.json"
    theirs.write_text(json.dumps(configuration))
    for resource in ("demo", "badinit", "nosuch"):
        configuration["resources"][resource]["path"] = [str(HERE / "plugins")]
    configuration["arenite"] = {"config_root": str(tmp_path)}
    return configured(configuration), theirs


def say(http: httpx.Client, exchange: dict[str, Any], theirs: Path) -> httpx.Response:
    if exchange["source"] == "client":
        headers = {name: value for name, value in exchange["headers"].items() if name in ("content-type", "x-worker-id")}
        body = exchange.get("body")
        content = None if body is None else json.dumps(body)
        return http.request(exchange["method"], exchange["url"], content=content, headers=headers)
    request = exchange["request"]
    if "kw" in request:
        return http.request(request["method"], request["path"], **request["kw"])
    body, headers = request["body"], {}
    if request["method"] == "OPTIONS":
        headers = {"origin": "http://x", "access-control-request-method": "POST"}
    if body is None:
        return http.request(request["method"], request["path"], headers=headers)
    if "_raw" in body:
        return http.request(request["method"], request["path"], content=body["_raw"], headers={"content-type": "application/json"})
    if body.get("config_path") == "<path>":
        body = {**body, "config_path": str(theirs)}
    return http.request(request["method"], request["path"], json=body)


def recorded(exchange: dict[str, Any]) -> Any:
    if "response" in exchange:
        return exchange["response"]
    try:
        return json.loads(exchange["body"])
    except ValueError:
        return exchange["body"]


def paths_masked(value: Any, *paths: str) -> Any:
    text = json.dumps(value)
    for path in paths:
        text = text.replace(path, "<path>")
    return json.loads(text)


@pytest.mark.parametrize("source", ["server", "server-edge", "client"])
def test_every_recorded_exchange_is_the_same(source: str, demo: tuple[Server, Path]) -> None:
    server, theirs = demo
    wrong: list[str] = []
    with server.api() as http:
        for exchange in (one for one in EXCHANGES if one["source"] == source):
            label = exchange.get("label") or exchange["step"]
            answer = say(http, exchange, theirs)
            try:
                got = answer.json()
            except ValueError:
                got = answer.text
            if label in ON_PURPOSE:
                reason, status, body = ON_PURPOSE[label]
                if answer.status_code != status or body and not holds(body, got):
                    wrong.append(f"{label} ({reason}): {answer.status_code} {answer.text[:300]}")
                continue
            wanted = recorded(exchange)
            if answer.status_code != exchange["status"]:
                wrong.append(f"{label}: status {exchange['status']} there, {answer.status_code} here: {answer.text[:300]}")
                continue
            if label == "init_from_config":
                # Paths differ, and are masked in the record.
                wanted = paths_masked(wanted, "seeds/doc/seed/2210.02442v1", "http://127.0.0.1:<port>", "afdemo")
                got = paths_masked(got, str(theirs), str(theirs.parent / "t.db"), str(theirs.parent), "http://127.0.0.1:18890", "demo_backends")
            wrong += [f"{label}{found}" for found in difference(masked(wanted), masked(got))]
    assert not wrong, "\n".join(wrong)
    if source == "server":
        # The last exchange ends it.
        assert server.process is not None and server.process.wait(30) == 0
