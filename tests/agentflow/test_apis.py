"""`web:*`, `text2sql:*`, `ds_*`, `doc:*` and `mcp:*`, and where plugins and resources run."""

from __future__ import annotations

import concurrent.futures
import http.server
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server
from workers import DEMO, OF_SANDBOXES, OURS, Worker

Configure = Callable[[dict[str, Any]], Server]

#: An MCP server without any library.
MCP_SERVER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        result = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": {"name": "add", "version": "1"}}
    elif asked["method"] == "tools/list":
        result = {"tools": [{"name": "add", "inputSchema": {"type": "object"}}]}
    else:
        given = asked["params"]["arguments"]
        print("adding", given, file=sys.stderr)
        result = {"content": [{"type": "text", "text": str(given["a"] + given["b"])}]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


class FakeProviders(http.server.BaseHTTPRequestHandler):
    """Stands for Serper, Jina and a model."""

    asked: list[tuple[str, Any, dict[str, str]]] = []
    busy = 0

    def answer(self, body: str, status: int = 200) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self) -> None:
        self.asked.append((self.path, None, dict(self.headers)))
        self.answer("# The page\n" + "x" * 100 if "good" in self.path else "no", 200 if "good" in self.path else 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append((self.path, body, dict(self.headers)))
        if FakeProviders.busy:
            FakeProviders.busy -= 1
            return self.answer("later", 503)
        if self.path == "/v1/chat/completions":
            return self.answer(json.dumps({"choices": [{"message": {"content": "the summary"}}]}))
        found = [{"title": "One", "link": "https://one.test/", "snippet": "first"}, {"title": "Two", "link": "https://two.test/"}]
        self.answer(json.dumps({"organic": found, "images": [{"title": "I", "link": "https://i.test/", "imageUrl": "https://i.test/i.png"}]}))

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def providers() -> Iterator[str]:
    FakeProviders.asked = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeProviders) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_the_web_by_providers(configured: Configure, worker: Callable[..., Worker], providers: str) -> None:
    keys = {"serper_api_key": "k1", "jina_api_key": "k2", "serper_url": providers, "jina_url": providers, "content_limit": 50}
    configured({"apis": {"websearch": keys}})
    w = worker()
    FakeProviders.busy = 1
    found = w.ok("web-search", query=["first", "中文"])
    assert "[One](https://one.test/)" in found["result"] and "first" in found["result"]
    assert found["inputs"]["query"] == ["first", "中文"] and "api_key" not in json.dumps(found)
    searches = [body for path, body, _ in FakeProviders.asked if path == "/search"]
    assert {body["gl"] for body in searches} == {"us", "cn"}
    assert all(headers.get("x-api-key") == "k1" or headers.get("X-Api-Key") == "k1" for _, body, headers in FakeProviders.asked if body)
    page = w.ok("web:visit", urls=["https://good.test/", "https://bad.test/"], goal="facts")
    assert "# The page" in page["result"] and "bad.test" in page["warning"] and len(page["result"]) < 120
    assert w.call("web:visit", urls="https://bad.test/", goal="x")["code"] == 5000
    assert "i.png" in w.ok("web:image_search", query="cats")["result"]
    assert w.ok("web:reverse_image_search", image_url="https://i.test/i.png")["result"].startswith("# 2 images")
    assert w.call("web:search", query={"q": 5})["code"] == 5000
    model = {"enable_llm_summary": True, "openai_api_key": "k3", "openai_api_url": f"{providers}/v1", "summary_model": "m"}
    configured({"apis": {"websearch": {**keys, **model}}})
    assert "the summary" in worker("two").ok("web:visit", urls="https://good.test/", goal="facts")["result"]


def test_databases_are_asked_and_not_changed(configured: Configure, worker: Callable[..., Worker], tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, price REAL)")
        made.executemany("INSERT INTO items VALUES (?, ?, ?)", [(n, f"item {n}", n * 1.5) for n in range(1, 301)])
    configured({"apis": {"text2sql": {"databases": {"shop": str(path)}, "timeout": 1}}})
    w = worker()
    assert w.ok("list_databases")["result"] == {"databases": ["shop"]}
    schema = w.ok("text2sql:get_schema", db_id="shop")["result"]["schema"]["items"]
    assert schema["columns"][0] == {"name": "id", "type": "INTEGER", "pk": True}
    rows = w.ok("text2sql:execute", db_id="shop", query="SELECT name, price FROM items ORDER BY id")["result"]
    assert rows["row_count"] == 100 and rows["truncated"] and rows["rows"][0] == ["item 1", 1.5]
    for query, code in [("DELETE FROM items", 4000), ("PRAGMA journal_mode = WAL", 5000), ("SELECT * FROM nothing", 5000)]:
        assert w.call("text2sql:execute", db_id="shop", query=query)["code"] == code, query
    forever = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t"
    begun = time.monotonic()
    waits = threading.Thread(target=lambda: Worker(str(w.http.base_url), w.name).call("text2sql:execute", db_id="shop", query=forever))
    waits.start()
    assert httpx.get(f"{w.http.base_url}/health").elapsed.total_seconds() < 0.5, "everybody waits for one query"
    waits.join()
    assert time.monotonic() - begun < 5
    assert w.call("text2sql:execute", db_id="../../etc/passwd", query="SELECT 1")["code"] == 5000


def test_data_is_worked_on_in_the_sandbox(configured: Configure, worker: Callable[..., Worker], tmp_path: Path) -> None:
    data = tmp_path / "seeds" / "sales"
    (data / "more").mkdir(parents=True)
    (data / "a.csv").write_text("day,sum\n1,10\n2,20\n3,30\n")
    (data / "more" / "b.txt").write_text("b")
    (data / "out").symlink_to("/etc")
    configured({"resources": OF_SANDBOXES, "apis": {"ds": {"seed_root": str(tmp_path / "seeds")}}})
    w = worker()
    w.create("code")
    told = w.ok("ds_inspect_data", seed_path="sales")["result"]
    assert told.startswith("a.csv:\nThis dataset contains 3 rows and 2 columns.") and "passwd" not in told
    assert w.ok("ds_read_csv", csv_file="a.csv", max_rows=2, seed_path="sales")["result"].splitlines()[:3] == ["a.csv", "day,sum", "1,10"]
    code = "frame = pd.read_csv('a.csv')\ntotal = int(frame['sum'].sum())\nprint(os.path.exists('/etc/shadow-of-the-host'), os.listdir('more'))"
    done = w.call("ds_run_python", code=code, return_vars=["total"], seed_path="sales")
    assert done["code"] == 0 and "total = 60" in done["data"]["result"] and "False ['b.txt']" in done["data"]["result"], done
    assert done["meta"]["session_id"] is None and done["meta"]["resource_type"] == "ds"
    plot = "plt.plot([1, 2])\nplt.show()"
    assert w.ok("ds_run_python", code=plot, seed_path="sales")["images"][0]["type"] == "image/png"
    # Folders of the server beside the one that is configured are none; a path may be the sandbox's own.
    for outside in ["sales/out", "nothing", "../sales", str(tmp_path)]:
        assert "does not exist" in w.ok("ds_inspect_data", seed_path=outside)["result"], outside
    assert "apis.ds.seed_root" in w.ok("ds_inspect_data", seed_path=str(tmp_path))["result"]
    w.ok("code:bash", command="mkdir -p /tmp/made && printf 'a,b\\n1,2\\n' >/tmp/made/own.csv")
    assert "contains 1 rows and 2 columns" in w.ok("ds_inspect_data", seed_path="/tmp/made")["result"]
    assert "must be provided" in w.call("ds_run_python", code="1")["message"]
    # What changes on the server is there in the next call; what code writes stays.
    w.ok("ds_run_python", code="open('made.txt', 'w').write('x')", seed_path="sales")
    (data / "a.csv").write_text("day,sum\n1,10\n")
    told = w.ok("ds_run_python", code="print(len(pd.read_csv('a.csv')), os.path.exists('made.txt'))", seed_path="sales")["result"]
    assert told == "📄 Standard Output:\n1 True"
    # A dead Python process received nothing, so the next call starts another one.
    for one in w.http.get("/api/v2/sandboxes").json()["sandboxes"]:
        if one["spec"]["labels"].get("agentflow.worker") == w.name:
            killed = w.http.post(f"/sandbox/{one['name']}/v1/bash/exec", json={"command": "pkill -9 -f '[w]orker.py' && sleep 0.2"})
            assert killed.json()["data"]["exit_code"] == 0, killed.json()
    assert w.ok("ds_run_python", code="print(1)", seed_path="sales")["result"].endswith("1")


def test_a_call_of_ds_harms_no_other(configured: Configure, worker: Callable[..., Worker], tmp_path: Path) -> None:
    """Without a session: calls of one worker share a sandbox, and each has a process of its own there."""
    (tmp_path / "a.csv").write_text("n\n1\n")
    configured({"apis": {"ds": {"seed_root": str(tmp_path)}}})
    w = worker()

    def run(code: str, **more: Any) -> dict[str, Any]:
        return Worker(str(w.http.base_url), w.name).post("execute", action="ds_run_python", params={"code": code, "seed_path": "."}, **more).json()

    for code, wanted in [
        ("import os, signal; print('before'); os.kill(os.getpid(), signal.SIGKILL)", ["MemoryError", "before"]),
        ("import os; os._exit(3)", ["SystemExit: 3"]),
        ("import sys; sys.setrecursionlimit(10**9)\ndef f(): return f()\nf()", ["Error"]),
        ("pd.read_csv = None; np.pi = 3", ["successful"]),
        ("print(pd.read_csv is None, np.pi > 3)", ["False True"]),
        ("print('x' * 3_000_000)", ["Output truncated! (Total 3000000 chars)"]),
        ("os.system('echo from a command')", ["from a command"]),
        ("import subprocess; subprocess.Popen(['sleep', '100'])", ["successful"]),
    ]:
        answer = run(code)
        assert answer["code"] == 0 and all(one in answer["data"]["result"] for one in wanted), answer
    # One that is too slow is stopped, and meanwhile others run.
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        slow = pool.submit(run, "while True: pass", timeout=3)
        quick = [pool.submit(run, f"time.sleep(0.2); print({n})") for n in range(12)]
        assert [one.result()["data"]["result"] for one in quick] == [f"📄 Standard Output:\n{n}" for n in range(12)]
        assert slow.result()["code"] == 5006
    left = "import subprocess; print(subprocess.run(['pgrep', '-fc', '^sleep 100'], capture_output=True, text=True).stdout)"
    assert run(left)["data"]["result"].endswith("0")
    listed = w.post("session/list").json()["data"]
    assert listed["count"] == 0, "the sandbox is kept by a session that nobody sees"
    sandboxes = w.http.get("/api/v2/sandboxes").json()["sandboxes"]
    assert len([one for one in sandboxes if one["spec"]["labels"].get("agentflow.worker") == w.name]) == 1
    assert w.post("worker/disconnect").json()["data"]["sessions_cleaned"] == 0
    sandboxes = w.http.get("/api/v2/sandboxes").json()["sandboxes"]
    assert not [one for one in sandboxes if one["spec"]["labels"].get("agentflow.worker") == w.name]


def test_documents_are_found_and_read(configured: Configure, worker: Callable[..., Worker], tmp_path: Path) -> None:
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "paper.md").write_text("# Intro\nWe train a model.\n# Results\nIt works.\n")
    configured({"apis": {"doc": {"seed_root": str(tmp_path)}}})
    w = worker()
    found = w.ok("doc:search", key_words=["MODEL"], seed_path="paper")["result"]
    assert found.startswith("[paper.1] Intro")
    assert "It works." in w.ok("doc:read", section_ids=["paper.2"], goal="what", seed_path="paper")["result"]
    assert w.call("doc:read", section_ids=["paper.9"], goal="what", seed_path="paper")["code"] == 5000
    outside = w.call("doc:search", key_words="a", seed_path="/etc")
    assert outside["code"] == 5000 and "apis.doc.seed_root" in outside["message"]


def test_what_is_said_of_an_unknown_tool_is_short(server: Server, worker: Callable[..., Worker]) -> None:
    w = worker()
    long = "x" * (1 << 20)
    for answer in (w.post("execute", action=long), w.post("execute/batch", actions=[{"action": long}])):
        assert answer.status_code in (400, 500) and len(answer.content) < 4000 and "x...[Truncated]" in answer.text


def test_paths_and_pages_of_agentflows_server(server: Server, worker: Callable[..., Worker]) -> None:
    w = worker()
    assert w.http.post("/worker/disconnect", json={"worker_id": w.name}).json()["data"]["sessions_cleaned"] == 0
    assert w.http.get("/warmup/status").json().keys() == {"backends", "summary"}
    document = w.http.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for method, told in methods.items():
            if method == "get":
                assert w.http.get(path.replace("{tool_name}", "bash:run")).status_code == 200, path
            elif told["requestBody"]["required"]:
                # Bodies without what has to be there are refused.
                assert w.http.post(path, json={}).status_code in (400, 422), path
    for path in ("/docs", "/redoc"):
        page = w.http.get(path)
        assert page.status_code == 200 and page.headers["content-type"].startswith("text/html") and "openapi.json" in page.text


def test_mcp_servers_run_inside_the_workers_sandbox(configured: Configure, worker: Callable[..., Worker]) -> None:
    servers = {"sums": {"command": "python3", "args": ["-c", MCP_SERVER], "tools": [{"name": "add", "description": "Adds"}]}}
    mcp = {"backend_class": f"{OURS}.mcp.ToolathlonGymBackend", "config": {"servers": servers}}
    configured({"resources": {**OF_SANDBOXES, "mcp": mcp}})
    w = worker()
    w.create("bash")
    w.create("mcp")
    result = w.ok("mcp:sums.add", a=2, b=3)
    assert result["content"][0]["text"] == "5", result
    assert "add" in w.http.get("/api/v1/tools/mcp:sums.add/schema").json()["description"].lower()
    assert w.ok("bash:run", command="pgrep -fc '[p]rotocolVersion'")["stdout"].strip() != "0"
    listed = w.http.get("/api/v1/tools?format=openai").json()["tools"]
    assert "mcp-sums-add" in [tool["function"]["name"] for tool in listed]
    assert w.ok("mcp-sums-add", a=1, b=1)["content"][0]["text"] == "2"
    assert w.call("mcp:sums.nothing", a=1)["code"] == 4002


def test_a_plugin_in_a_sandbox_of_its_own(configured: Configure, worker: Callable[..., Worker]) -> None:
    boxed = {**DEMO["demo"], "isolation": "sandbox"}
    server = configured({"resources": {"demo": boxed, "badinit": DEMO["badinit"]}})
    w = worker()
    w.create("demo")
    assert [w.ok("demo:incr", by=n)["n"] for n in (1, 2, 3)] == [1, 3, 6]
    assert w.call("demo:boom")["message"] == "boom"
    assert w.post("execute", action="demo:sleep", params={"s": 30}, timeout=1).json()["code"] == 5006
    rooms = [
        one["name"]
        for one in httpx.get(f"{server.url}/api/v2/sandboxes").json()["sandboxes"]
        if "agentflow.plugin" in one["spec"]["labels"]
    ]
    assert len(rooms) == 1
    # Its death is noticed, and it begins again with its sessions.
    httpx.post(f"{server.url}/sandbox/{rooms[0]}/v1/bash/exec", json={"command": "pkill -9 -f sandbox.host"})
    deadline = time.monotonic() + 30
    while (answer := w.call("demo:incr", by=1))["code"] != 0 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert answer["data"] == {"n": 1}
    server.restart()
    left = httpx.get(f"{server.url}/api/v2/sandboxes").json()["sandboxes"]
    assert [one["name"] for one in left if "agentflow.plugin" in one["spec"]["labels"]] == []


def test_a_resource_may_have_a_sandbox_to_itself(server: Server, worker: Callable[..., Worker]) -> None:
    w = worker()
    w.create("bash")
    w.create("code", session_config={"sandbox": "own"})
    w.ok("bash:run", command="touch /tmp/of-bash")
    assert "of-bash" not in w.ok("code:bash", command="ls /tmp")["stdout"]
    w.post("worker/disconnect")
    left = httpx.get(f"{server.url}/api/v2/sandboxes").json()["sandboxes"]
    assert [one["name"] for one in left if one["spec"]["labels"].get("agentflow.worker") == w.name] == []
