"""Nodes of a cluster: three servers over one Postgres, of which one is killed, hangs, and comes back."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from threading import Event, Thread

import httpx
import pytest
from arenite_server import Server
from commands import run
from postgres import Postgres
from sandboxes import LiveSandbox
from small import SmallServer, tiny_image, within

NAMES = ("red", "green", "blue")
#: A node is given up ten seconds after its last renewal, which is noticed within two more.
GIVEN_UP_WITHIN = 15


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    postgres = Postgres()
    yield postgres
    postgres.remove()


@pytest.fixture
def nodes(postgres: Postgres, own_server: Callable[..., Server]) -> Iterator[dict[str, SmallServer]]:
    made = {}
    for name in NAMES:
        server = own_server(kind=SmallServer, args=("--default-image", "tiny", "--node", name))
        server.environment = {"ARENITE_STORE": postgres.url}
        server.start()
        tiny_image(server.data_dir / "pool")
        made[name] = server
    yield made
    for server in made.values():
        if server.process is None:
            server.start()
        server.delete_all_sandboxes()


def states(node: Server) -> dict[str, str]:
    listed = run(node, "node", "ls", "--json")
    assert listed.returncode == 0, listed.stderr
    return {one["name"]: one["state"] for one in json.loads(listed.stdout)["nodes"]}


ALL_UP = dict.fromkeys(NAMES, "up")


class Calls(Thread):
    """Calls sandboxes until it is stopped, and counts what failed."""

    def __init__(self, boxes: list[LiveSandbox]):
        super().__init__(daemon=True)
        self.boxes, self.ended, self.made, self.failed = boxes, Event(), 0, []
        self.start()

    def run(self) -> None:
        while not self.ended.is_set():
            for box in self.boxes:
                self.made += 1
                try:
                    assert box.output("echo here") == "here"
                except Exception as error:  # noqa: BLE001
                    self.failed.append(error)
            time.sleep(0.05)

    def stop(self) -> None:
        self.ended.set()
        self.join()
        assert self.made > 0 and self.failed == [], self.failed


def test_nodes_share_names_and_lose_a_killed_one_until_it_is_back(postgres: Postgres, nodes: dict[str, SmallServer]) -> None:
    red, green, blue = nodes.values()
    calls = Calls([red.create("on-red"), green.create("on-green")])
    kept = [blue.create(f"on-blue-{n}") for n in range(3)]
    for box in kept:
        box.output("echo kept > /tmp/file")
    taken = httpx.post(f"{red.url}/api/v2/sandboxes", json={"name": "on-blue-0", "image": "tiny"}, timeout=60)
    assert taken.status_code == 409, taken.text
    assert states(red) == states(blue) == ALL_UP
    shown = run(green, "node", "ls")
    assert all(name in shown.stdout for name in NAMES) and "RENEWED" in shown.stdout, shown.stdout

    blue.kill()
    begun = time.monotonic()
    within(GIVEN_UP_WITHIN, "the killed node is given up", lambda: states(red) == {**ALL_UP, "blue": "lost"})
    assert time.monotonic() - begun > 8, "a lease of ten seconds was not over"
    rows = postgres.sql("SELECT count(*), min(state), max(state), min(died) FROM sandboxes WHERE node = 'blue'")
    assert "3|lost|lost|" in rows and "node_lost" in rows, rows
    blue.start()
    assert blue.states() == {f"on-blue-{n}": "running" for n in range(3)}
    assert [box.output("cat /tmp/file") for box in kept] == ["kept"] * 3
    within(5, "it is back", lambda: states(green) == ALL_UP)

    # One that only hangs is given up, too. It ends when it sees that, and its next start takes its sandboxes over.
    assert blue.process is not None
    blue.process.send_signal(signal.SIGSTOP)
    within(GIVEN_UP_WITHIN, "the hanging node is given up", lambda: states(red)["blue"] == "lost")
    blue.process.send_signal(signal.SIGCONT)
    assert blue.process.wait(30) == 1
    blue.process = None
    assert "the cluster has given this node up" in blue.log_tail(), blue.log_tail()
    blue.start()
    assert [box.output("cat /tmp/file") for box in kept] == ["kept"] * 3
    within(5, "it is back again", lambda: states(green) == ALL_UP)

    # One that is stopped is not lost.
    assert blue.stop() == 0
    assert states(red) == {**ALL_UP, "blue": "down"}
    time.sleep(GIVEN_UP_WITHIN - 2)
    assert states(red) == {**ALL_UP, "blue": "down"}
    blue.start()
    calls.stop()


def test_a_database_that_is_away_gives_nobody_up(postgres: Postgres, nodes: dict[str, SmallServer]) -> None:
    calls = Calls([nodes[name].create(f"of-{name}") for name in NAMES])
    epochs = postgres.sql("SELECT name, epoch FROM nodes ORDER BY name")
    postgres.stop()
    time.sleep(GIVEN_UP_WITHIN)
    postgres.start()
    within(20, "all renew their leases again", lambda: _renews(postgres))
    time.sleep(5)
    calls.stop()
    assert states(nodes["red"]) == ALL_UP
    assert postgres.sql("SELECT name, epoch FROM nodes ORDER BY name") == epochs


def _renews(postgres: Postgres) -> bool:
    young = "SELECT count(*) FROM nodes WHERE renewed_at > (extract(epoch FROM now()) * 1000000 - 4000000)"
    return postgres.sql(young).strip() == str(len(NAMES))


def test_a_node_needs_a_database_and_a_name_that_no_other_has(
    postgres: Postgres, nodes: dict[str, SmallServer], own_server: Callable[..., Server]
) -> None:
    alone = own_server(args=("--node", "alone"))
    with pytest.raises(RuntimeError, match="nodes share a Postgres store"):
        alone.start()
    for args, reason in ((("--node", "red"), "another server is the node red"), ((), "arenite pid")):
        other = own_server(args=args)
        other.environment = {"ARENITE_STORE": postgres.url}
        with pytest.raises(RuntimeError, match=reason):
            other.start()
    assert states(nodes["red"]) == ALL_UP
