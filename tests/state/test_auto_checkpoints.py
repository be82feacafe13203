"""Automatic checkpoints: one around each step that changes the disk, and none around others."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from commands import run
from sandboxes import LiveSandbox

from state.test_states import TREE, Disk, name
from waiting import until

HASH = re.compile("[0-9a-f]{64}")


class AutoDisk(Disk):
    """A sandbox with automatic checkpoints, and its steps."""

    def steps(self) -> list[dict[str, Any]]:
        steps: list[dict[str, Any]] = self.call("GET", f"{self.path}/steps", limit=1000)["steps"]
        return steps

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.steps()[-1]["state"]
        return state

    def step(self, command: str) -> dict[str, Any]:
        self.sandbox.output(command)
        return self.state()

    def checkpoints(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.history()["checkpoints"]
        return found


@pytest.fixture
def auto(sandbox: Callable[..., LiveSandbox]) -> AutoDisk:
    made = AutoDisk(sandbox(image="code", checkpoint="auto"))
    made.step("mkdir -p /home/gem/tree")
    return made


def test_each_step_has_a_hash_and_whether_it_changed_anything(auto: AutoDisk) -> None:
    wrote = auto.step("echo 1 >tree/a")
    assert wrote["changed"] and wrote["after"] > wrote["before"] and HASH.fullmatch(wrote["hash"])
    kept = len(auto.checkpoints())
    for command in ("true", "cat tree/a", "ls /usr/bin >/dev/null", "chmod u+x tree/a && chmod u-x tree/a", "echo 1 >tree/a"):
        state = auto.step(command)
        assert (state["changed"], state["hash"]) == (False, wrote["hash"]), command
    # Only the last two touched a file: their times differ.
    assert len(auto.checkpoints()) <= kept + 2
    xattr = "python3 -c \"import os; os.setxattr('tree/a', 'user.x', b'y')\""
    for command in ("echo 2 >tree/a", "chmod 600 tree/a", xattr, "mv tree/a tree/b", "rm tree/b"):
        assert auto.step(command)["changed"], command
    back = auto.step("echo 1 >tree/a")
    assert back["hash"] == wrote["hash"], "equal content has an equal hash, however it became so"


def test_reading_takes_no_checkpoint(auto: AutoDisk) -> None:
    auto.step("echo 1 >tree/a")
    before = auto.checkpoints()
    auto.sandbox.http.post("/v1/file/read", json={"file": "/home/gem/tree/a"}).raise_for_status()
    assert "state" not in auto.steps()[-1]
    for _ in range(5):
        auto.step("cat tree/a")
    assert auto.checkpoints() == before


def test_every_step_can_be_taken_back(auto: AutoDisk) -> None:
    known: list[tuple[int, str, str]] = []
    for round in range(4):
        auto.mutate(round, 50)
        state = auto.state()
        known.append((state["after"], state["hash"], auto.tree()))
    assert len({digest for _, digest, _ in known}) == 4
    for number, digest, tree in [known[i] for i in (2, 0, 3, 1)]:
        auto.roll_back(number)
        assert auto.tree() == tree
        state = auto.step("true")
        assert (state["hash"], state["changed"]) == (digest, False)


def test_files_written_by_the_api_count(auto: AutoDisk) -> None:
    before = auto.state()["hash"]
    auto.sandbox.http.post("/v1/file/write", json={"file": "/home/gem/tree/w", "content": "x"}).raise_for_status()
    state = auto.state()
    assert state["changed"] and state["hash"] != before
    assert auto.step("rm tree/w")["hash"] == before


def test_what_runs_beside_steps_is_sealed_before_the_next(auto: AutoDisk) -> None:
    auto.step("nohup sh -c 'sleep 0.5; echo late >tree/late; touch tree/done; sleep 1000' >/dev/null 2>&1 & true")
    # Reading is no step that seals.
    until(lambda: "done" in auto.sandbox.http.post("/v1/file/list", json={"path": "/home/gem/tree"}).text)
    state = auto.step("rm tree/late")
    before = next(found for found in auto.checkpoints() if found["number"] == state["before"])
    assert before["auto"] and state["changed"]
    auto.roll_back(state["before"])
    assert auto.sandbox.output("cat tree/late") == "late"


def test_the_command_line_and_the_hub_are_steps_too(auto: AutoDisk, server: Any) -> None:
    sandbox = auto.sandbox.name
    assert run(server, "exec", sandbox, "--", "sh", "-c", "sleep 1; echo 1 >/home/gem/tree/cli").returncode == 0
    assert auto.state()["changed"]
    rows = run(server, "history", sandbox).stdout
    assert "auto" in rows and auto.state()["hash"][:12] in rows
    made = name()
    done = run(server, "create", made, "--image", "base", "--auto-checkpoint", "--json")
    assert json.loads(done.stdout)["spec"]["checkpoint"] == "auto", done.stderr
    assert run(server, "rm", made).returncode == 0


def test_steps_at_once_are_all_sealed(auto: AutoDisk) -> None:
    def write(number: int) -> None:
        auto.sandbox.output(f"echo {number} >tree/at-once-{number}")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    states = [step["state"] for step in auto.steps()[-8:]]
    assert all(state["after"] >= state["before"] for state in states)
    tree = auto.tree()
    auto.sandbox.output("rm -r tree")
    auto.roll_back(auto.state()["before"])
    assert auto.tree() == tree


def test_forks_and_other_sandboxes_share_hashes(auto: AutoDisk, sandbox: Callable[..., LiveSandbox]) -> None:
    wrote = auto.step("echo same >tree/a")
    [fork] = auto.fork(name=name())
    try:
        child = AutoDisk(fork)
        assert child.step("true")["hash"] == wrote["hash"]
        assert child.step("echo other >tree/a")["hash"] != wrote["hash"]
    finally:
        fork.delete()
    other = AutoDisk(sandbox(image="code", checkpoint="auto"))
    assert other.step("mkdir -p /home/gem/tree; echo same >tree/a")["hash"] == wrote["hash"]


def test_hashes_survive_a_restart_of_the_server(auto: AutoDisk, server: Any) -> None:
    wrote = auto.step("echo 1 >tree/a")
    server.restart()
    state = auto.step("true")
    assert (state["hash"], state["changed"]) == (wrote["hash"], False)
    tree = auto.sandbox.output("python3 -c \"$TREE\" /home/gem/tree", env={"TREE": TREE})
    auto.step("rm tree/a")
    auto.roll_back(auto.state()["before"])
    assert auto.tree() == tree


def test_bad_values_are_refused(auto: AutoDisk) -> None:
    auto.call("POST", "/api/v2/sandboxes", 400, image="base", checkpoint="sometimes")
