"""Drains of nodes, and the placement of creates: three servers over one Postgres."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from typing import Any

import httpx
import pytest
from arenite_server import Server, binary
from commands import run
from nodes import ALL_UP, NAMES, calls, create_on_all, nodes_of, owned, states, until_all_renew
from postgres import Postgres
from sandboxes import LiveSandbox
from small import SmallServer, tiny_image, within

#: A node follows a drain at its next renewal.
FOLLOWS_WITHIN = 5


@pytest.fixture
def nodes(postgres: Postgres, own_server: Callable[..., Server]) -> Iterator[dict[str, SmallServer]]:
    args = {
        "green": ("--prepared-slots", "2", "--pool", "tiny=2", "--node-label", "zone=east", "--node-label", "disk=fast"),
        "blue": ("--node-label", "zone=west"),
    }
    with nodes_of(postgres, own_server, args) as made:
        yield made


def node(via: SmallServer, name: str) -> dict[str, Any]:
    listed = httpx.get(f"{via.url}/api/v2/nodes", timeout=30).raise_for_status().json()["nodes"]
    return next(one for one in listed if one["name"] == name)


def guests(server: SmallServer) -> int:
    """The sandboxes of a server with those of its pools, by the folders that their guests listen in."""
    return len(list((server.data_dir / "run").iterdir()))


def create(via: SmallServer, name: str, **more: object) -> httpx.Response:
    return httpx.post(f"{via.url}/api/v2/sandboxes", json={"name": name, "image": "tiny", **more}, timeout=60)


def test_a_node_that_drains_gets_no_creates_and_is_empty_at_the_deadline(
    postgres: Postgres, nodes: dict[str, SmallServer]
) -> None:
    red, green, blue = nodes.values()
    made = create_on_all(postgres, red)
    within(20, "its pool is filled", lambda: guests(green) == len(made["green"]) + 2)
    load = calls([LiveSandbox(blue.url, name) for name in made["green"]])
    drained = run(red, "node", "drain", "green")
    assert drained.returncode == 0 and "until their own ends" in drained.stderr, drained.stderr
    assert node(blue, "green")["drain"]["deadline"] is None and states(red) == ALL_UP
    assert "up, draining" in run(blue, "node", "ls").stdout
    within(FOLLOWS_WITHIN, "its pool is handed back", lambda: guests(green) == len(made["green"]))
    until_all_renew(postgres)

    # From any node, also from clients of the node itself, and for its first call of `default`.
    for via in nodes.values():
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda n, via=via: create(via, f"late-{via.port}-{n}"), range(6)))
        assert [answer.status_code for answer in answers] == [201] * 6, [answer.text for answer in answers]
        older = httpx.post(f"{via.url}/api/v1/sandbox", json={"name": f"older-{via.port}", "image": "tiny"}, timeout=60)
        assert older.status_code == 200 and older.json()["code"] == "0", older.text
    assert LiveSandbox(green.url, "default").output("echo $HOSTNAME") == "default"
    assert owned(postgres)["green"] == made["green"]
    assert guests(green) == len(made["green"]), "nothing is made ahead again"

    # The wish outlives a restart of the node, and `--wait` needs the node.
    load.stop()
    assert green.stop() == 0
    waiting = run(red, "node", "drain", "green", "--deadline", "1h", "--wait")
    assert waiting.returncode == 1 and "it is drained when its server starts" in waiting.stderr, waiting.stderr
    green.start()
    assert create(green, "after-restart").status_code == 201
    assert owned(postgres)["green"] == made["green"]
    assert LiveSandbox(red.url, made["green"][0]).output("echo here") == "here"

    # With a deadline, what is left is deleted.
    within(FOLLOWS_WITHIN, "it is up", lambda: states(red) == ALL_UP)
    seen = json.loads(postgres.sql("SELECT json_agg(name) FROM sandboxes WHERE node = 'green'"))
    begun = time.monotonic()
    waited = run(blue, "node", "drain", "green", "--deadline", "4s", "--wait")
    assert waited.returncode == 0, waited.stderr
    assert time.monotonic() - begun > 4 and f"sandboxes left: {len(seen)}\n" in waited.stderr, waited.stderr
    assert waited.stderr.endswith("node green has no sandboxes\n"), waited.stderr
    assert owned(postgres)["green"] == [] and guests(green) == 0
    assert httpx.get(f"{red.url}/api/v2/sandboxes/{seen[0]}", timeout=30).status_code == 404

    ended = run(red, "node", "uncordon", "green")
    assert ended.returncode == 0, ended.stderr
    assert node(blue, "green")["drain"] is None
    until_all_renew(postgres)
    within(20, "it is filled again", lambda: guests(green) == 2)
    # It is the emptiest.
    for number in range(20):
        red.create(f"again-{number}")
    assert owned(postgres)["green"]


def test_no_node_is_left(postgres: Postgres, nodes: dict[str, SmallServer]) -> None:
    red = nodes["red"]
    agent = red.create("above", node_selector={"zone": "east"}, child_budget={"sandboxes": 2, "cpu_millis": 8000, "memory_bytes": 8 << 30})
    for name in NAMES:
        answer = httpx.post(f"{nodes['blue'].url}/api/v2/nodes/{name}/drain", json={}, timeout=30)
        assert answer.status_code == 200 and answer.json()["drain"], answer.text
    until_all_renew(postgres)
    for via in nodes.values():
        refused = create(via, "none")
        assert (refused.status_code, refused.json()["code"]) == (503, "exhausted"), refused.text
        assert "draining" in refused.json()["detail"] and "arenite node uncordon" in refused.json()["hint"], refused.text
        assert refused.headers["retry-after"]
    assert agent.output("echo here") == "here"
    # Another one, and bad input.
    for path, body, status in (
        ("nobody/drain", {}, 404),
        ("nobody/uncordon", {}, 404),
        ("red/drain", {"deadline_seconds": -1}, 400),
        ("red/drain", {"deadline_seconds": 1 << 40}, 400),
        ("red/uncordon", {"x": 1}, 400),
    ):
        answer = httpx.post(f"{red.url}/api/v2/nodes/{path}", json=body, timeout=30)
        assert answer.status_code == status, answer.text
    missing = run(red, "node", "drain", "nobody")
    assert missing.returncode == 3 and "arenite node ls" in missing.stderr, missing.stderr
    assert run(red, "node", "uncordon", "blue").returncode == 0
    until_all_renew(postgres)
    assert create(red, "one").status_code == 201
    until_all_renew(postgres)
    assert create(nodes["green"], "two").status_code == 201
    assert owned(postgres)["blue"] == ["one", "two"]


def test_creates_are_placed_where_they_fit(postgres: Postgres, nodes: dict[str, SmallServer]) -> None:
    red, green, blue = nodes.values()
    for number in range(6):
        made = create(red, f"west-{number}", node_selector={"zone": "west"})
        assert made.status_code == 201, made.text
        made = create(blue, f"fast-{number}", node_selector={"zone": "east", "disk": "fast"})
        assert made.status_code == 201, made.text
    found = owned(postgres)
    assert found["blue"] == [f"west-{n}" for n in range(6)] and found["green"] == [f"fast-{n}" for n in range(6)], found
    nowhere = create(red, "north", node_selector={"zone": "north"})
    assert nowhere.status_code == 503 and "zone=north" in nowhere.text, nowhere.text
    assert create(red, "bad", node_selector={"zone": 1}).status_code == 400
    assert node(red, "green")["labels"] == {"zone": "east", "disk": "fast"}

    # An image that one node has.
    tiny_image(blue.data_dir / "pool", "only-blue")
    until_all_renew(postgres)
    for number, via in enumerate([red, green, blue, red, green, blue]):
        made = create(via, f"only-{number}", image="only-blue")
        assert made.status_code == 201, made.text
    assert [name for name in owned(postgres)["blue"] if name.startswith("only")] == [f"only-{n}" for n in range(6)]
    # One that no node has: the chosen one says so.
    missing = create(red, "missing", image="nowhere")
    assert missing.status_code == 404 and "nowhere" in missing.text, missing.text
    # By an interface without labels, and several at once.
    older = httpx.post(f"{red.url}/api/v1/sandbox", json={"name": "older", "image": "only-blue"}, timeout=60)
    assert older.status_code == 200, older.text
    several = create(green, "many", image="only-blue", count=3)
    assert several.status_code == 201, several.text
    assert {"older", "many-0", "many-1", "many-2"} <= set(owned(postgres)["blue"])
    # A repeat goes to the node that has begun it, though that drains by now.
    headers = {"idempotency-key": "once"}
    body = {"image": "only-blue"}
    first = httpx.post(f"{red.url}/api/v2/sandboxes", json=body, headers=headers, timeout=60)
    tiny_image(red.data_dir / "pool", "only-blue")
    assert run(red, "node", "drain", "blue").returncode == 0
    until_all_renew(postgres)
    again = httpx.post(f"{green.url}/api/v2/sandboxes", json=body, headers=headers, timeout=60)
    assert (first.status_code, again.status_code) == (201, 201), again.text
    assert first.json()["id"] == again.json()["id"] and again.headers["idempotency-replayed"] == "true"
    assert create(green, "moved", image="only-blue").status_code == 201
    assert "moved" in owned(postgres)["red"]


class Creates(Thread):
    """Creates sandboxes one after another until it is stopped."""

    def __init__(self, via: SmallServer):
        super().__init__(daemon=True)
        self.via, self.ended = via, Event()
        self.answers: list[tuple[float, httpx.Response]] = []
        self.start()

    def run(self) -> None:
        while not self.ended.is_set():
            begun = time.monotonic()
            answer = create(self.via, f"c-{len(self.answers)}")
            self.answers.append((time.monotonic() - begun, answer))

    def stop(self) -> None:
        self.ended.set()
        self.join()
        failed = [answer.text for _, answer in self.answers if answer.status_code != 201]
        assert failed == [], failed


def test_creates_go_elsewhere_when_a_node_stops_or_is_killed(postgres: Postgres, nodes: dict[str, SmallServer]) -> None:
    red, green, blue = nodes.values()
    kept = create_on_all(postgres, red, least=1)["blue"]
    creates = Creates(red)
    time.sleep(1)
    for _ in range(3):
        assert blue.stop() == 0
        assert states(red)["blue"] == "down"
        time.sleep(0.5)
        blue.start()
        time.sleep(2.5)
    creates.stop()
    slowest = max(took for took, _ in creates.answers)
    assert slowest < 4, f"a create waited {slowest:.1f} s for a node that stops"
    by_node = owned(postgres)
    assert sum(map(len, by_node.values())) >= len(creates.answers)
    assert set(kept) <= set(by_node["blue"])

    # Connections to a killed node are refused, also before the others give it up.
    blue.kill()
    answers = [create(red, f"k-{n}") for n in range(20)]
    assert [answer.status_code for answer in answers] == [201] * 20, [answer.text for answer in answers]
    assert not [name for name in owned(postgres)["blue"] if name.startswith("k-")]
    blue.start()


def test_waiting_for_a_drain_ends_with_it(nodes: dict[str, SmallServer]) -> None:
    red, green, _ = nodes.values()
    red.create("kept", node_selector={"zone": "east"})
    command = [str(binary()), "node", "drain", "green", "--wait", "--server", red.url]
    waiting = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert waiting.stderr is not None
    lines = [waiting.stderr.readline(), waiting.stderr.readline()]
    assert lines[1] == "sandboxes left: 1\n", lines
    assert run(green, "node", "uncordon", "green").returncode == 0
    assert waiting.wait(20) == 1
    assert "the drain of node green was ended" in waiting.stderr.read()
    command = [str(binary()), "node", "drain", "green", "--wait", "--server", red.url]
    waiting = subprocess.Popen(command, stderr=subprocess.PIPE)
    time.sleep(1)
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(10) != 0
    assert node(red, "green")["drain"], "leaving the command does not end the drain"
