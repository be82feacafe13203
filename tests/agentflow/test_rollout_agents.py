"""The example agents, and `arenite rollout run` with them, against fakes: of AgentFlow's routes, and of a model's endpoint.

The fake server runs commands here, without any sandbox: what is tested are the agents and the runner.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent
AGENTS = REPOSITORY / "examples/agents"
EX_TEMPFAIL = 75

TOOLS = [
    ("bash:run", "bash", {"command": {"type": "string"}}),
    ("code:execute", "code", {"code": {"type": "string"}, "language": {"type": "string"}}),
]


class Fake:
    """A server that answers JSON by a function, and notes what it was asked."""

    def __init__(self) -> None:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                asked = json.loads(body) if body else None
                fake.asked.append((self.path, asked, dict(self.headers)))
                status, answer = fake.answer(self.path, asked)
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = answer

            def log_message(self, *_: Any) -> None:
                pass

        self.asked: list[tuple[str, Any, dict[str, str]]] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, path: str, asked: Any) -> tuple[int, Any]:
        raise NotImplementedError

    def of(self, path: str) -> list[Any]:
        return [asked for known, asked, _ in self.asked if known.split("?")[0] == path]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def envelope(data: Any, code: int = 0, message: str = "success") -> dict[str, Any]:
    meta = {"tool": "?", "execution_time_ms": 1.0, "resource_type": None, "session_id": None, "trace_id": "?"}
    return {"code": code, "message": message, "data": data, "meta": meta}


class FakeAgentFlow(Fake):
    is_busy = False

    def answer(self, path: str, asked: Any) -> tuple[int, Any]:
        if self.is_busy and path.startswith("/api"):
            return 429, {"error": "too much"}
        match path:
            case "/health":
                return 200, {"status": "healthy", "timestamp": "2026-01-01T00:00:00.000000"}
            case "/api/v1/tools":
                tools = [
                    {"name": name.split(":")[1], "full_name": name, "resource_type": kind, "stateless": False}
                    for name, kind, _ in TOOLS
                ]
                return 200, {"tools": tools, "count": len(tools)}
            case "/api/v1/tools?format=openai":
                functions = [
                    {"name": name.replace(":", "-"), "parameters": {"type": "object", "properties": fields}}
                    for name, _, fields in TOOLS
                ]
                return 200, {"tools": [{"type": "function", "function": function} for function in functions]}
            case "/api/v1/session/create":
                return 200, envelope({"session_id": "s", "session_status": "active", "error": None})
            case "/api/v1/worker/disconnect":
                return 200, envelope({"worker_id": asked["worker_id"], "sessions_cleaned": 1})
            case "/api/v1/execute":
                return self.execute(asked["action"], asked["params"])
        return 404, {"detail": "Not Found"}

    def execute(self, action: str, params: dict[str, Any]) -> tuple[int, Any]:
        if action == "bash:run":
            command = ["sh", "-c", params["command"]]
        elif action == "code:execute":
            command = [sys.executable, "-c", params["code"]]
        else:
            return 400, envelope(None, 4002, f"Tool not found: {action}")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return 200, envelope({"stdout": done.stdout, "stderr": done.stderr, "return_code": done.returncode})


class FakeModel(Fake):
    """Says what it was given to say, one message for each question."""

    def __init__(self, *messages: dict[str, Any], failures: tuple[int, ...] = ()) -> None:
        self.messages = list(messages)
        self.failures = list(failures)
        super().__init__()

    def answer(self, path: str, asked: Any) -> tuple[int, Any]:
        assert path == "/v1/chat/completions"
        if self.failures:
            return self.failures.pop(0), {"error": {"message": "no"}}
        return 200, {"choices": [{"message": {"role": "assistant", **self.messages.pop(0)}}]}


@pytest.fixture
def flow() -> Iterator[FakeAgentFlow]:
    fake = FakeAgentFlow()
    yield fake
    fake.close()


def run_agent(
    name: str, task: dict[str, Any], server: str, directory: Path, *arguments: str, **environment: str
) -> tuple[int, Any, str]:
    """Exit code, result and stderr."""
    result = directory / "result.json"
    known = {"ARENITE_SERVER": server, "ARENITE_WORKER_ID": "w-1", "ARENITE_TASK_ID": str(task["id"])}
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "ARENITE_"))}
    done = subprocess.run(
        [sys.executable, str(AGENTS / name), *arguments],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        check=False,
        env={**inherited, "ARENITE_RESULT": str(result), "NO_PROXY": "127.0.0.1", **known, **environment},
    )
    return done.returncode, json.loads(result.read_text()) if result.exists() else None, done.stderr


def example_tasks() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (AGENTS / "tasks.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("task", example_tasks(), ids=lambda task: task["id"])
def test_the_scripted_agent_solves_the_example_tasks(task: dict[str, Any], flow: FakeAgentFlow, tmp_path: Path) -> None:
    code, result, stderr = run_agent("scripted.py", task, flow.url, tmp_path)
    assert code == 0, stderr
    assert result["success"] is (task["id"] != "wrong"), result
    for asked in flow.of("/api/v1/execute"):
        assert (asked["worker_id"], asked["task_id"]) == ("w-1", task["id"])
    # A session for each kind of tools, made once.
    kinds = [asked["resource_type"] for asked in flow.of("/api/v1/session/create")]
    assert kinds == [task["steps"][0]["action"].split(":")[0]]


def test_the_scripted_agent_knows_whose_fault_it_is(flow: FakeAgentFlow, tmp_path: Path) -> None:
    task = {"id": "x", "steps": [{"action": "bash:nothing", "params": {}}]}
    code, result, _ = run_agent("scripted.py", task, flow.url, tmp_path)
    assert (code, result["success"]) == (0, False)
    assert "Tool not found" in result["error"]
    flow.is_busy = True
    assert run_agent("scripted.py", task, flow.url, tmp_path)[0] == EX_TEMPFAIL
    assert run_agent("scripted.py", task, "http://127.0.0.1:9", tmp_path)[0] == EX_TEMPFAIL


def call(number: int, name: str, arguments: str) -> dict[str, Any]:
    return {"id": f"call-{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_the_model_is_answered_for_every_call_of_a_turn(flow: FakeAgentFlow, tmp_path: Path) -> None:
    calls = [
        call(1, "bash-run", '{"command": "echo one"}'),
        call(2, "bash-run", "not json"),
        call(3, "code-execute", json.dumps({"code": "print('x' * 5000)"})),
    ]
    model = FakeModel({"content": None, "tool_calls": calls}, {"content": "It is one."}, failures=(503,))
    task = {"id": "t", "question": "Which?", "answer": "one", "kwargs": {"seed_path": "/data"}}
    code, result, stderr = run_agent(
        "openai_compatible.py", task, flow.url, tmp_path, "--check", "contains", "--max-result", "1000",
        OPENAI_BASE_URL=f"{model.url}/v1", OPENAI_API_KEY="secret", OPENAI_MODEL="fake",
    )
    model.close()
    assert code == 0, stderr
    assert (result["final_answer"], result["success"], result["total_turns"]) == ("It is one.", True, 2)
    answers = {message["tool_call_id"]: message["content"] for message in result["messages"] if message["role"] == "tool"}
    assert list(answers) == ["call-1", "call-2", "call-3"]
    assert json.loads(answers["call-1"])["stdout"] == "one\n"
    assert answers["call-2"].startswith("Error: the arguments are not JSON")
    assert "characters left out" in answers["call-3"] and len(answers["call-3"]) < 1100
    assert {asked["params"]["seed_path"] for asked in flow.of("/api/v1/execute")} == {"/data"}
    assert {asked["task_id"] for asked in flow.of("/api/v1/execute")} == {"t"}
    _, asked, headers = model.asked[-1]
    assert (asked["model"], headers["Authorization"]) == ("fake", "Bearer secret")
    assert [tool["function"]["name"] for tool in asked["tools"]] == ["bash-run", "code-execute"]


def test_a_model_that_never_ends_and_one_that_is_not_there(flow: FakeAgentFlow, tmp_path: Path) -> None:
    turn = {"content": None, "tool_calls": [call(1, "bash-run", '{"command": "true"}')]}
    model = FakeModel(*[turn] * 3)
    task = {"id": "t", "question": "?"}
    code, result, _ = run_agent(
        "openai_compatible.py", task, flow.url, tmp_path, "--max-turns", "3", OPENAI_BASE_URL=f"{model.url}/v1"
    )
    assert (code, result["success"], result["error"]) == (0, False, "no answer within 3 turns")
    model.failures = [401]
    code, _, stderr = run_agent("openai_compatible.py", task, flow.url, tmp_path, OPENAI_BASE_URL=f"{model.url}/v1")
    model.close()
    assert code == EX_TEMPFAIL, stderr


def test_the_runner_runs_the_scripted_agent(flow: FakeAgentFlow, tmp_path: Path) -> None:
    from arenite_server import binary

    program = binary()
    out = tmp_path / "out"
    agent = f"{sys.executable} {AGENTS / 'scripted.py'}"
    command = [program, "rollout", "run", AGENTS / "tasks.jsonl", "--agent", agent, "--out", out, "--server", flow.url, "--json"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ARENITE_")}
    environment["NO_PROXY"] = "127.0.0.1"
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["by_status"] == {"success": 4, "agent": 1}
    assert summary == {**json.loads((out / "summary.json").read_text()), "out": str(out)}
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert [row["task_id"] for row in rows] == [task["id"] for task in example_tasks()]
    assert [row["task"] for row in rows] == example_tasks()
    disconnected = {asked["worker_id"] for asked in flow.of("/api/v1/worker/disconnect")}
    assert {row["worker_id"] for row in rows} <= disconnected
    assert "no records of workers" in done.stderr

    # Again: nothing is left to run.
    calls = len(flow.of("/api/v1/execute"))
    assert subprocess.run(command, capture_output=True, check=False, env=environment).returncode == 0
    assert len(flow.of("/api/v1/execute")) == calls
