"""Nodes of a cluster: servers over one Postgres."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from threading import Event, Thread

from arenite_server import Server
from commands import run
from postgres import Postgres
from sandboxes import LiveSandbox
from small import SmallServer, tiny_image, within

NAMES = ("red", "green", "blue")


@contextmanager
def nodes_of(
    postgres: Postgres, own_server: Callable[..., Server], args: dict[str, tuple[str, ...]] | None = None
) -> Iterator[dict[str, SmallServer]]:
    """Three nodes with the image `tiny`, each with its own further arguments."""
    made: dict[str, SmallServer] = {}
    try:
        start_all(postgres, own_server, args or {}, made)
        yield made
    finally:
        for server in made.values():
            if server.process is None:
                server.start()
            server.delete_all_sandboxes()


def start_all(postgres: Postgres, own_server: Callable[..., Server], args: dict[str, tuple[str, ...]], made: dict[str, SmallServer]) -> None:
    for name in NAMES:
        own = ("--default-image", "tiny", "--node", name, "--node-listen", "127.0.0.1:0", *args.get(name, ()))
        server = own_server(kind=SmallServer, args=own)
        if "--prepared-slots" in own:
            # Instead of what all servers of these tests have.
            at = server.args.index("--prepared-slots")
            server.args = (*server.args[:at], *server.args[at + 2 :])
        server.environment = {"ARENITE_STORE": postgres.url}
        server.start()
        tiny_image(server.data_dir / "pool")
        made[name] = server
    until_all_have_the_image(postgres)


def until_all_have_the_image(postgres: Postgres) -> None:
    """Until then, creates go only to the nodes that have said it."""
    listed = "SELECT count(*) FROM nodes WHERE images LIKE '%tiny%'"
    within(10, "all nodes say that they have the image", lambda: postgres.sql(listed).strip() == str(len(NAMES)))
    until_all_renew(postgres)


def until_all_renew(postgres: Postgres) -> None:
    """Waits until each node that is up knows what the database says now."""
    before = json.loads(postgres.sql("SELECT json_object_agg(name, renewals) FROM nodes WHERE state = 'up'"))
    behind = " OR ".join(f"(name = '{name}' AND renewals < {number + 2})" for name, number in before.items())
    within(10, "all nodes renew their leases", lambda: postgres.sql(f"SELECT count(*) FROM nodes WHERE {behind}").strip() == "0")


def states(node: Server) -> dict[str, str]:
    listed = run(node, "node", "ls", "--json")
    assert listed.returncode == 0, listed.stderr
    return {one["name"]: one["state"] for one in json.loads(listed.stdout)["nodes"]}


ALL_UP = dict.fromkeys(NAMES, "up")


class Load(Thread):
    """Calls from the time that it is created until it is stopped. Counts them, and keeps what failed."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.call, self.ended, self.made, self.failed = call, Event(), 0, []
        self.start()

    def run(self) -> None:
        while not self.ended.wait(0.02):
            self.made += 1
            try:
                self.call()
            except Exception as error:  # noqa: BLE001
                self.failed.append(repr(error))

    def stop(self) -> None:
        self.ended.set()
        self.join()
        assert self.made > 0 and self.failed == [], (self.made, self.failed)


def calls(boxes: list[LiveSandbox]) -> Load:
    """Calls sandboxes, one after the other."""
    each = cycle(boxes)

    def call() -> None:
        assert next(each).output("echo here") == "here"

    return Load(call)


def owned(postgres: Postgres) -> dict[str, list[str]]:
    """The names of each node's sandboxes."""
    found: dict[str, list[str]] = {name: [] for name in NAMES}
    for line in postgres.sql("SELECT node, name FROM sandboxes ORDER BY name").splitlines():
        node, name = line.split("|")
        found[node].append(name)
    return found


def create_on_all(postgres: Postgres, via: SmallServer, least: int = 2) -> dict[str, list[str]]:
    """Creates sandboxes through one node until each node has some."""
    number = 0
    while min(map(len, owned(postgres).values())) < least:
        assert number < 100, owned(postgres)
        via.create(f"box-{number}")
        number += 1
    return owned(postgres)
