"""Workers, their sessions and tools on real sandboxes, over the wire."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from arenite_server import Server
from workers import DEMO, OF_SANDBOXES, Worker

Workers = Callable[..., Worker]


def sandboxes_of(server: Server, worker: Worker) -> list[dict[str, Any]]:
    all_of_them = httpx.get(f"{server.url}/api/v2/sandboxes").json()["sandboxes"]
    return [one for one in all_of_them if one["spec"]["labels"].get("agentflow.worker") == worker.name]


def eventually(holds: Callable[[], bool], patience: float = 20) -> bool:
    deadline = time.monotonic() + patience
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_a_shell_keeps_what_a_person_would_expect(worker: Workers) -> None:
    w = worker()
    w.create("bash", session_config={"cwd": "/tmp/begin here"})
    assert w.ok("bash:pwd")["stdout"] == "/tmp/begin here\n"
    first = 'cd /var; export A="a b\'c"; B=$\'line\\nbreak\'; declare -A M=([k]="v w"); f() { echo "f $1"; }; false'
    done = w.ok("bash:run", command=first)
    assert (done["return_code"], done["exit_code"]) == (1, 1)
    told = w.ok("bash-run", command='pwd; echo "$A"; echo "$B"; echo "${M[k]}"; f x; echo err >&2; exit 3')
    assert told["stdout"] == "/var\na b'c\nline\nbreak\nv w\nf x\n"
    assert (told["stderr"], told["return_code"]) == ("err\n", 3)
    assert w.ok("bash.cd", path="/usr/lib")["stdout"] == "/usr/lib\n"
    assert w.ok("pwd")["stdout"] == "/usr/lib\n"
    late = w.ok("bash:run", command="echo before; sleep 60", timeout=1)
    assert late["return_code"] == 124 and late["timed_out"] and late["stdout"] == "before\n"
    assert w.ok("bash:run", command="echo $A")["stdout"] == "a b'c\n"


def test_sessions_of_a_worker_share_a_sandbox_that_goes_with_the_last_of_them(server: Server, worker: Workers) -> None:
    w = worker()
    w.create("bash")
    w.create("code")
    w.create("websearch-of-nobody")
    assert len(sandboxes_of(server, w)) == 1
    w.ok("code:write", file_path="notes/a.py", content="x = 1\nprint(x)\n")
    assert w.ok("bash:run", command="cat ~/notes/a.py")["stdout"] == "x = 1\nprint(x)\n"
    assert w.ok("code:read", file_path="notes/a.py")["result"] == "   1→x = 1\n   2→print(x)\n"
    w.ok("code:edit", file_path="notes/a.py", old_string="x = 1", new_string="x = 42")
    assert w.ok("code:bash", command="python3 notes/a.py")["stdout"] == "42\n"
    assert w.ok("code:grep", pattern="4.", path="notes")["result"].endswith("a.py:1:x = 42")
    assert w.ok("code:glob", pattern="notes/*.py")["result"].endswith("/notes/a.py")
    for missing in ({"old_string": "zz", "new_string": ""}, {"old_string": "x", "new_string": "y"}):
        answer = w.call("code:edit", file_path="notes/a.py", **missing)
        assert answer["code"] == 4001 and answer["data"]["result"].startswith("Error:"), answer
    w.ok("code:execute", code="kept = 7")
    assert w.ok("code:execute", code="print(kept)\nkept + 1")["stdout"] == "7\n8\n"
    failed = w.ok("code:execute", code="1 / 0")
    assert failed["return_code"] == 1 and "ZeroDivisionError" in failed["stderr"]
    assert w.ok("code:execute", code="console.log(1 + 1)", language="javascript")["stdout"] == "2\n"
    assert w.post("session/destroy", resource_type="bash").json()["code"] == 0
    assert w.post("session/destroy", resource_type="code").json()["code"] == 0
    assert len(sandboxes_of(server, w)) == 1, "a session lives still"
    assert w.post("session/destroy", resource_type="websearch-of-nobody").json()["code"] == 0
    assert sandboxes_of(server, w) == []


def test_a_temporary_session_has_a_sandbox_of_its_own_and_leaves_nothing(server: Server, worker: Workers) -> None:
    w = worker()
    answer = w.call("bash:run", command="echo $$ > /tmp/mine; ls /tmp")
    assert answer["meta"]["temporary_session"] is True
    assert answer["data"]["stdout"] == "mine\n"
    assert "mine" not in w.ok("bash:run", command="ls /tmp")["stdout"]
    failed = w.post("execute", action="bash:run", params={"command": "sleep 30"}, timeout=1)
    assert failed.status_code == 500 and failed.json()["code"] == 5006
    assert "temporary_session" not in failed.json()["meta"]
    assert w.post("session/list").json()["data"]["count"] == 0
    assert eventually(lambda: sandboxes_of(server, w) == [])


def test_the_session_says_what_its_sandbox_is(worker: Workers) -> None:
    w = worker()
    w.create("bash", session_config={"image": "base", "network": "none", "env": {"OF_SESSION": "yes"}, "memory_mb": 512})
    assert w.ok("bash:run", command="echo $OF_SESSION; ip -br link | cut -d' ' -f1")["stdout"] == "yes\nlo\n"
    refused = worker("other").post("session/create", resource_type="bash", session_config={"image": "no-such-image"})
    assert refused.status_code == 500
    assert refused.json()["code"] == 4007 and "no-such-image" in refused.json()["data"]["error"]
    again = worker("third").post("session/create", resource_type="bash", session_config={"network": "everything"})
    assert "network" in again.json()["data"]["error"]


def test_a_session_ends_after_its_time_unless_it_is_used(server: Server, worker: Workers) -> None:
    w, fixed = worker(), worker("fixed")
    w.create("bash", ttl=3)
    fixed.create("bash", ttl=3, auto_extend=False)
    deadline = time.monotonic() + 6
    while time.monotonic() < deadline:
        w.ok("bash:run", command="true")
        if fixed.post("session/list").json()["data"]["count"]:
            fixed.call("bash:run", command="true")
        time.sleep(0.5)
    assert w.post("session/list").json()["data"]["count"] == 1
    assert fixed.post("session/list").json()["data"]["count"] == 0
    assert eventually(lambda: w.post("session/list").json()["data"]["count"] == 0)
    assert eventually(lambda: sandboxes_of(server, w) == [] and sandboxes_of(server, fixed) == [])


def test_steps_tell_of_worker_task_parent_and_tokens(worker: Workers) -> None:
    w = worker()
    w.create("bash")
    more = {"trace_id": "mine", "task_id": "t1", "tokens": {"prompt_tokens": 5}}
    first = w.post("execute", action="bash:run", params={"command": "echo 1"}, **more).json()
    assert first["meta"]["trace_id"] == "mine"
    w.post("execute", action="bash:run", params={"command": "echo 2"}, task_id="t1", parent=1)
    w.post("execute", action="nope", task_id="t1")
    w.ok("bash:run", command="echo without a task")
    steps = w.steps(task="t1")
    assert [step["action"] for step in steps] == ["bash:run", "bash:run", "nope"]
    assert [step["outcome"] for step in steps] == ["ok", "ok", "error"]
    one, two, _ = steps
    assert one["work"]["trace_id"] == "mine" and one["work"]["tokens"] == {"prompt_tokens": 5}
    assert two["work"]["parent"] == 1
    assert one["arguments"]["json"] == {"command": "echo 1"}
    assert one["observation"]["json"]["data"]["stdout"] == "1\n"
    assert one["work"]["queued_at"] <= one["started_at"] <= one["ended_at"]
    assert one["work"]["sandbox"] == two["work"]["sandbox"] != ""
    assert len(w.steps()) == 1


def test_a_client_that_gives_up_and_asks_again_gets_the_first_answer(worker: Workers) -> None:
    w = worker()
    w.create("bash")
    asked = {"worker_id": w.name, "action": "bash:run", "params": {"command": "echo x >> /tmp/ran; sleep 3; cat /tmp/ran"}, "timeout": None}
    with pytest.raises(httpx.ReadTimeout):
        w.http.post("/api/v1/execute", json=asked, timeout=1)
    time.sleep(0.5)
    answer = w.http.post("/api/v1/execute", json=asked).json()
    assert answer["data"]["stdout"] == "x\n", "it ran twice"
    assert w.ok("bash:run", command="cat /tmp/ran")["stdout"] == "x\n"


def test_a_client_that_leaves_for_good_leaves_nothing_running(worker: Workers) -> None:
    w = worker()
    w.create("bash")
    with pytest.raises(httpx.ReadTimeout):
        w.http.post(
            "/api/v1/execute",
            json={"worker_id": w.name, "action": "bash:run", "params": {"command": "exec -a forever sleep 4321"}},
            timeout=1,
        )
    other = worker("looks-on")
    other.create("bash")
    name = w.steps()[0]["work"]["sandbox"]
    look = lambda: w.http.post(f"/sandbox/{name}/v1/bash/exec", json={"command": "pgrep -f 4321$ | wc -l"}).json()["data"]["stdout"]
    assert look().strip() != "0"
    assert eventually(lambda: look().strip() == "0", 15)
    assert [step["outcome"] for step in w.steps()] == ["aborted"]


def test_the_deadline_comes_before_the_clients_own(worker: Workers) -> None:
    w = worker()
    w.create("bash")
    asked = {"worker_id": w.name, "action": "bash:run", "params": {"command": "sleep 20"}, "timeout": 2}
    answer = w.http.post("/api/v1/execute", json=asked, timeout=2)
    assert answer.status_code == 500
    assert answer.json()["code"] == 5006
    assert answer.json()["message"] == "Tool execution timed out after 2s"


def test_batches(worker: Workers) -> None:
    w = worker()
    w.create("bash")
    run = lambda command: {"action": "bash:run", "params": {"command": command}}
    serial = w.post("execute/batch", actions=[run(f"echo {n}") for n in range(50)]).json()
    assert [one["data"]["stdout"] for one in serial["data"]["results"]] == [f"{n}\n" for n in range(50)]
    begun = time.monotonic()
    parallel = w.post("execute/batch", actions=[{"action": "code:execute", "params": {"code": "sleep 1", "language": "bash"}}] * 6, parallel=True)
    assert parallel.json()["data"]["success_count"] == 6
    assert time.monotonic() - begun < 5
    many = w.post("execute/batch", actions=[{"action": "nope"}] * 10_000, stop_on_error=False)
    assert many.status_code == 500 and many.json()["code"] == 5009
    assert len(many.json()["data"]["results"]) == 10_000
    assert w.post("execute/batch", actions=[{"action": "nope"}] * 10_001).status_code == 400


def test_bad_input(worker: Workers) -> None:
    w = worker()
    w.create("bash")
    for name in ["", ":", "::", "bash:", ":run", "../../etc", "bash:run\u0000", "💥" * 100, "x" * 100_000, "bash:run:run", "__proto__"]:
        answer = w.post("execute", action=name, params={"command": "true"})
        assert (answer.status_code, answer.json()["code"]) == (400, 4002), (name[:20], answer.text[:200])
    for body in ['{"worker_id": "w", "action": "bash:run", "params": {"command": NaN}}', "[1", '"x"', "[]", "", "{" * 10_000]:
        answer = w.http.post("/api/v1/execute", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 422 and answer.json()["detail"], body[:50]
        answer = w.http.post("/api/v1/session/list", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400 and answer.json()["code"] == 4002, body[:50]
    big = "x" * (1 << 20)
    assert w.ok("code:write", file_path="/tmp/big", content=big)["return_code"] == 0
    assert w.ok("bash:run", command="true")["return_code"] == 0
    assert w.call("bash:run")["message"] == "run() missing 1 required positional argument: 'command'"
    assert w.call("bash:run", command=5)["code"] == 4000
    assert w.post("session/create", resource_type="x" * 1000).status_code == 400
    assert w.post("session/create", resource_type="bash", session_config=[1]).status_code == 400
    assert w.post("session/create", resource_type="other", ttl=-1).status_code == 400


def test_requests_under_way_end_when_their_session_is_destroyed(worker: Workers) -> None:
    w = worker()
    w.create("bash")
    answers: list[dict[str, Any]] = []
    waits = threading.Thread(target=lambda: answers.append(Worker(str(w.http.base_url), w.name).call("bash:run", command="sleep 60")))
    waits.start()
    assert eventually(lambda: len(w.http.get("/api/v1/trajectories").json()["trajectories"]) > 0)
    time.sleep(0.5)
    assert w.post("session/destroy", resource_type="bash").json()["code"] == 0
    waits.join(10)
    assert answers and answers[0]["code"] == 4007, answers


def test_a_killed_servers_workers_go_on_where_they_were(server: Server, worker: Workers) -> None:
    w, done = worker(), worker("left")
    created = w.create("bash")
    w.ok("bash:run", command="cd /var; X=kept")
    done.create("bash")
    name = w.steps()[0]["work"]["sandbox"]
    dangling = threading.Thread(target=lambda: Worker(server.url, w.name).call("bash:run", command="sleep 30"), daemon=True)
    excepted = threading.excepthook
    threading.excepthook = lambda _: None
    try:
        dangling.start()
        time.sleep(0.7)
        server.kill()
        dangling.join(10)
    finally:
        threading.excepthook = excepted
    server.start()
    assert w.post("session/list").json()["data"]["sessions"][0]["session_id"] == created["session_id"]
    assert w.ok("bash:run", command="pwd; echo $X")["stdout"] == "/var\nkept\n"
    steps = w.steps()
    assert [step["outcome"] for step in steps] == ["ok", "interrupted", "ok"]
    assert steps[2]["work"]["sandbox"] == name
    assert w.create("bash")["status"] == "exists"
    assert done.post("worker/disconnect").json()["data"]["sessions_cleaned"] == 1
    assert eventually(lambda: sandboxes_of(server, done) == [])


def test_lists_of_tools_are_what_models_are_given(worker: Workers) -> None:
    w = worker()
    plain = w.http.get("/api/v1/tools?include_hidden=False").json()
    assert w.http.get("/tools").json() == plain
    names = [tool["full_name"] for tool in plain["tools"]]
    assert len(names) == plain["count"] and "bash:run" in names and "bash:run_command" not in names
    hidden = w.http.get("/api/v1/tools?include_hidden=yes").json()["tools"]
    assert "bash:run_command" in [tool["full_name"] for tool in hidden]
    for form, name_of, schema_of in [
        ("openai", lambda t: t["function"]["name"], lambda t: t["function"]["parameters"]),
        ("openai_responses", lambda t: t["name"], lambda t: t["parameters"]),
        ("anthropic", lambda t: t["name"], lambda t: t["input_schema"]),
        ("mcp", lambda t: t["name"], lambda t: t["inputSchema"]),
    ]:
        listed = w.http.get(f"/api/v1/tools?format={form}").json()["tools"]
        assert len(listed) == plain["count"]
        for tool in listed:
            assert schema_of(tool)["type"] == "object"
            # Whatever a model answers with is found again.
            assert w.http.get(f"/api/v1/tools/{name_of(tool)}/schema").status_code == 200, name_of(tool)
    ours = w.http.get("/api/v1/tools?format=agentflow").json()["tools"]
    assert {"name": "command", "type": "string", "description": "The command, for bash.", "required": True} in ours[0]["parameters"]
    assert w.http.get("/api/v1/tools?format=latin").status_code == 400


def test_the_browser_stands_beside_the_shell(worker: Workers) -> None:
    w = worker()
    w.create("bash")
    w.create("code")
    page = "<title>T</title><h1>Hello</h1><input id=i><button onclick=\"document.title='clicked '+i.value\">Go</button>"
    w.ok("code:write", file_path="/tmp/site/index.html", content=page)
    w.ok("bash:run", command="cd /tmp/site; python3 -m http.server 3456 >/dev/null 2>&1 &")
    w.ok("bash:run", command="until curl -so /dev/null 127.0.0.1:3456; do sleep 0.1; done")
    w.create("browser")
    went = w.ok("browser:goto", url="http://127.0.0.1:3456/")
    assert went["title"] == "T" and went["url"] == "http://127.0.0.1:3456/"
    assert "Hello" in w.ok("browser:get_text")["text"]
    assert w.ok("browser:get_text", selector="h1")["text"] == "Hello"
    w.ok("browser:type", selector="#i", text="abc")
    w.ok("browser:click", selector="button")
    assert w.ok("browser:evaluate", script="document.title")["result"] == "clicked abc"
    shot = w.ok("browser:screenshot")
    assert shot["size"][0] > 300 and shot["image"].startswith("iVBOR")
    assert "PNG image" in w.ok("bash:run", command=f"file {shot['image_path']}")["stdout"]
    assert "h1" in w.ok("browser:get_content")["html"].lower()
    assert w.call("browser:click", selector="#nothing")["code"] == 5000


def test_plugins_keep_to_themselves(configured: Callable[[dict[str, Any]], Server], worker: Workers) -> None:
    configured({"resources": {**DEMO, **OF_SANDBOXES}})
    fast, slow = worker("fast"), worker("slow")
    begun = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        several = [worker(f"s{n}") for n in range(4)]
        assert all(pool.map(lambda one: one.create("slow")["session_status"] == "active", several))
        together = time.monotonic() - begun
    assert together < 6, "workers waited for each other"
    fast.create("demo")
    assert fast.ok("demo:incr", by=2) == {"n": 2}
    assert slow.ok("demo:incr", by=5) == {"n": 5}, "a temporary session starts over"
    assert fast.ok("incr") == {"n": 3}
    boom = fast.call("demo:boom")
    assert boom["code"] == 5005 and boom["message"] == "boom" and "File" not in json.dumps(boom)
    # A call that is cancelled harms no other.
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: slow.post("execute", action="demo:sleep", params={"s": 30}, timeout=1).json()["code"], range(8)))
    assert answers == [5006] * 8
    assert fast.ok("incr") == {"n": 4}


def test_switches_for_clients_of_the_original(configured: Callable[[dict[str, Any]], Server], worker: Workers) -> None:
    w = worker()
    ask = {"worker_id": w.name, "action": "nope"}
    original = {"x-worker-id": w.name, "user-agent": "python-httpx/0.28.1"}
    answer = w.http.post("/api/v1/execute", json=ask, headers=original)
    assert answer.headers.get("connection") == "close" and answer.status_code == 400
    assert w.http.post("/api/v1/execute", json=ask, headers={"user-agent": "other"}).headers.get("connection") != "close"
    configured({"resources": OF_SANDBOXES, "arenite": {"failures_as_200": True, "connection_close": True}})
    answer = worker("two").post("execute", action="nope")
    assert answer.status_code == 200 and answer.json()["code"] == 4002
    assert answer.headers["connection"] == "close"
