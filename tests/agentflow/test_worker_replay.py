"""Trajectories of workers, run again by the real command: many that come to the same, and one that does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import atif
import loads
import pytest
from arenite_server import Server
from workers import Worker

#: Each kind of task is done so often, with other numbers.
TIMES = loads.size(2, 5)
#: Deterministic tasks of several kinds.
TASKS: list[list[tuple[str, dict[str, Any]]]] = [
    [("bash:run", {"command": f"cd /tmp; N={n}; seq $N | paste -sd+ | tee sum"}), ("bash:run", {"command": "pwd; echo $N; cat sum; exit 3"})]
    for n in range(1, TIMES + 1)
] + [
    [
        ("code:write", {"file_path": f"w/{n}.py", "content": f"x = {n}\nprint(x ** 2)\n"}),
        ("code:edit", {"file_path": f"w/{n}.py", "old_string": "** 2", "new_string": "** 3"}),
        ("code:read", {"file_path": f"w/{n}.py"}),
        ("code:bash", {"command": f"python3 w/{n}.py"}),
        ("code:grep", {"pattern": "print", "path": "w"}),
        ("code:edit", {"file_path": f"w/{n}.py", "old_string": "not there", "new_string": ""}),
    ]
    for n in range(TIMES)
] + [
    [("code:execute", {"code": f"a = {n}"}), ("code:execute", {"code": "print(a * 2)\na + 1"}), ("code:execute", {"code": "1 / 0"})] for n in range(TIMES)
] + [
    [("bash:run", {"command": f"mktemp; date; echo $$; echo {n}"}), ("nope:nothing", {}), ("text2sql:list_databases", {}), ("bash:run", {})]
    for n in range(TIMES)
]


def do(worker: Worker, task: list[tuple[str, dict[str, Any]]], sessions: bool) -> None:
    if sessions:
        for kind in sorted({action.split(":")[0] for action, _ in task} & {"bash", "code"}):
            worker.create(kind)
    for action, params in task:
        worker.call(action, **params)
    worker.post("worker/disconnect")


@pytest.mark.load
@pytest.mark.timeout(600)
def test_trajectories_come_to_the_same_again(worker: Callable[..., Worker], command: Callable[..., Any]) -> None:
    workers = [worker(str(n)) for n in range(len(TASKS))]
    with ThreadPoolExecutor(4) as pool:
        # Some without a session of their own.
        list(pool.map(lambda n: do(workers[n], TASKS[n], n % 4 != 3), range(len(TASKS))))
        told = list(pool.map(lambda one: command("replay", one.name, "--json"), workers))
    for task, done in zip(TASKS, told, strict=True):
        assert done.returncode == 0, done.stdout + done.stderr
        assert json.loads(done.stdout)["replayed"] == len(task), done.stdout


def test_a_planted_change_is_found_at_its_step(worker: Callable[..., Worker], command: Callable[..., Any]) -> None:
    w = worker()
    w.create("bash")
    w.ok("bash:run", command="echo 1")
    w.ok("bash:run", command="cat /proc/sys/kernel/random/uuid | sha256sum | cut -c1-9 | tr 0-9 g-p > /tmp/x; wc -c < /tmp/x")
    w.ok("bash:run", command="cat /tmp/x")
    w.ok("bash:run", command="echo 4")
    done = command("replay", w.name, "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 1 and told["divergence"]["step"] == 3, done.stdout
    assert command("replay", w.name, "--until", "2").returncode == 0


def test_exports_of_a_worker(worker: Callable[..., Worker], command: Callable[..., Any]) -> None:
    w = worker()
    do(w, TASKS[0], True)
    (trajectory,) = [one for one in w.http.get(f"/api/v1/trajectories?worker={w.name}").json()["trajectories"]]
    found = w.http.get(f"/api/v1/trajectories/{trajectory['trajectory']}/export?format=atif")
    assert len(atif.Trajectory.model_validate_json(found.text).steps) >= 2
    messages = command("export", w.name, "--format", "openai-messages").stdout
    line = json.loads(messages.splitlines()[0])
    calls = [call for message in line["messages"] for call in message.get("tool_calls", [])]
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [params for _, params in TASKS[0]]
    assert sum(message["role"] == "tool" for message in line["messages"]) == 2
