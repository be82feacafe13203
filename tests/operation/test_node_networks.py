"""Nodes of a cluster as separate hosts: each has its own network, and they reach Postgres and each other over a bridge."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from arenite_server import REPOSITORY, Server
from networks import GATEWAY, HostServer, hosts
from nodes import NAMES, Load, calls, owned, until_all_have_the_image
from postgres import Postgres
from sandboxes import LiveSandbox
from small import tiny_image, within
from workers import OF_SANDBOXES, Worker

#: A node is given up ten seconds after its last renewal, which is noticed within two more.
GIVEN_UP_WITHIN = 15
#: The build that nodes have before they are upgraded.
PREVIOUS = os.environ.get("ARENITE_TEST_PREVIOUS")
#: Sandboxes of the test of placement.
CREATES = int(os.environ.get("ARENITE_TEST_CREATES", 150))


class Nodes(dict[str, HostServer]):
    postgres: Postgres

    def owned(self) -> dict[str, list[str]]:
        """The names of each node's sandboxes."""
        return owned(self.postgres)

    def states(self) -> dict[str, str]:
        return dict(line.split("|") for line in self.postgres.sql("SELECT name, state FROM nodes").splitlines())

    def create_on_all(self, prefix: str, via: HostServer) -> dict[str, str]:
        """One sandbox on each node."""
        made: dict[str, str] = {}
        for number in range(100):
            name = f"{prefix}-{number}"
            via.create(name)
            node = next(node for node, names in self.owned().items() if name in names)
            if node in made:
                via.http_delete(name)
            made.setdefault(node, name)
            if len(made) == len(NAMES):
                return made
        raise AssertionError(made)


@pytest.fixture(scope="module")
def nodes(module_server: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    config = tmp_path_factory.mktemp("nodes") / "agentflow.json"
    config.write_text(json.dumps({"resources": {"bash": OF_SANDBOXES["bash"]}}))
    with hosts(len(NAMES)) as machines:
        made, postgres = Nodes(), Postgres(GATEWAY)
        made.postgres = postgres
        try:
            for name, host in zip(NAMES, machines):
                node = ("--node", name, "--node-listen", f"{host.address}:8902", "--agentflow-config", str(config))
                server = module_server(kind=HostServer, args=("--default-image", "tiny", *node))
                server.host = host
                server.environment = {"ARENITE_STORE": f"postgres://arenite@{GATEWAY}/postgres"}
                server.program = Path(PREVIOUS) if PREVIOUS else None
                server.start()
                tiny_image(server.data_dir / "pool", more=("mv",))
                made[name] = server
            until_all_have_the_image(postgres)
            yield made
            for server in made.values():
                if server.process is None:
                    server.start()
            made["red"].delete_all_sandboxes()
            for server in made.values():
                server.stop()
        finally:
            postgres.remove()


AGENTFLOW = """
import sys
from sandbox import Sandbox

with Sandbox(server_url=sys.argv[1], worker_id=sys.argv[2]) as sandbox:
    sandbox.create_session_sync("bash")
    assert sandbox.execute_sync("bash:run", {"command": "cd /usr; X=kept"})["code"] == 0
    for url in sys.argv[3:]:
        with Sandbox(server_url=url, worker_id=sys.argv[2]) as other:
            print(other.execute_sync("bash:run", {"command": "echo $X $PWD"})["data"]["stdout"].strip())
    sandbox.destroy_session_sync()
"""


def tool(node: Server, name: str, /, **arguments: object) -> str:
    """A tool of MCP at a server's own address."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
    headers = {"accept": "application/json, text/event-stream"}
    return httpx.post(f"{node.url}/mcp", json=call, headers=headers, timeout=60).raise_for_status().text


def test_clients_of_all_dialects_reach_sandboxes_of_all_nodes(nodes: Nodes) -> None:
    made = nodes.create_on_all("dialects", nodes["red"])
    for via in nodes.values():
        for name in made.values():
            # AIO Sandbox's client.
            assert LiveSandbox(via.url, name).output("echo $HOSTNAME") == name
            # MCP's tools of all sandboxes.
            found = tool(via, "sandboxExecutor", sandbox_name=name, tool_name="sandbox_execute_bash", arguments={"cmd": "echo I am $HOSTNAME"})
            assert f"I am {name}" in found, found
            assert "sandbox_execute_bash" in tool(via, "getSandbox", name=name)
        assert all(name in tool(via, "listSandbox") for name in made.values())
    created = [f"by-mcp-{number}" for number in range(9)]
    for name in created:
        assert f"Sandbox name:{name}," in tool(nodes["green"], "createSandbox", name=name)
    assert sum(any(name in created for name in names) for names in nodes.owned().values()) > 1, nodes.owned()
    taken = tool(nodes["blue"], "createSandbox", name=created[0])
    assert "already exists" in taken, taken
    for name in created:
        assert "deleted" in tool(nodes["red"], "deleteSandbox", name=name)
    assert not any(name in created for names in nodes.owned().values() for name in names)
    assert "not found" in tool(nodes["red"], "deleteSandbox", name=created[0])
    for name in made.values():
        assert nodes["blue"].http_delete(name).status_code == 200


def test_a_worker_has_one_node_through_all(nodes: Nodes) -> None:
    urls = [node.url for node in nodes.values()]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "clients/python/src")}
    for number, url in enumerate(urls):
        program = [sys.executable, "-c", AGENTFLOW, url, f"worker-{number}", *urls]
        done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=120)
        assert done.stdout.splitlines() == ["kept /usr"] * 3, done.stdout + done.stderr
    workers = [Worker(urls[number % 3], f"spread-{number}") for number in range(12)]
    for worker in workers:
        worker.create("bash")
    placed = nodes.postgres.sql("SELECT count(DISTINCT node) FROM workers WHERE worker LIKE 'spread-%'")
    assert int(placed) > 1, "all workers are on one node"
    assert all(worker.ok("bash:run", command="echo here")["stdout"] == "here\n" for worker in workers)
    for worker in workers:
        worker.leave()


def test_two_nodes_that_can_not_reach_each_other(nodes: Nodes) -> None:
    made = nodes.create_on_all("cut", nodes["red"])
    nodes["red"].host.cut(nodes["blue"].host)
    try:
        refused = httpx.post(
            f"{nodes['red'].url}/sandbox/{made['blue']}/v1/bash/exec", json={"command": "true"}, timeout=60
        )
        assert refused.status_code == 502 and "blue does not answer" in refused.text, refused.text
        for via, name in (("green", "blue"), ("green", "red"), ("blue", "green"), ("red", "red"), ("red", "green")):
            assert LiveSandbox(nodes[via].url, made[name]).output("echo on") == "on"
        assert nodes.states() == dict.fromkeys(NAMES, "up")
    finally:
        nodes["red"].host.mend(nodes["blue"].host)
    assert LiveSandbox(nodes["red"].url, made["blue"]).output("echo again") == "again"
    for name in made.values():
        assert nodes["green"].http_delete(name).status_code == 200


def test_nodes_restart_one_after_the_other_under_load(nodes: Nodes) -> None:
    """As in an upgrade: a balancer sends clients to the nodes that say that they are ready."""
    made = nodes.create_on_all("load", nodes["red"])
    ready = set(NAMES)

    def url() -> str:
        return nodes[random.choice(sorted(ready))].url

    def call() -> None:
        name = random.choice(sorted(made.values()))
        answer = httpx.post(f"{url()}/sandbox/{name}/v1/bash/exec", json={"command": "echo here"}, timeout=60)
        assert answer.status_code == 200 and "here" in answer.text, answer.text

    def create() -> None:
        answer = httpx.post(f"{url()}/api/v2/sandboxes", json={"image": "tiny"}, timeout=60)
        assert answer.status_code == 201, answer.text
        deleted = httpx.delete(f"{url()}/api/v2/sandboxes/{answer.json()['name']}", timeout=60)
        assert deleted.status_code == 200, deleted.text

    loads = [Load(call), Load(call), Load(create)]
    for name, node in nodes.items():
        ready.discard(name)
        # What is under way to it.
        time.sleep(1)
        assert node.stop() == 0
        node.program = None
        node.start()
        ready.add(name)
        time.sleep(1)
    for load in loads:
        load.stop()
    for name in made.values():
        nodes["red"].http_delete(name)


def test_creates_are_spread_and_a_killed_node_comes_back(nodes: Nodes) -> None:
    red, green, blue = nodes.values()
    # Of a failed test, or of the first try.
    for name in red.states():
        red.http_delete(name)
    names = [f"many-{number}" for number in range(CREATES)]
    with ThreadPoolExecutor(50) as pool:
        list(pool.map(red.create, names))
    owned = nodes.owned()
    even = CREATES / len(NAMES)
    assert all(0.8 * even <= len(theirs) <= 1.2 * even for theirs in owned.values()), {k: len(v) for k, v in owned.items()}

    others = {via: LiveSandbox(nodes[via].url, owned[of][0]) for via, of in (("red", "green"), ("green", "red"))}
    loads = [calls([box]) for box in others.values()]
    kept = [LiveSandbox(red.url, name) for name in owned["blue"]]
    kept[0].output("echo kept > /tmp/file")
    blue.kill()
    within(GIVEN_UP_WITHIN, "the killed node is given up", lambda: nodes.states()["blue"] == "lost")
    listed = red.states()
    assert all(listed[box.name] == "lost" for box in kept)
    # Any other node shows its sandboxes, with the reason, and deletes them. Their names are free then.
    shown = httpx.get(f"{green.url}/api/v2/sandboxes/{kept[1].name}", timeout=30).raise_for_status().json()
    assert shown["state"] == "lost" and "node blue" in json.dumps(shown), shown
    for box in kept[1:4]:
        assert green.http_delete(box.name).status_code == 200
    assert green.http_delete(kept[1].name).status_code == 404
    second = red.create(kept[1].name)
    second.output("echo second > /tmp/file")
    refused = kept[0].http.post("/v1/bash/exec", json={"command": "true"})
    assert refused.status_code == 502 and "blue" in refused.text, refused.text

    blue.start()
    within(5, "it is back", lambda: nodes.states()["blue"] == "up")
    assert LiveSandbox(green.url, kept[0].name).output("cat /tmp/file") == "kept"
    assert LiveSandbox(blue.url, second.name).output("cat /tmp/file") == "second"
    left = set(nodes.owned()["blue"])
    assert left == set(owned["blue"]) - {box.name for box in kept[1:4]}
    records = len(list((blue.data_dir / "records").iterdir()))
    assert records == len(left), "what was deleted in its absence is gone"

    # A host without a network: the others give it up. Its server ends when it sees that, and its next start joins.
    blue.host.unplug()
    within(GIVEN_UP_WITHIN + 2, "the node without a network is given up", lambda: nodes.states()["blue"] == "lost")
    blue.host.plug()
    assert blue.process is not None and blue.process.wait(30) == 1
    blue.process = None
    assert "the cluster has given this node up" in blue.log_tail(), blue.log_tail()
    blue.start()
    within(5, "it is back again", lambda: nodes.states()["blue"] == "up")
    assert LiveSandbox(green.url, kept[0].name).output("cat /tmp/file") == "kept"
    for load in loads:
        load.stop()
    with ThreadPoolExecutor(16) as pool:
        assert all(answer.status_code == 200 for answer in pool.map(red.http_delete, red.states()))
    assert not any(nodes.owned().values())
