"""An agent without a model: it makes the steps that its task names, and checks the last one's output.

    arenite rollout run examples/agents/tasks.jsonl --agent "python3 $PWD/examples/agents/scripted.py" --out runs/demo

A task: {"id": "sum", "steps": [{"action": "bash:run", "params": {"command": "expr 6 '*' 7"}}], "expect": "42"}
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

# The server is on this host or near it: a proxy for the world outside would not know it.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# "Something I need failed for now": the runner tries again, and doesn't count it against the agent.
EX_TEMPFAIL = 75


class Server:
    """The few routes that an agent needs."""

    def __init__(self) -> None:
        self.base = os.environ["ARENITE_SERVER"].rstrip("/")
        self.worker = os.environ["ARENITE_WORKER_ID"]
        self.task = os.environ["ARENITE_TASK_ID"]
        self.headers = {"Content-Type": "application/json"}
        if key := os.environ.get("ARENITE_API_KEY"):
            self.headers["X-API-Key"] = key

    def post(self, path: str, body: dict[str, Any], seconds: float = 300) -> dict[str, Any]:
        """Returns the server's envelope, also of a tool that failed. Ends the agent when there is none."""
        body = {"worker_id": self.worker, "task_id": self.task, **body}
        request = urllib.request.Request(self.base + path, json.dumps(body).encode(), self.headers)
        try:
            with DIRECT.open(request, timeout=seconds) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            try:
                envelope = json.load(error)
            except ValueError:
                envelope = None
            if error.code == 429 or not isinstance(envelope, dict) or "code" not in envelope:
                give_up(f"{path}: the server answered {error.code}")
            return envelope
        except (OSError, ValueError) as error:
            give_up(f"{path}: {error}")

    def create_session(self, kind: str) -> None:
        """Makes what the calls of one kind share: without it, each has a sandbox of its own."""
        answer = self.post("/api/v1/session/create", {"resource_type": kind, "session_config": {}})
        if answer["code"] != 0:
            give_up(f"no session of {kind}: {answer['message']}")

    def execute(self, action: str, params: dict[str, Any]) -> dict[str, Any]:
        return self.post("/api/v1/execute", {"action": action, "params": params, "timeout": None})


def give_up(why: str) -> Any:
    print(why, file=sys.stderr)
    sys.exit(EX_TEMPFAIL)


def text_of(data: Any) -> str:
    """What a tool's result says."""
    if isinstance(data, dict):
        for name in ("stdout", "result", "output", "text"):
            if isinstance(data.get(name), str):
                return data[name]
    return data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)


def solve(task: dict[str, Any], server: Server) -> dict[str, Any]:
    output = ""
    sessions: set[str] = set()
    for number, step in enumerate(task.get("steps", []), start=1):
        kind = step["action"].split(":")[0]
        if kind not in sessions:
            server.create_session(kind)
            sessions.add(kind)
        answer = server.execute(step["action"], step.get("params", {}))
        if answer["code"] != 0:
            return {"success": False, "error": f"step {number}: {answer['message']}", "output": output}
        output = text_of(answer["data"])
    expected = task.get("expect")
    if expected is not None and expected not in output:
        return {"success": False, "error": f"the output lacks {expected!r}", "output": output}
    return {"success": True, "final_answer": output.strip(), "output": output}


def main() -> None:
    task = json.load(sys.stdin)
    result = solve(task, Server())
    Path(os.environ["ARENITE_RESULT"]).write_text(json.dumps(result, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
