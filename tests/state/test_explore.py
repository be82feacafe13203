"""`arenite explore`: a search with a sandbox for each branch, its result, and what it leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import binary
from commands import environment, run

# From 0, the goal is three actions away at least.
PLAN: dict[str, Any] = {
    "setup": ["echo 0 >sum"],
    "actions": ["echo $(($(cat sum) + 1)) >sum", "echo $(($(cat sum) * 3)) >sum", "echo said; exit 3"],
    "score": "s=$(cat sum); echo of $s; echo $((s > 9 ? 9 - s : s - 9))",
    "goal": 0,
    "sandbox": {"image": "base", "labels": {"own": "label"}},
}


def plan(folder: Path, **changes: Any) -> str:
    path = folder / "plan.json"
    path.write_text(json.dumps({name: value for name, value in {**PLAN, **changes}.items() if value is not None}))
    return str(path)


def explore(server: Any, *words: str) -> tuple[int, dict[str, Any]]:
    done = run(server, "explore", *words, "--json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def left(server: Any) -> list[str]:
    """What searches left on the server."""
    snapshots = httpx.get(f"{server.url}/api/v2/snapshots").json()["snapshots"]
    sandboxes = httpx.get(f"{server.url}/api/v2/sandboxes").json()["sandboxes"]
    groups = httpx.get(f"{server.url}/api/v2/groups").json()["groups"]
    names = [snapshot["name"] for snapshot in snapshots] + [group["name"] for group in groups]
    return [name for name in names if name.startswith("explore-")] + [
        sandbox["name"] for sandbox in sandboxes if "explore" in sandbox["spec"]["labels"]
    ]


def same(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """The nodes without what differs each time."""
    return [{name: value for name, value in node.items() if name != "sandbox"} for node in tree["nodes"]]


def test_a_search_finds_the_way_and_leaves_nothing(server: Any, tmp_path: Path) -> None:
    out = tmp_path / "tree.jsonl"
    code, tree = explore(server, plan(tmp_path), "--depth", "4", "--breadth", "3", "--out", str(out))
    assert (code, tree["solved"]) == (0, True)
    nodes = {node["id"]: node for node in tree["nodes"]}
    assert (tree["best"], nodes[tree["best"]]["score"]) == ("0-1-1", 0)
    # Whole levels, and no level after the one with the goal.
    assert len(nodes) == 1 + 3 + 9 + 27
    assert nodes["2"] | {"sandbox": None} == {
        "id": "2", "parent": "root", "depth": 1, "action": PLAN["actions"][2], "exit_code": 3, "output": "said", "score": -9.0,
        "error": None, "sandbox": None,
    }  # fmt: skip
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == list(nodes)
    assert left(server) == []
    code, replayed = explore(server, plan(tmp_path), "--depth", "4", "--breadth", "3", "--replay", "--parallel", "2")
    assert same(replayed) == same(tree)
    steps = httpx.get(f"{server.url}/api/v1/trajectories/{nodes['0-1-1']['sandbox']}/steps").json()["steps"]
    created = next(step for step in steps if step["arguments"] and "snapshot" in json.dumps(step["arguments"]))
    assert created["arguments"]["json"]["labels"] | {"explore": ""} == {"own": "label", "branch": "0-1-1", "explore": ""}
    assert left(server) == []


def test_a_beam_continues_the_best_and_a_missed_goal_fails(server: Any, tmp_path: Path) -> None:
    code, tree = explore(server, plan(tmp_path, goal=1), "--depth", "3", "--breadth", "2", "--beam", "1")
    assert (code, tree["solved"], len(tree["nodes"])) == (1, False, 1 + 2 + 2 + 2)
    assert run(server, "explore", plan(tmp_path, goal=None), "--depth", "1").returncode == 0


def test_a_program_can_propose_actions(server: Any, tmp_path: Path) -> None:
    program = tmp_path / "propose.py"
    program.write_text(
        "import json, sys\n"
        "asked = json.load(sys.stdin)\n"
        "way = asked['path']\n"
        "assert way[0]['action'] is None and asked['breadth'] == 2\n"
        "for step in range(3): print(f'echo {len(way)}-{step} >>said; cat said')\n"
    )
    changes = {"actions": None, "goal": None, "score": "wc -l <said"}
    code, tree = explore(server, plan(tmp_path, propose=f"python3 {program}", **changes), "--depth", "2", "--breadth", "2")
    assert code == 0
    nodes = {node["id"]: node for node in tree["nodes"]}
    assert nodes["1-0"]["output"] == "1-1\n2-0" and len(nodes) == 1 + 2 + 4
    # The root has no file to count yet.
    assert "not a number" in nodes["root"]["error"] and tree["best"] == "0-0"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": None}, "neither actions nor propose"),
        ({"propose": "true"}, "both actions and propose"),
        ({"score": None}, "a goal, and no score"),
        ({"other": 1}, "unknown field"),
        ({"sandbox": {"image": "none-of-this-name"}}, "none-of-this-name"),
        ({"sandbox": {"image": "base", "other": 1}}, "other"),
        ({"setup": ["echo why >&2; exit 3"]}, "why"),
        ({"actions": None, "propose": "exit 3"}, "proposed nothing"),
    ],
)
def test_what_can_not_work_is_refused(server: Any, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    done = run(server, "explore", plan(tmp_path, **changes))
    assert done.returncode != 0 and message in done.stderr and not done.stdout, done.stderr
    assert left(server) == []


def test_an_interrupted_search_leaves_nothing(server: Any, tmp_path: Path) -> None:
    path = plan(tmp_path, actions=["sleep 1000"])
    process = subprocess.Popen(
        [str(binary()), "explore", path], env=environment(server), stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not any("branch" in name for name in map(str, httpx.get(f"{server.url}/api/v2/sandboxes").json()["sandboxes"])):
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "stopped" in said, said
    assert left(server) == []
