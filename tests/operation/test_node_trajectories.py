"""Trajectories of a cluster: any node lists and reads those of all, also when one is down, hangs, or is lost."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server
from commands import run
from nodes import NAMES, nodes_of
from objects import Directory
from postgres import Postgres
from sandboxes import LiveSandbox
from small import SmallServer, events, within

#: A list waits three seconds for a node that hangs.
BOUND = 6


@pytest.fixture
def store(tmp_path: Path) -> Directory:
    return Directory(tmp_path / "store")


@pytest.fixture
def nodes(postgres: Postgres, own_server: Callable[..., Server], store: Directory) -> Iterator[dict[str, SmallServer]]:
    with nodes_of(postgres, own_server, dict.fromkeys(NAMES, ("--trajectory-store", store.url))) as made:
        yield made


def create_on_all(postgres: Postgres, via: SmallServer, prefix: str = "box") -> dict[str, LiveSandbox]:
    """A sandbox of each node."""
    found: dict[str, LiveSandbox] = {}
    number = 0
    while len(found) < len(NAMES):
        assert number < 100, found
        box = via.create(f"{prefix}-{number}")
        node = postgres.sql(f"SELECT node FROM sandboxes WHERE name = '{box.name}'").strip()
        found.setdefault(node, box)
        number += 1
    return found


def page(node: Server, **query: str) -> dict[str, Any]:
    begun = time.monotonic()
    found = httpx.get(f"{node.url}/api/v1/trajectories", params=query, timeout=30).raise_for_status().json()
    assert time.monotonic() - begun < BOUND
    return found


def listed(node: Server, limit: int = 1000, **query: str) -> list[str]:
    ids, cursor = [], None
    while cursor != "":
        found = page(node, limit=str(limit), **query, **({"cursor": cursor} if cursor else {}))
        ids += [one["trajectory"] for one in found["trajectories"]]
        cursor = found["next_cursor"] or ""
    return ids


def read(node: Server, path: str) -> httpx.Response:
    return httpx.get(f"{node.url}/api/v1/trajectories/{path}", timeout=30)


def test_any_node_lists_and_reads_the_trajectories_of_all(postgres: Postgres, nodes: dict[str, SmallServer]) -> None:
    red, green, blue = nodes.values()
    boxes = create_on_all(postgres, red)
    for name, box in boxes.items():
        assert box.output(f"echo on {name}") == f"on {name}"
        body = os.urandom(50_000)
        box.http.post("/v1/file/upload", files={"file": ("data", body)}, data={"path": "/tmp/data"}).raise_for_status()
        assert box.http.get("/v1/file/download", params={"path": "/tmp/data"}).content == body
    # A worker's trajectory is on the node that was called, and no sandbox's row says where. A refused call is a step, too.
    call = {"worker_id": "solver", "action": "bash:run", "params": {"command": "true"}}
    httpx.post(f"{blue.url}/api/v1/execute", json=call, timeout=60)
    all_of_them = [listed(node) for node in nodes.values()]
    assert all_of_them[0] == all_of_them[1] == all_of_them[2]
    assert {box.id for box in boxes.values()} < set(all_of_them[0]) and any(one.startswith("w-solver") for one in all_of_them[0])
    for limit in (1, 2, 3):
        assert listed(green, limit) == all_of_them[0], "pages have each once, in order"
    assert listed(green, worker="solver") == [one for one in all_of_them[0] if one.startswith("w-")]
    assert "warnings" not in page(red)

    for identity in all_of_them[0]:
        for path in ("", "/steps?limit=2", "/export?format=jsonl&origin=all", "/sessions", "/verify", "/steps/1/arguments"):
            answers = [read(node, identity + path) for node in nodes.values()]
            assert len({(answer.status_code, answer.content) for answer in answers}) == 1, (identity, path)
            assert answers[0].status_code == 200 or path.endswith("arguments"), answers[0].text
    far = boxes["blue"].id
    [digest, *_] = re.findall(r'"blake3":"([0-9a-f]{64})"', read(red, far).text)
    assert read(red, f"{far}/blobs/{digest}").content == read(blue, f"{far}/blobs/{digest}").content
    assert read(red, "sabcdefghijk").status_code == 404 and read(red, "a b").status_code == 400
    shown = run(green, "trajectory", "show", boxes["blue"].name)
    assert shown.returncode == 0 and "on blue" in shown.stdout, shown
    assert "all as written" in run(green, "trajectory", "verify", "--all").stdout
    # A live one is followed through another node.
    with httpx.stream("GET", f"{red.url}/api/v1/trajectories/{far}", params={"follow": "true"}, timeout=30) as stream:
        boxes["blue"].output("echo followed")
        assert any(name == "step" and "followed" in str(data) for name, data in events(stream))


def test_a_node_that_does_not_answer_is_named_and_holds_nothing_up(
    postgres: Postgres, nodes: dict[str, SmallServer], store: Directory
) -> None:
    red, green, blue = nodes.values()
    boxes = create_on_all(postgres, red)
    for box in boxes.values():
        box.output("echo here")
    over = boxes["blue"].id
    live = create_on_all(postgres, green, "late")["blue"]
    live.output("echo here")
    assert boxes["blue"].delete().status_code == 200
    within(30, "it is archived", lambda: any(name.endswith(over) for name in store.names("index")))
    before = listed(red)
    assert before.count(over) == 1 and live.id in before
    exported = read(red, f"{over}/export").content

    assert blue.process is not None
    blue.process.send_signal(signal.SIGSTOP)
    try:
        found = page(red)
        assert len(found["warnings"]) == 1 and "blue" in found["warnings"][0], found
        ids = [one["trajectory"] for one in found["trajectories"]]
        assert over in ids and live.id not in ids and boxes["green"].id in ids, ids
        begun = time.monotonic()
        refused = read(green, live.id)
        assert refused.status_code == 404 and "blue" in refused.text, refused.text
        assert read(green, over).status_code == 200
        assert time.monotonic() - begun < 4 * BOUND
    finally:
        blue.kill()
    within(20, "it is lost", lambda: "lost" in str(page(green).get("warnings")))
    # What has ended outlives its node, and is in the list once.
    assert listed(red).count(over) == 1 and live.id not in listed(red)
    assert read(red, f"{over}/export").content == exported
    assert "blue" in read(red, live.id).text
    blue.start()
    within(10, "it is back", lambda: "warnings" not in page(red))
    assert listed(red) == before == listed(blue)
    assert read(red, live.id).status_code == 200


def test_the_command_line_says_what_is_missing(postgres: Postgres, nodes: dict[str, SmallServer]) -> None:
    red, _, blue = nodes.values()
    red.create("box").output("true")
    assert blue.stop() == 0
    within(10, "it is down", lambda: "down" in str(page(red).get("warnings")))
    shown = run(red, "trajectory", "ls")
    assert shown.returncode == 0 and "the node blue is down" in shown.stderr, shown
