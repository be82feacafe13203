"""AgentFlow's configuration of MCP servers, and the recorded exchanges with it. What differs is listed with its reason."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server
from workers import OF_SANDBOXES, OURS, Worker

Configure = Callable[[dict[str, Any]], Server]

HERE = Path(__file__).resolve().parent / "backends"
EXCHANGES = [json.loads(line) for line in (HERE / "mcp.jsonl").read_text().splitlines()]
SERVERS = json.loads((HERE / "mcp-servers.json").read_text())

ASKED = "servers are asked for their tools, and there is no fixed list of 438 names"
NAMED = "the error names the server, and what it said"
LIVES = "a server that ended is started again by the next call"
RECREATED = "a session that could not begin is recreated by the next create, and leaves nothing behind"
UNKNOWN = "a tool of a server that is not enabled is not there"

#: By title: why, the status, and what of the answer has to be so instead.
ON_PURPOSE: dict[str, tuple[str, int, dict[str, Any]]] = {
    "tool list (shortened: first 3 and the terminal tools of all 438)": (ASKED, 200, {"count": 0, "errors": {"mcp": ...}}),
    "ready": (ASKED, 200, {"status": "ready", "tools_count": 0}),
    "warmup status": ("a backend whose servers don't start is not warm", 200, {"summary": {"total": 1, "warmed_up": 0, "pending": 1}}),
    "warmup mcp": (NAMED, 200, {"status": "partial_error", "results": {"mcp": False}}),
    "tool schema": (ASKED, 404, {"status": "error"}),
    "session create, server programs not installed": (NAMED, 500, {"code": 4007, "data": {"session_status": "error"}}),
    "session create again: the failed session stays and is reported as existing": (RECREATED, 500, {"code": 4007}),
    "call with the failed session": (UNKNOWN, 400, {"code": 4002}),
    "call without a session: temporary session fails too": (UNKNOWN, 400, {"code": 4002}),
    "session destroy of the failed session": (RECREATED, 200, {"code": 0, "data": {"message": "Session destroyed for mcp"}}),
    "session list": (RECREATED, 200, {"data": {"count": 0}}),
    "sample: status": (ASKED, 200, {"code": 0, "data": {"tools_available": 14}}),
    "sample: JSON-RPC error": ("said without Python's words", 500, {"code": 5012, "data": None}),
    "sample: answer without result": (
        "JSON-RPC has no answer without result or error; the line is passed over", 500, {"code": 5006}
    ),
    "sample: arguments named worker_id and session_info": (
        "parameters can't forge who calls, so those names are the server's", 200, {"code": 0}
    ),
    "sample: server not enabled": (UNKNOWN, 400, {"code": 4002}),
    "sample: server process dies during a call": (NAMED, 500, {"code": 5012, "data": None}),
    "sample: next call to the dead server": (LIVES, 200, {"code": 0}),
    "sample: enabled_mcp_servers []: ready": (ASKED, 200, {"tools_count": 0}),
    "sample: enabled_mcp_servers []: filesystem call": (UNKNOWN, 400, {"code": 4002}),
    "sample: enabled_mcp_servers ['nosuch']: ready": (ASKED, 200, {"tools_count": 0}),
    "sample: enabled_mcp_servers ['nosuch']: session create": (NAMED, 500, {"code": 4007, "data": {"session_status": "error"}}),
    "sample: enabled_mcp_servers ['nosuch']: filesystem call": (UNKNOWN, 400, {"code": 4002}),
    "sample: enabled_mcp_servers ['fetch', 'rail_12306']: ready": (ASKED, 200, {"status": "ready"}),
    "sample: enabled_mcp_servers ['fetch', 'rail_12306']: filesystem call": (UNKNOWN, 400, {"code": 4002}),
    "sample: answer line over 64 KiB": ("lines have 16 MiB", 200, {"code": 0}),
}
#: Exchanges that would wait for a server's whole time.
SHORTER = {"sample: answer without result": 1}

MASKS = {"HEX": r"[0-9a-f]{8}", "UUID": r"[0-9a-f-]{36}", "TIME": r"\d{4}-\d\d-\d\dT[\d:.]+", "60000 times z": "z{60000}"}
MASK = re.compile("|".join(re.escape(f"{{{name}}}") for name in MASKS))


def differences(wanted: Any, got: Any, at: str = "") -> list[str]:
    if isinstance(wanted, dict) and isinstance(got, dict):
        extra = {
            # The hub always says whether it is an error; AgentFlow's clients need neither.
            name for name in got.keys() - wanted.keys() if not (name == "isError" and got[name] is False or name in ("version", "session_status"))
        }
        found = [f"{at}.{name} is new: {got[name]!r}" for name in extra]
        for name, part in wanted.items():
            found += differences(part, got[name], f"{at}.{name}") if name in got else [f"{at}.{name} is missing"]
        return found
    if isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        return [one for n, (w, g) in enumerate(zip(wanted, got, strict=True)) for one in differences(w, g, f"{at}[{n}]")]
    if wanted == "{MS}":
        return [] if isinstance(got, (int, float)) else [f"{at}: {got!r} is no number"]
    if isinstance(wanted, str) and isinstance(got, str) and MASK.search(wanted):
        pattern, last = "", 0
        for mask in MASK.finditer(wanted):
            pattern += re.escape(wanted[last : mask.start()]) + MASKS[mask.group()[1:-1]]
            last = mask.end()
        return [] if re.fullmatch(pattern + re.escape(wanted[last:]), got) else [f"{at}: {wanted!r} there, {got[:300]!r} here"]
    return [] if wanted == got else [f"{at}: {wanted!r} there, {str(got)[:300]!r} here"]


def holds(wanted: Any, got: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(got, dict) and all(name in got and holds(part, got[name]) for name, part in wanted.items())
    return wanted is ... or bool(wanted == got)


def sample(folder: Path) -> None:
    """What the recordings were made with: servers' programs, tasks, and a checkout's definitions of two servers."""
    programs = folder / "local_servers/bin"
    programs.mkdir(parents=True)
    for name in ("node", "uv"):
        shutil.copy(HERE / "fake_mcp.py", programs / name)
        (programs / name).chmod(0o755)
    first = folder / "task1"
    (first / "initial_workspace/sub").mkdir(parents=True)
    (first / "initial_workspace/hello.txt").write_text("hello")
    (first / "initial_workspace/sub/file").write_text("x")
    (first / "preprocess").mkdir()
    (first / "preprocess/main.py").write_text(
        "import sys\nassert sys.argv[1] == '--agent_workspace' and sys.argv[3:] == ['--launch_time', '2025-01-02 03:04:05'], sys.argv\n"
        "open(sys.argv[2] + '/pre.txt', 'w').write('pre')\n"
    )
    (folder / "task_bad/preprocess").mkdir(parents=True)
    definitions = folder / "sandbox/server/backends/resources/mcp/servers"
    definitions.mkdir(parents=True)
    for file, name in [("fetch", "fetch"), ("12306-mcp", "rail_12306")]:
        (definitions / f"{file}.yaml").write_text(
            f"type: stdio\nname: {name}\nparams:\n  command: node\n  args:\n    - ${{local_servers_paths}}/{file}/index.js\n"
            "client_session_timeout_seconds: 30\n"
        )


def filled(value: Any, folder: Path) -> Any:
    text = json.dumps(value).replace("{TMP}/fakebin", "{TMP}/local_servers/bin").replace("{TMP}", str(folder))
    return json.loads(text.replace(":{PATH}", ":/usr/local/bin:/usr/bin:/bin").replace('"{PORT}"', "18890").replace("{PORT}", "18890"))


@pytest.mark.parametrize("name", SERVERS)
def test_recorded_exchanges_are_the_same(name: str, configured: Configure, tmp_path: Path) -> None:
    sample(tmp_path)
    server = configured(filled(SERVERS[name]["config"], tmp_path))
    wrong: list[str] = []
    for exchange in (one for one in EXCHANGES if one["server"] == name):
        title, request = exchange["title"], filled(exchange["request"], tmp_path)
        body = request["body"]
        if title in SHORTER:
            body["timeout"] = SHORTER[title]
        if "preprocess exits 2" in title:
            (tmp_path / "task_bad/preprocess/main.py").write_text("import sys\nsys.exit(print('boom', file=sys.stderr) or 2)\n")
        answer = httpx.request(request["method"], f"{server.url}{request['path']}", json=body, timeout=60)
        got = answer.json()
        if title in ON_PURPOSE:
            reason, status, wanted = ON_PURPOSE[title]
            if answer.status_code != status or not holds(wanted, got):
                wrong.append(f"{title} ({reason}): {answer.status_code} {answer.text[:600]}")
            continue
        wanted = exchange["response"]
        if answer.status_code != wanted["status"]:
            wrong.append(f"{title}: status {wanted['status']} there, {answer.status_code} here: {answer.text[:600]}")
            continue
        # Texts of servers are JSON in JSON.
        wrong += [f"{title}{one}" for one in differences(filled(wanted["body"], tmp_path), got)]
    assert not wrong, "\n".join(wrong)


def test_a_server_that_does_not_start_is_named_by_warm_up_and_tools(configured: Configure, worker: Callable[..., Worker]) -> None:
    good = {"command": "python3", "args": ["-c", (HERE / "fake_mcp.py").read_text()]}
    bad = {"command": "python3", "args": ["-c", "import sys; sys.exit('no database here')"]}
    resource = {"backend_class": f"{OURS}.mcp.ToolathlonGymBackend", "config": {"servers": {"good": good, "bad": bad}}}
    server = configured({"resources": {**OF_SANDBOXES, "mcp": resource}, "warmup": {"enabled": True, "resources": ["mcp"]}})
    with server.api() as api:
        listed = api.get("/api/v1/tools").json()
        assert "mcp:good.list_directory" in [tool["full_name"] for tool in listed["tools"]], "the server was not asked"
        assert "no database here" in listed["errors"]["mcp"]["bad"] and list(listed["errors"]["mcp"]) == ["bad"]
        schema = api.get("/api/v1/tools/mcp:good.list_directory/schema").json()
        assert schema["parameters"] == {"type": "object"}
        warmed = api.post("/api/v1/warmup", json={"backends": ["mcp"]}).json()
        assert warmed["results"] == {"mcp": False} and "bad: " in warmed["errors"]["mcp"] and "no database" in warmed["errors"]["mcp"]
        left = api.get("/api/v2/sandboxes").json()["sandboxes"]
        assert [one["name"] for one in left if one["spec"]["labels"].get("agentflow.worker") == "(kept ready)"] == []
    refused = worker().post("session/create", resource_type="mcp").json()
    assert refused["code"] == 4007 and "bad: " in refused["data"]["error"], refused


def test_a_client_can_not_have_folders_of_the_host(configured: Configure, worker: Callable[..., Worker], tmp_path: Path) -> None:
    secret = tmp_path.parent / f"{tmp_path.name}-secret"
    (secret / "initial_workspace").mkdir(parents=True)
    (secret / "initial_workspace/key").write_text("key")
    sample(tmp_path)
    server = configured(filled(SERVERS["mcp-fake-servers"]["config"], tmp_path))
    for n, config in enumerate([
        {"task_dir": str(secret), "copy_initial_workspace": True},
        {"task_dir": f"../{secret.name}", "copy_initial_workspace": True},
        {"mcp_servers_path": str(secret)},
    ]):
        w = Worker(server.url, f"thief-{n}")
        made = w.post("session/create", resource_type="mcp", session_config=config).json()
        if "task_dir" in config:
            assert "is no task" in made["data"]["error"], made
        else:
            assert w.ok("mcp:filesystem.list_directory", path=str(tmp_path / "local_servers"))["content"][0]["text"] == "bin"
            assert w.ok("mcp:filesystem.list_directory", path=str(tmp_path))["content"][0]["text"] == "local_servers\nmcp_ws"
        w.leave()
