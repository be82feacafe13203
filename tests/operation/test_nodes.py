"""Nodes of a cluster: three servers over one Postgres, of which one is killed, hangs, and comes back."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from arenite_server import Server
from commands import run
from nodes import ALL_UP, NAMES, calls, create_on_all, nodes_of, owned, states
from postgres import Postgres
from sandboxes import LiveSandbox
from small import SmallServer, within
from websockets.sync.client import connect

#: A node is given up ten seconds after its last renewal, which is noticed within two more.
GIVEN_UP_WITHIN = 15


@pytest.fixture
def nodes(postgres: Postgres, own_server: Callable[..., Server]) -> Iterator[dict[str, SmallServer]]:
    with nodes_of(postgres, own_server) as made:
        yield made


def by_mcp(box: LiveSandbox, command: str) -> str:
    tool = {"name": "sandbox_execute_bash", "arguments": {"cmd": command}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": tool}
    headers = {"accept": "application/json, text/event-stream"}
    return httpx.post(f"{box.url}/mcp", json=call, headers=headers, timeout=60).raise_for_status().text


def test_any_node_answers_for_all_sandboxes(postgres: Postgres, nodes: dict[str, SmallServer]) -> None:
    red, green, blue = nodes.values()
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(red.create, [f"box-{n}" for n in range(45)]))
    made = owned(postgres)
    assert all(len(names) >= 9 for names in made.values()), made
    lists = [node.states() for node in nodes.values()]
    assert lists[0] == lists[1] == lists[2] == {f"box-{n}": "running" for n in range(45)}
    # Pages of a list are those of one server.
    paged, cursor = [], None
    while cursor != "":
        parameters = {"limit": 20, **({"cursor": cursor} if cursor else {})}
        page = httpx.get(f"{green.url}/api/v2/sandboxes", params=parameters, timeout=30).raise_for_status().json()
        paged += [one["name"] for one in page["sandboxes"]]
        cursor = page["next_cursor"] or ""
    assert len(paged) == len(set(paged)) == 45

    for node in nodes.values():
        for names in made.values():
            box = LiveSandbox(node.url, names[0])
            assert box.output("echo $HOSTNAME") == names[0]
            assert names[0] in by_mcp(box, "echo I am $HOSTNAME")
            assert box.details()["name"] == names[0]
    # Bodies in both directions, and a WebSocket.
    far = LiveSandbox(red.url, made["blue"][0])
    content = os.urandom(8 << 20)
    sent = far.http.post("/v1/file/upload", files={"file": ("data", content)}, data={"path": "/tmp/data"}, timeout=120)
    assert sent.status_code == 200 and sent.json()["success"], sent.text
    assert far.http.get("/v1/file/download", params={"path": "/tmp/data"}, timeout=120).content == content
    with connect(f"{far.url.replace('http', 'ws', 1)}/v1/shell/ws", open_timeout=30) as terminal:
        terminal.send(json.dumps({"type": "input", "data": "echo over-$((40+2))\n"}))
        seen = ""
        while "over-42" not in seen:
            seen += str(terminal.recv(timeout=30))
    # Steps are recorded where the sandbox is, and read through any node.
    steps = httpx.get(f"{green.url}/api/v2/sandboxes/{far.name}/steps", timeout=30).raise_for_status().json()["steps"]
    assert any("HOSTNAME" in json.dumps(step) for step in steps), steps

    near = f"{green.url}/api/v2/sandboxes/{made['red'][0]}"
    assert httpx.post(f"{near}/pause", timeout=60).json()["state"] == "paused"
    assert blue.states()[made["red"][0]] == "paused"
    assert LiveSandbox(blue.url, made["red"][0]).output("echo awake") == "awake"
    for node in nodes.values():
        taken = httpx.post(f"{node.url}/api/v2/sandboxes", json={"name": made["red"][1], "image": "tiny"}, timeout=60)
        assert taken.status_code == 409, taken.text
    # A create that is repeated through another node is the same.
    headers = {"idempotency-key": "once"}
    answers = [httpx.post(f"{node.url}/api/v2/sandboxes", json={"image": "tiny"}, headers=headers, timeout=60) for node in nodes.values()]
    assert [answer.status_code for answer in answers] == [201] * 3, [answer.text for answer in answers]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert httpx.delete(near, timeout=60).status_code == 200
    assert made["red"][0] not in blue.states()
    assert httpx.get(f"{blue.url}/api/v2/sandboxes/{made['red'][0]}", timeout=30).status_code == 404


def test_a_stranger_at_the_port_of_nodes_gets_nothing(postgres: Postgres, nodes: dict[str, SmallServer]) -> None:
    facts = json.loads(postgres.sql("SELECT facts FROM nodes WHERE name = 'red'"))
    host, port = facts["address"].split(":")
    said = json.dumps({"principal": "operator"})
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{host}:{port}/api/v2/sandboxes", headers={"x-arenite-node": said}, timeout=10)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with pytest.raises((ssl.SSLError, ConnectionError)):
        with socket.create_connection((host, int(port)), timeout=10) as plain, context.wrap_socket(plain) as stream:
            stream.sendall(b"GET /api/v2/sandboxes HTTP/1.1\r\nhost: a\r\n\r\n")
            assert not stream.recv(1000)
            raise ConnectionError("closed")
    # The header of nodes means nothing from a client.
    url = f"{nodes['red'].url}/api/v2/sandboxes"
    assert httpx.get(url, headers={"x-arenite-node": said, "host": "evil.example"}, timeout=10).status_code == 403


def test_a_killed_node_is_lost_until_it_is_back(postgres: Postgres, nodes: dict[str, SmallServer]) -> None:
    red, green, blue = nodes.values()
    made = create_on_all(postgres, red)
    load = calls([LiveSandbox(red.url, made["red"][0]), LiveSandbox(red.url, made["green"][0]), LiveSandbox(green.url, made["red"][1])])
    kept = [LiveSandbox(red.url, name) for name in made["blue"]]
    for box in kept:
        box.output("echo kept > /tmp/file")
    assert states(red) == states(blue) == ALL_UP
    shown = run(green, "node", "ls")
    assert all(name in shown.stdout for name in NAMES) and "RENEWED" in shown.stdout, shown.stdout

    blue.kill()
    begun = time.monotonic()
    within(GIVEN_UP_WITHIN, "the killed node is given up", lambda: states(red) == {**ALL_UP, "blue": "lost"})
    assert time.monotonic() - begun > 8, "a lease of ten seconds was not over"
    rows = postgres.sql("SELECT count(*), min(state), max(state), min(died) FROM sandboxes WHERE node = 'blue'")
    assert f"{len(kept)}|lost|lost|" in rows and "node_lost" in rows, rows
    assert {green.states()[name] for name in made["blue"]} == {"lost"}
    refused = kept[0].http.post("/v1/bash/exec", json={"command": "true"})
    assert refused.status_code == 502 and "blue" in refused.text, refused.text
    blue.start()
    within(5, "it is back", lambda: states(green) == ALL_UP)
    assert [box.output("cat /tmp/file") for box in kept] == ["kept"] * len(kept)
    assert {green.states()[name] for name in made["blue"]} == {"running"}

    # One that only hangs is given up, too. It ends when it sees that, and its next start takes its sandboxes over.
    assert blue.process is not None
    blue.process.send_signal(signal.SIGSTOP)
    within(GIVEN_UP_WITHIN, "the hanging node is given up", lambda: states(red)["blue"] == "lost")
    blue.process.send_signal(signal.SIGCONT)
    assert blue.process.wait(30) == 1
    blue.process = None
    assert "the cluster has given this node up" in blue.log_tail(), blue.log_tail()
    blue.start()
    within(5, "it is back again", lambda: states(green) == ALL_UP)
    assert [box.output("cat /tmp/file") for box in kept] == ["kept"] * len(kept)

    # One that is stopped is not lost.
    begun = time.monotonic()
    assert blue.stop() == 0
    assert time.monotonic() - begun < 8, "idle connections of nodes must not hold it up"
    assert states(red) == {**ALL_UP, "blue": "down"}
    time.sleep(GIVEN_UP_WITHIN - 2)
    assert states(red) == {**ALL_UP, "blue": "down"}
    blue.start()
    load.stop()


def test_a_database_that_is_away_gives_nobody_up(postgres: Postgres, nodes: dict[str, SmallServer]) -> None:
    made = create_on_all(postgres, nodes["red"], least=1)
    load = calls([LiveSandbox(nodes[name].url, made[name][0]) for name in NAMES])
    epochs = postgres.sql("SELECT name, epoch FROM nodes ORDER BY name")
    postgres.stop()
    time.sleep(GIVEN_UP_WITHIN)
    postgres.start()
    within(20, "all renew their leases again", lambda: _renews(postgres))
    time.sleep(5)
    load.stop()
    assert states(nodes["red"]) == ALL_UP
    assert postgres.sql("SELECT name, epoch FROM nodes ORDER BY name") == epochs


def _renews(postgres: Postgres) -> bool:
    young = "SELECT count(*) FROM nodes WHERE renewed_at > (extract(epoch FROM now()) * 1000000 - 4000000)"
    return postgres.sql(young).strip() == str(len(NAMES))


def test_a_node_needs_a_database_and_a_name_that_no_other_has(
    postgres: Postgres, nodes: dict[str, SmallServer], own_server: Callable[..., Server]
) -> None:
    alone = own_server(args=("--node", "alone", "--node-listen", "127.0.0.1:0"))
    with pytest.raises(RuntimeError, match="nodes share a Postgres store"):
        alone.start()
    for args, reason in ((("--node", "red", "--node-listen", "127.0.0.1:0"), "another server is the node red"), ((), "arenite pid")):
        other = own_server(args=args)
        other.environment = {"ARENITE_STORE": postgres.url}
        with pytest.raises(RuntimeError, match=reason):
            other.start()
    assert states(nodes["red"]) == ALL_UP
