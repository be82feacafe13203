"""States of sandboxes' disks: checkpoints, rollbacks, resets, comparisons, snapshots and forks."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from typing import Any

import httpx
import loads
import pytest
from commands import run
from operation.conftest import own_server  # noqa: F401
from sandboxes import LiveSandbox
from small import tiny_image

#: Checkpoints that a disk returns to, after 200 changes each.
ROUNDS = loads.size(4, 100)

# All that a rollback has to give back, a line for each file: kind, mode, owner, size, links, times, blocks, target, xattrs, content.
TREE = r"""
import hashlib, os, stat, sys
lines = []
top = sys.argv[1]
for folder, names, files in os.walk(top):
    for name in sorted(names + files):
        path = os.path.join(folder, name)
        about = os.lstat(path)
        kind = stat.S_IFMT(about.st_mode)
        content = target = ""
        if kind == stat.S_IFREG:
            content = hashlib.sha256(open(path, "rb").read()).hexdigest()
        if kind == stat.S_IFLNK:
            target = os.readlink(path)
        xattrs = [] if kind == stat.S_IFLNK else sorted((x, os.getxattr(path, x).hex()) for x in os.listxattr(path))
        size = about.st_size if kind == stat.S_IFREG else 0
        blocks = about.st_blocks if kind == stat.S_IFREG and about.st_size >= 1 << 20 else 0
        lines.append(repr((path, kind, about.st_mode, about.st_uid, about.st_gid, size, about.st_nlink, about.st_mtime_ns, blocks,
            target, xattrs, content)))
print(hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest())
"""

# Changes a tree by chance, in all the ways that a process can.
MUTATE = r"""
import os, random, sys
top, seed, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
r = random.Random(seed)
def paths():
    return [os.path.join(folder, name) for folder, names, files in os.walk(top) for name in names + files]
for _ in range(rounds):
    known = paths()
    path = r.choice(known) if known and r.random() < 0.7 else os.path.join(top, f"n{r.randrange(10**6)}")
    try:
        match r.randrange(10):
            case 0: os.makedirs(path, exist_ok=True)
            case 1:
                with open(path, "ab") as f: f.write(r.randbytes(r.randrange(20000)))
            case 2:
                with open(path, "wb") as f: f.truncate(2 << 20); f.seek(1 << 20); f.write(b"x" * 100)
            case 3: os.remove(path)
            case 4: os.rename(path, os.path.join(top, f"r{r.randrange(10**6)}"))
            case 5: os.symlink(r.choice(["/etc/passwd", "nowhere", "../x"]), path + ".link")
            case 6: os.link(path, path + ".hard")
            case 7: os.chmod(path, r.choice([0o600, 0o755, 0o4755, 0o1777]))
            case 8: os.setxattr(path, "user.note", r.randbytes(30))
            case 9: os.utime(path, ns=(r.randrange(10**18), r.randrange(10**18)))
    except OSError:
        pass
"""

# What a comparison looks at, for each path of a tree.
WALK = r"""
import hashlib, json, os, stat, sys
found = {}
for folder, names, files in os.walk(sys.argv[1]):
    for name in names + files:
        path = os.path.join(folder, name)
        about = os.lstat(path)
        kind = stat.S_IFMT(about.st_mode)
        data = xattrs = ""
        if kind == stat.S_IFREG:
            data = hashlib.sha256(open(path, "rb").read()).hexdigest()
        if kind == stat.S_IFLNK:
            data = os.readlink(path)
        else:
            xattrs = sorted((x, os.getxattr(path, x).hex()) for x in os.listxattr(path))
        found[path] = [[kind, data], [about.st_mode, about.st_uid, about.st_gid, xattrs]]
with open("/home/gem/walk", "w") as file:
    json.dump(found, file)
"""


class Disk:
    """A sandbox with its states."""

    def __init__(self, sandbox: LiveSandbox) -> None:
        self.sandbox = sandbox
        self.path = f"/api/v2/sandboxes/{sandbox.name}"

    def call(self, method: str, path: str, status: int = 200, **body: Any) -> Any:
        content = {"json": body} if method != "GET" else {"params": body}
        answer = httpx.request(method, f"{self.sandbox.base_url}{path}", timeout=120, **content)
        assert answer.status_code == status, answer.text
        return answer.json()

    def checkpoint(self, **body: Any) -> Any:
        return self.call("POST", f"{self.path}/checkpoints", 201, **body)

    def roll_back(self, to: object, **body: Any) -> Any:
        return self.call("POST", f"{self.path}/rollback", to=to, **body)

    def history(self) -> Any:
        return self.call("GET", f"{self.path}/history")

    def diff(self, **query: Any) -> list[tuple[str, str]]:
        found = self.call("GET", f"{self.path}/diff", **query)
        return [(path["change"], path["path"]) for path in found["paths"] if path["path"].startswith("/home/gem/tree")]

    def fork(self, **body: Any) -> list[LiveSandbox]:
        forks = self.call("POST", f"{self.path}/fork", 201, **body)["sandboxes"]
        return [LiveSandbox(self.sandbox.base_url, fork["name"]) for fork in forks]

    def tree(self) -> str:
        return self.sandbox.output("python3 -c \"$TREE\" /home/gem/tree", env={"TREE": TREE})

    def mutate(self, seed: int, rounds: int = 200) -> None:
        self.sandbox.output(f"python3 -c \"$MUTATE\" /home/gem/tree {seed} {rounds}", env={"MUTATE": MUTATE})


@pytest.fixture
def disk(sandbox: Callable[..., LiveSandbox]) -> Disk:
    made = sandbox(image="code")
    made.output("mkdir -p /home/gem/tree")
    return Disk(made)


def name() -> str:
    return f"n-{uuid.uuid4().hex[:10]}"


@pytest.mark.load
@pytest.mark.timeout(60 + 10 * ROUNDS)
def test_a_rollback_gives_back_every_byte_and_attribute(disk: Disk) -> None:
    seeds = random.Random(7)
    disk.mutate(seeds.randrange(10**6))
    known: list[tuple[int, str]] = []
    for _ in range(ROUNDS):
        known.append((disk.checkpoint()["number"], disk.tree()))
        disk.mutate(seeds.randrange(10**6))
    assert len({tree for _, tree in known}) == ROUNDS
    for number, tree in seeds.sample(known, ROUNDS):
        answer = disk.roll_back(number)
        assert answer["processes"] == "restarted"
        assert answer["sandbox"]["id"] == disk.sandbox.id
        assert disk.tree() == tree, number
    history = disk.history()
    assert [checkpoint["number"] for checkpoint in history["checkpoints"]] == list(range(1, ROUNDS + 1))
    assert history["head"] in {checkpoint["id"] for checkpoint in history["checkpoints"]}


def test_a_comparison_names_what_differs_and_nothing_else(disk: Disk) -> None:
    output = disk.sandbox.output
    output("cd tree && mkdir a && echo 1 >a/same && echo 1 >a/text && echo 1 >gone && echo 1 >mode && ln -s x link")
    first = disk.checkpoint()["number"]
    assert disk.diff(before=first) == []
    output("cd tree && echo 2 >a/text && rm gone && chmod 600 mode && ln -sf y link && mkdir -p new && echo 1 >new/file && touch a/same")
    expected = [
        ("modified", "/home/gem/tree/a/text"),
        ("removed", "/home/gem/tree/gone"),
        ("modified", "/home/gem/tree/link"),
        ("attributes", "/home/gem/tree/mode"),
        ("added", "/home/gem/tree/new"),
        ("added", "/home/gem/tree/new/file"),
    ]
    assert disk.diff(before=first) == expected
    second = disk.checkpoint(note="the second")["number"]
    assert disk.diff(before=first, after=second) == expected
    assert ("added", "/home/gem/tree/a/text") in disk.diff(after=first)
    disk.roll_back(first)
    assert disk.diff(before=first) == []
    assert ("modified", "/home/gem/tree/a/text") in disk.diff(before=second)
    few = disk.call("GET", f"{disk.path}/diff", limit=2)
    assert few["truncated"] and len(few["paths"]) == 2


@pytest.mark.load
@pytest.mark.timeout(60 + 10 * ROUNDS)
def test_a_comparison_agrees_with_a_walk_of_both_trees(disk: Disk) -> None:
    def walk() -> dict[str, Any]:
        disk.sandbox.output('python3 -c "$WALK" /home/gem/tree', env={"WALK": WALK})
        answer = disk.sandbox.http.get("/v1/file/download", params={"path": "/home/gem/walk"}).raise_for_status()
        return dict(answer.json())

    seeds = random.Random(8)
    disk.mutate(seeds.randrange(10**6))
    trees = {disk.checkpoint()["number"]: walk()}
    for _ in range(ROUNDS):
        disk.mutate(seeds.randrange(10**6))
        number = disk.checkpoint()["number"]
        trees[number] = walk()
        # The one before, and any.
        for earlier in {number - 1, seeds.choice(sorted(trees))}:
            before, after = trees[earlier], trees[number]
            expected = [("added", path) for path in after.keys() - before.keys()]
            expected += [("removed", path) for path in before.keys() - after.keys()]
            for path in before.keys() & after.keys():
                if before[path] != after[path]:
                    expected.append(("attributes" if before[path][0] == after[path][0] else "modified", path))
            assert expected or earlier == number
            found = disk.diff(before=earlier, after=number, limit=10000)
            assert sorted(found) == sorted(expected), (earlier, number)


def test_a_rollback_ends_processes_and_says_which(disk: Disk) -> None:
    sandbox = disk.sandbox
    sandbox.output("nohup sleep 1000 >/dev/null 2>&1 & echo started")
    session = sandbox.client.shell.create_session().data.session_id
    disk.checkpoint()
    sandbox.output("echo lost >tree/lost")
    assert "sleep" in disk.roll_back(1)["ended"]
    assert sandbox.bash("pgrep -x sleep").exit_code == 1
    assert sandbox.bash("ls tree/lost").exit_code != 0
    answer = sandbox.http.post("/v1/shell/view", json={"id": session})
    assert answer.status_code == 404 or not answer.json()["success"], answer.text
    assert disk.roll_back(1, processes="end")["processes"] == "ended"
    assert sandbox.output("echo well") == "well"


def test_a_reset_leaves_nothing_of_before(disk: Disk) -> None:
    disk.sandbox.output("echo x >tree/x; echo y | sudo tee /etc/probe >/dev/null; echo z >/tmp/z; echo s >/dev/shm/s")
    disk.checkpoint()
    answer = disk.call("POST", f"{disk.path}/reset")
    assert answer["sandbox"]["id"] == disk.sandbox.id
    assert not disk.sandbox.bash("ls tree /etc/probe /tmp/z /dev/shm/s").stdout
    assert disk.history()["head"] is None
    disk.roll_back(1)
    assert disk.sandbox.output("cat tree/x") == "x"


def test_a_snapshot_outlives_its_sandbox(disk: Disk, sandbox: Callable[..., LiveSandbox]) -> None:
    called = name()
    disk.mutate(3)
    tree = disk.tree()
    made = disk.call("POST", "/api/v2/snapshots", 201, name=called, sandbox=disk.sandbox.name, labels={"a": "b"})
    assert (made["image"], made["labels"]) == ("code", {"a": "b"})
    disk.call("POST", "/api/v2/snapshots", 409, name=called, sandbox=disk.sandbox.name)
    disk.sandbox.delete()
    first = Disk(sandbox(labels={}, snapshot=called))
    assert first.tree() == tree
    first.mutate(4)
    second = Disk(sandbox(labels={}, snapshot=called))
    assert second.tree() == tree
    first.call("DELETE", f"/api/v2/snapshots/{called}")
    first.call("GET", f"/api/v2/snapshots/{called}", 404)
    first.call("POST", f"{first.path}/reset")
    assert first.tree() == tree, "the beginning is kept for as long as a sandbox needs it"


def test_forks_have_the_disk_and_nothing_else_in_common(disk: Disk) -> None:
    disk.mutate(5)
    tree = disk.tree()
    forks = [Disk(fork) for fork in disk.fork(count=3, name=name(), env={"WHO": "fork"}, labels={"kind": "fork"})]
    try:
        assert {fork.tree() for fork in forks} == {tree}
        for number, fork in enumerate(forks):
            details = fork.sandbox.details()
            assert (details["forked_from"], details["spec"]["labels"]["kind"]) == (disk.sandbox.id, "fork")
            assert fork.sandbox.output("echo $WHO; hostname").split() == ["fork", fork.sandbox.name]
            fork.sandbox.output(f"echo {number} >tree/own")
        assert [fork.sandbox.output("cat tree/own") for fork in forks] == ["0", "1", "2"]
        assert disk.tree() == tree
        second = Disk(forks[0].fork()[0])
        assert second.sandbox.output("cat tree/own") == "0"
        second.sandbox.delete()
    finally:
        for fork in forks:
            fork.sandbox.delete()


def test_states_survive_a_restart_of_the_server(disk: Disk, server: Any) -> None:
    called = name()
    disk.sandbox.output("echo 1 >tree/x")
    disk.checkpoint(note="one")
    disk.sandbox.output("echo 2 >tree/x")
    disk.roll_back(1)
    disk.call("POST", "/api/v2/snapshots", 201, name=called, sandbox=disk.sandbox.name)
    server.restart()
    assert disk.sandbox.output("cat tree/x") == "1", "it runs in a slot with another id, and is found"
    disk.sandbox.output("echo 3 >tree/x")
    disk.roll_back(1)
    assert disk.sandbox.output("cat tree/x") == "1"
    disk.call("DELETE", f"/api/v2/snapshots/{called}")
    assert disk.call("DELETE", f"{disk.path}/checkpoints/1")["deleted"]
    assert disk.history()["checkpoints"] == []


def test_a_lost_store_loses_no_snapshot(own_server: Callable[..., Any]) -> None:  # noqa: F811
    server = own_server(args=("--default-image", "tiny"))
    server.start()
    tiny_image(server.data_dir / "pool")

    def call(method: str, path: str, **body: Any) -> Any:
        return httpx.request(method, f"{server.url}{path}", timeout=60, **({"json": body} if body else {})).raise_for_status().json()

    call("POST", "/api/v2/sandboxes", name="one")
    for name in ("kept", "removed"):
        call("POST", "/api/v2/snapshots", name=name, sandbox="one", labels={"a": "b"})
    call("DELETE", "/api/v2/snapshots/removed")
    before = call("GET", "/api/v2/snapshots")["snapshots"]
    server.stop()
    for file in server.data_dir.glob("control.sqlite*"):
        file.unlink()
    server.start()
    assert call("GET", "/api/v2/snapshots")["snapshots"] == before and [one["name"] for one in before] == ["kept"]
    copy = call("POST", "/api/v2/sandboxes", snapshot="kept")["name"]
    for name in ("one", copy):
        call("DELETE", f"/api/v2/sandboxes/{name}")


def test_paused_and_dead_sandboxes_have_states_too(disk: Disk) -> None:
    disk.sandbox.output("echo 1 >tree/x")
    disk.call("POST", f"{disk.path}/pause")
    assert disk.checkpoint()["frozen_ms"] == 0
    assert disk.sandbox.details()["state"] == "paused"
    assert disk.roll_back(1)["sandbox"]["state"] == "running"
    assert disk.sandbox.output("cat tree/x") == "1"


BAD = [
    ("POST", "rollback", {}, 400),
    ("POST", "rollback", {"to": "never"}, 400),
    ("POST", "rollback", {"to": "current"}, 400),
    ("POST", "rollback", {"to": 7}, 404),
    ("POST", "rollback", {"to": "d00000000000"}, 404),
    ("POST", "rollback", {"to": "beginning", "processes": "stay"}, 400),
    ("POST", "rollback", {"to": "beginning", "processes": "keep"}, 409),
    ("POST", "reset", {"snapshot": "none"}, 404),
    ("POST", "checkpoints", {"note": "x" * 1001}, 400),
    ("POST", "checkpoints", {"other": 1}, 400),
    ("DELETE", "checkpoints/1", {}, 404),
    ("DELETE", "checkpoints/beginning", {}, 400),
    ("GET", "diff", {"before": "x"}, 400),
    ("GET", "diff", {"limit": 0}, 400),
    ("GET", "diff", {"other": 0}, 400),
    ("POST", "fork", {"count": 0}, 400),
    ("POST", "fork", {"count": 101}, 400),
    ("POST", "fork", {"count": 2, "min": 3}, 400),
    ("POST", "fork", {"image": "base"}, 400),
]


def test_bad_requests_are_refused_and_change_nothing(disk: Disk) -> None:
    disk.sandbox.output("echo 1 >tree/x")
    for method, path, body, status in BAD:
        disk.call(method, f"{disk.path}/{path}", status, **body)
    disk.call("POST", "/api/v2/snapshots", 400, name="Not A Name", sandbox=disk.sandbox.name)
    disk.call("POST", "/api/v2/snapshots", 404, name=name(), sandbox=name())
    disk.call("POST", "/api/v2/sandboxes", 404, snapshot=name())
    assert disk.sandbox.output("cat tree/x") == "1"
    assert disk.history()["checkpoints"] == []


def test_the_command_line_does_all_of_it(disk: Disk, server: Any) -> None:
    sandbox, called = disk.sandbox.name, name()

    def command(*words: str) -> str:
        done = run(server, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert command("checkpoint", sandbox, "--note", "first") == "1\n"
    disk.sandbox.output("echo 1 >tree/x")
    assert "+ /home/gem/tree/x" in command("diff", sandbox, "1")
    assert "first" in command("history", sandbox)
    assert command("rollback", sandbox, "1") == f"{sandbox}\n"
    assert disk.sandbox.bash("ls tree/x").exit_code != 0
    assert command("snapshot", "create", sandbox, called) == f"{called}\n"
    assert called in command("snapshot", "ls")
    assert json.loads(command("snapshot", "inspect", called))["sandbox"] == sandbox
    copy = name()
    assert command("create", copy, "--snapshot", called) == f"{copy}\n"
    forks = json.loads(command("fork", copy, "--count", "2", "--json"))["sandboxes"]
    command("rm", copy, *[fork["name"] for fork in forks])
    assert command("reset", sandbox) == f"{sandbox}\n"
    assert command("snapshot", "rm", called) == f"{called}\n"
    assert "arenite history" in run(server, "rollback", sandbox, "9").stderr
