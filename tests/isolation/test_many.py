"""Fifty sandboxes made at once: each works, and sees nothing but itself."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import leaks
import loads
import pytest
from arenite_server import Server
from sandboxes import LiveSandbox

COUNT = 50


def create(server: Server, name: str) -> LiveSandbox:
    answer = httpx.post(f"{server.url}/api/v1/sandbox", json={"name": name}, timeout=120)
    assert answer.status_code in (200, 201), answer.text
    return LiveSandbox(server.url, name, timeout=300)


@pytest.fixture(scope="module")
def fifty(server: Server) -> Iterator[list[LiveSandbox]]:
    names = [f"many-{i}-{uuid.uuid4().hex[:6]}" for i in range(COUNT)]
    with ThreadPoolExecutor(COUNT) as pool:
        live = list(pool.map(lambda name: create(server, name), names))
        yield live
        for answer in pool.map(lambda sandbox: sandbox.delete(), live):
            assert answer.status_code == 200


def everywhere(fifty: list[LiveSandbox], command: str, at_a_time: int = COUNT) -> list[str]:
    with ThreadPoolExecutor(at_a_time) as pool:
        return list(pool.map(lambda sandbox: sandbox.output(command), fifty))


class TestFifty:
    def test_each_has_its_own_name(self, fifty: list[LiveSandbox]) -> None:
        assert everywhere(fifty, "hostname") == [sandbox.name for sandbox in fifty]

    def test_each_has_its_own_files(self, fifty: list[LiveSandbox]) -> None:
        with ThreadPoolExecutor(COUNT) as pool:
            list(pool.map(lambda s: s.output(f"echo {s.name} > ~/own; echo {s.name} > /tmp/own; echo {s.name} > /dev/shm/own"), fifty))
        assert everywhere(fifty, "cat ~/own /tmp/own /dev/shm/own | sort -u") == [sandbox.name for sandbox in fifty]

    def test_each_sees_its_own_processes_only(self, fifty: list[LiveSandbox]) -> None:
        with ThreadPoolExecutor(COUNT) as pool:
            list(pool.map(lambda s: s.bash(f"exec -a mark-{s.name} sleep 600", async_mode=True), fifty))
        for sandbox, seen in zip(fifty, everywhere(fifty, "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -o '^mark-many-.*' | sort -u"), strict=True):
            assert seen == f"mark-{sandbox.name}"
        for count in everywhere(fifty, "ls -d /proc/[0-9]* | wc -l"):
            assert int(count) < 20

    def test_each_has_its_own_ids_on_the_host(self, fifty: list[LiveSandbox]) -> None:
        starts = [int(line.split()[1]) for line in everywhere(fifty, "head -1 /proc/self/uid_map")]
        assert 0 not in starts
        assert len(set(starts)) == COUNT
        ordered = sorted(starts)
        assert all(b - a >= 65536 for a, b in zip(ordered, ordered[1:], strict=False))

    def test_each_has_its_own_network_and_can_not_reach_another(self, fifty: list[LiveSandbox]) -> None:
        addresses = everywhere(fifty, "hostname -I | tr ' ' '\\n' | grep -v : | head -1")
        assert len(set(addresses)) == COUNT and "" not in addresses
        with ThreadPoolExecutor(COUNT) as pool:
            list(pool.map(lambda s: s.bash("exec python3 -m http.server 9000 --bind 0.0.0.0", async_mode=True), fifty))
        # Each serves to itself, by its own outer address too …
        probe = "for i in $(seq 100); do curl -s -o /dev/null -m 2 http://{}:9000/ && break; sleep 0.1; done; curl -s -o /dev/null -w '%{{http_code}}' -m 5 http://{}:9000/"
        with ThreadPoolExecutor(8) as pool:
            own = list(pool.map(lambda pair: pair[0].output(probe.format(pair[1], pair[1])), zip(fifty, addresses, strict=True)))
        assert set(own) == {"200"}
        # … and to no neighbour.
        neighbours = addresses[1:] + addresses[:1]
        with ThreadPoolExecutor(16) as pool:
            other = list(
                pool.map(
                    lambda pair: pair[0].bash(f"curl -s -o /dev/null -m 3 http://{pair[1]}:9000/").exit_code,
                    zip(fifty, neighbours, strict=True),
                )
            )
        assert 0 not in other

    @pytest.mark.load
    @pytest.mark.timeout(1500)
    def test_pip_and_npm_install_in_some(self, fifty: list[LiveSandbox]) -> None:
        installing = fifty[: loads.size(4, 20)]
        pip = "python3 -m venv ~/venv >/dev/null && ~/venv/bin/pip -q --disable-pip-version-check install six==1.17.0 && ~/venv/bin/python -c 'import six; print(six.__version__)'"
        assert set(everywhere(installing, pip, 4)) == {"1.17.0"}
        npm = "mkdir -p ~/n && cd ~/n && npm install --silent --no-audit --no-fund is-number@7.0.0 >/dev/null && node -p 'require(\"is-number\")(5)'"
        assert set(everywhere(installing, npm, 4)) == {"true"}
        closed = "curl -s -o /dev/null -m 3 http://169.254.169.254/"
        with ThreadPoolExecutor(16) as pool:
            assert 0 not in list(pool.map(lambda s: s.bash(closed).exit_code, fifty))


@pytest.mark.timeout(600)
def test_made_used_and_deleted_in_turn_leaves_nothing(server: Server) -> None:
    made_used_deleted(server, 15)


def made_used_deleted(server: Server, count: int) -> None:
    def one(i: int) -> None:
        live = create(server, f"turn-{i}")
        assert live.output(f"echo {i} > ~/f; cat ~/f; sleep 300 & true") == str(i)
        assert live.delete().status_code == 200

    # Pools, caches and connections are filled by a few rounds first.
    for i in range(10):
        one(i)
    before = leaks.steady(server)
    for i in range(count):
        one(i)
    leaks.settle(before, server)
