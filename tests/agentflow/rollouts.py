"""Rollouts of the scripted agent over many tasks with the real command and server: the same with one worker and with many, and killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from arenite_server import REPOSITORY, Server, binary

AGENT = f"{sys.executable} {REPOSITORY / 'examples/agents/scripted.py'}"
#: Of a result, what every run has to come to.
SAME = ("task_id", "status", "success", "result")


def tasks(file: Path, count: int) -> None:
    """Every fifth fails, of which the agent is to blame."""

    def task(n: int) -> dict[str, Any]:
        steps = [
            {"action": "bash:run", "params": {"command": f"cd /tmp; N={n}; echo $N > n"}},
            {"action": "bash:run", "params": {"command": "echo $((N * N)) $(cat n)"}},
        ]
        return {"id": f"t{n}", "question": f"{n}?", "steps": steps, "expect": f"{n * n} {n}" if n % 5 else "never"}

    file.write_text("".join(json.dumps(task(n)) + "\n" for n in range(count)))


def command(server: Server, file: Path, out: Path, workers: int) -> list[str]:
    line = [str(binary()), "rollout", "run", str(file), "--agent", AGENT, "--workers", str(workers), "--out", str(out)]
    return [*line, "--attempts", "6", "--format", "jsonl,parquet", "--server", server.url]


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith("ARENITE_")}


def run(server: Server, file: Path, out: Path, workers: int) -> list[dict[str, Any]]:
    done = subprocess.run(command(server, file, out, workers), env=environment(), capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    return results(out)


def results(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def same(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> bool:
    pick = lambda all_of_them: [{name: one.get(name) for name in SAME} for one in all_of_them]
    return pick(a) == pick(b)


def rolled_out(server: Server, scratch: Path, count: int, workers: int) -> None:
    """All of it; `count` tasks with one worker, with `workers`, and with the runner and the server killed on the way."""
    file = scratch / "tasks.jsonl"
    tasks(file, count)
    alone = run(server, file, scratch / "alone", 1)
    assert [one["task_id"] for one in alone] == [f"t{n}" for n in range(count)]
    assert sum(one["success"] for one in alone) == count - len(range(0, count, 5))
    together = run(server, file, scratch / "together", workers)
    assert same(alone, together)

    out = scratch / "killed"
    runner = subprocess.Popen(command(server, file, out, workers), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ended(out, count // 4, runner)
    runner.kill()
    runner.wait()
    runner = subprocess.Popen(command(server, file, out, workers), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ended(out, count // 2, runner)
    server.kill()
    time.sleep(1)
    server.start()
    assert runner.wait(1800) == 0
    assert same(alone, results(out))

    loads(out, count)
    left = server.api().get("/api/v2/sandboxes").json()["sandboxes"]
    assert [one["name"] for one in left if "agentflow.worker" in one["spec"]["labels"]] == []


def ended(out: Path, wanted: int, runner: subprocess.Popen[bytes]) -> None:
    """Waits until the journal has so many ends of attempts."""
    deadline = time.monotonic() + 1200
    journal = out / "journal.jsonl"
    while time.monotonic() < deadline:
        if runner.poll() is not None:
            raise AssertionError(f"the runner ended before it was killed: {runner.returncode}")
        if journal.exists() and sum('"end"' in line for line in journal.read_text(errors="replace").splitlines()) >= wanted:
            return
        time.sleep(0.05)
    raise AssertionError("the rollout does not get on")


def loads(out: Path, count: int) -> None:
    """In pandas and in a loader of training data, which want an environment of their own: they are large."""
    import datasets
    import pandas

    frame = pandas.read_parquet(out / "results.parquet")
    assert len(frame) == count and frame["success"].sum() == count - len(range(0, count, 5))
    for name in ("results.jsonl", "trajectories.jsonl"):
        loaded = datasets.load_dataset("json", data_files=str(out / name), split="train", cache_dir=str(out / "cache"))
        assert len(loaded) == count, name
    trajectory = json.loads((out / "trajectories.jsonl").read_text().splitlines()[1])
    calls = trajectory["trajectory"]["tool_calls"]
    assert [call["tool_name"] for call in calls] == ["bash:run", "bash:run"] and calls[1]["result"]["stdout"] == "1 1\n"
