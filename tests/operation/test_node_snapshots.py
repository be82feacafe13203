"""Snapshots of a cluster: any node creates from them, reads them, and removes them, also when the node that sealed one is down."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server
from nodes import NAMES, nodes_of, owned, until_all_renew
from postgres import Postgres
from sandboxes import LiveSandbox
from small import SmallServer, within

SNAPSHOTS = "/api/v2/snapshots"


@pytest.fixture
def nodes(postgres: Postgres, own_server: Callable[..., Server]) -> Iterator[dict[str, SmallServer]]:
    with nodes_of(postgres, own_server, {name: ("--node-label", f"name={name}") for name in NAMES}) as made:
        yield made


def call(node: Server, method: str, path: str, status: int = 200, **more: Any) -> Any:
    answer = httpx.request(method, f"{node.url}{path}", timeout=120, **more)
    assert answer.status_code == status, (method, path, answer.text)
    return answer.json()


def seal(via: SmallServer, on: str, line: str, name: str = "ready") -> None:
    """Seals a sandbox of a node, by any node. The sandbox is removed."""
    box = via.create(f"of-{name}", node_selector={"name": on})
    box.output(line)
    made = call(via, "POST", SNAPSHOTS, 201, json={"name": name, "sandbox": box.name})
    assert (made["node"], made["nodes"]) == (on, [on])
    box.delete()


def copy(via: SmallServer, on: str, box: str, status: int = 201) -> httpx.Response:
    wanted = {"name": box, "snapshot": "ready", "node_selector": {"name": on}}
    answer = httpx.post(f"{via.url}/api/v2/sandboxes", json=wanted, timeout=120)
    assert answer.status_code == status, answer.text
    return answer


def nodes_with_it(via: Server) -> list[str]:
    return call(via, "GET", f"{SNAPSHOTS}/ready")["nodes"]


def in_pool(server: Server) -> set[str]:
    """The states and the images of a server, once nothing waits to be removed."""
    within(30, "no copy is left", lambda: not list((server.data_dir / "pool/snapshots").glob("next-*")))
    return {f"{place}/{entry.name}" for place in ("snapshots", "images") for entry in (server.data_dir / "pool" / place).iterdir()}


def receiving(server: Server) -> int:
    """The bytes of an archive that arrives at a server: a file without a name."""
    sizes = [0]
    for link in Path(f"/proc/{server.pid}/fd").iterdir():
        try:
            if os.readlink(link).startswith(f"{server.data_dir}/#"):
                sizes.append(link.stat().st_size)
        except FileNotFoundError:
            pass
    return max(sizes)


def test_creates_from_a_snapshot_of_another_node(postgres: Postgres, nodes: dict[str, SmallServer]) -> None:
    red, green, blue = nodes.values()
    before = {name: in_pool(node) for name, node in nodes.items()}
    seal(green, "red", "mkdir /data; echo kept > /data/file; dd if=/dev/urandom of=/data/big bs=1M count=20 2>/dev/null; rm /etc/group")
    whole = httpx.get(f"{red.url}{SNAPSHOTS}/ready/archive", timeout=60).content
    for node in nodes.values():
        assert [one["name"] for one in call(node, "GET", SNAPSHOTS)["snapshots"]] == ["ready"]
        assert nodes_with_it(node) == ["red"]
        assert httpx.get(f"{node.url}{SNAPSHOTS}/ready/content", params={"path": "data/file"}).text == "kept\n"
        listed = call(node, "GET", f"{SNAPSHOTS}/ready/files", params={"path": "data"})["files"]
        assert [one["name"] for one in listed] == ["big", "file"]
        assert httpx.get(f"{node.url}{SNAPSHOTS}/ready/archive", timeout=60).content == whole
        call(node, "POST", SNAPSHOTS, 404, json={"name": "other", "sandbox": "nowhere"})
    # Where it is, it is not copied.
    for number in range(3):
        blue.create(f"near-{number}", image=None, snapshot="ready")
    assert owned(postgres)["red"] == ["near-0", "near-1", "near-2"] and nodes_with_it(blue) == ["red"]
    # Elsewhere, creates at once wait for one copy.
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: copy(blue, "green", f"far-{number}"), range(4)))
    assert owned(postgres)["green"] == [f"far-{number}" for number in range(4)]
    assert nodes_with_it(red) == ["red", "green"]
    assert green.log_path.read_text().count("copied a snapshot from another node") == 1
    gained = in_pool(green) - before["green"]
    assert len([one for one in gained if one.startswith("snapshots/")]) == 1, gained
    wanted = LiveSandbox(red.url, "near-0").output("sha256sum /data/*; ls /etc; stat -c '%a %U %y' /data/file")
    for number in range(4):
        assert LiveSandbox(red.url, f"far-{number}").output("sha256sum /data/*; ls /etc; stat -c '%a %U %y' /data/file") == wanted
    # A copy counts in no quota, and answers like the snapshot.
    used = {one["quota"]: one["used"] for one in call(green, "GET", "/api/v2/me")["quotas"]}
    assert used["snapshots"] == 1
    assert httpx.get(f"{green.url}{SNAPSHOTS}/ready/content", params={"path": "data/file"}).text == "kept\n"
    assert len(call(blue, "GET", SNAPSHOTS)["snapshots"]) == 1
    call(blue, "POST", SNAPSHOTS, 409, json={"name": "ready", "sandbox": "far-0"})
    # A restart keeps the copy.
    green.restart()
    until_all_renew(postgres)
    copy(red, "green", "far-4")
    assert nodes_with_it(blue) == ["red", "green"] and len(in_pool(green) - before["green"]) == len(gained)
    for node in nodes.values():
        node.delete_all_sandboxes()
    call(blue, "DELETE", f"{SNAPSHOTS}/ready")
    for name, node in nodes.items():
        call(node, "GET", f"{SNAPSHOTS}/ready", 404)
        assert call(node, "GET", SNAPSHOTS)["snapshots"] == []
        assert in_pool(node) == before[name], name
    assert postgres.sql("SELECT count(*) FROM records WHERE kind LIKE 'snapshot%'").strip() == "0"
    copy(red, "green", "late", 404)


def test_a_source_that_dies_midway_leaves_nothing(postgres: Postgres, nodes: dict[str, SmallServer]) -> None:
    red, green, blue = nodes.values()
    seal(red, "red", "dd if=/dev/urandom of=/big bs=1M count=150 2>/dev/null; echo kept > /file")
    before = in_pool(green)
    answers: list[httpx.Response] = []

    def create() -> None:
        wanted = {"name": "box", "snapshot": "ready", "node_selector": {"name": "green"}}
        answers.append(httpx.post(f"{green.url}/api/v2/sandboxes", json=wanted, timeout=120))

    waiting = threading.Thread(target=create)
    waiting.start()
    within(60, "the archive arrives", lambda: receiving(green) > 0)
    os.kill(red.pid, signal.SIGSTOP)
    assert receiving(green) < 150 << 20
    red.kill()
    waiting.join()
    assert answers[0].status_code == 502 and "red" in answers[0].json()["message"], answers[0].text
    assert in_pool(green) == before and receiving(green) == 0
    # While the only source is down, a create says so.
    assert "red" in copy(blue, "green", "box", 502).json()["message"]
    assert "red" in httpx.get(f"{blue.url}{SNAPSHOTS}/ready/content", params={"path": "file"}, timeout=60).json()["message"]
    red.start()
    until_all_renew(postgres)
    copy(blue, "green", "box")
    # Then the copy is a source, too.
    red.kill()
    copy(green, "blue", "other")
    assert LiveSandbox(blue.url, "other").output("cat /file") == "kept"
    assert nodes_with_it(green) == ["red", "blue", "green"]
    assert httpx.get(f"{blue.url}{SNAPSHOTS}/ready/content", params={"path": "file"}, timeout=60).text == "kept\n"


def test_a_removal_without_its_node_is_made_up_for(postgres: Postgres, nodes: dict[str, SmallServer]) -> None:
    red, green, blue = nodes.values()
    before = {name: in_pool(node) for name, node in nodes.items()}
    seal(red, "red", "echo kept > /file")
    for name in ("green", "blue"):
        copy(red, name, f"on-{name}")
    for node in nodes.values():
        node.delete_all_sandboxes()
    red.kill()
    blue.kill()
    within(60, "both are given up", lambda: postgres.sql("SELECT count(*) FROM nodes WHERE state = 'up'").strip() == "1")
    call(green, "DELETE", f"{SNAPSHOTS}/ready")
    assert in_pool(green) == before["green"]
    red.start()
    blue.start()
    until_all_renew(postgres)
    for name, node in nodes.items():
        call(node, "GET", f"{SNAPSHOTS}/ready", 404)
        assert in_pool(node) == before[name], name
    # The name is free.
    seal(blue, "green", "echo new > /file")
    copy(blue, "red", "again")
    assert LiveSandbox(red.url, "again").output("cat /file") == "new"


@pytest.fixture
def small_nodes(postgres: Postgres, own_server: Callable[..., Server]) -> Iterator[dict[str, SmallServer]]:
    """Nodes with room for three sandboxes each."""
    args = {name: ("--node-label", f"name={name}", "--max-sandboxes", "3") for name in NAMES}
    with nodes_of(postgres, own_server, args) as made:
        yield made


def test_forks_that_do_not_fit_go_to_other_nodes(postgres: Postgres, small_nodes: dict[str, SmallServer]) -> None:
    nodes = small_nodes
    red, green, blue = nodes.values()
    before = {name: in_pool(node) for name, node in nodes.items()}
    parent = green.create("parent", node_selector={"name": "red"}, env={"OWN": "parent"}, labels={"team": "a"})
    parent.output("echo kept > /file")
    fork = {"count": 7, "min": 7, "name": "try", "env": {"MORE": "fork"}, "labels": {"of": "fork"}}
    made = call(green, "POST", "/api/v2/sandboxes/parent/fork", 201, json=fork)
    assert sorted(one["name"] for one in made["sandboxes"]) == [f"try-{number}" for number in range(7)] and made["errors"] == []
    assert {name: len(boxes) for name, boxes in owned(postgres).items()} in (
        {"red": 3, "green": 3, "blue": 2}, {"red": 3, "green": 2, "blue": 3},
    )  # fmt: skip
    for number in range(7):
        box = LiveSandbox(blue.url, f"try-{number}")
        assert box.output("echo $OWN $MORE; cat /file; echo own > /file") == "parent fork\nkept"
        assert box.details()["spec"]["labels"] == {"team": "a", "of": "fork"} and box.details()["forked_from"] == parent.id
    assert parent.output("cat /file") == "kept"
    # Too many for all: none is left.
    call(green, "DELETE", "/api/v2/sandboxes/try-0")
    httpx.delete(f"{green.url}/api/v2/sandboxes/try-1", timeout=60)
    refused = httpx.post(f"{blue.url}/api/v2/sandboxes/parent/fork", json={"count": 5, "name": "more"}, timeout=120)
    assert refused.status_code == 429, refused.text
    assert sum(len(boxes) for boxes in owned(postgres).values()) == 6
    for node in nodes.values():
        node.delete_all_sandboxes()
    for name, node in nodes.items():
        left = {one for one in in_pool(node) - before[name] if one.startswith("snapshots/")}
        assert left == set(), (name, left)
