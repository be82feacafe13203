"""Tasks one after the other in sandboxes that are reset between them: nothing of a task reaches the next.

`ARENITE_TEST_TASKS` and `ARENITE_TEST_SANDBOXES` set their numbers."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from arenite_server import Server
from sandboxes import LiveSandbox

TASKS = int(os.environ.get("ARENITE_TEST_TASKS", "16"))
SANDBOXES = int(os.environ.get("ARENITE_TEST_SANDBOXES", "4"))
API = "/api/v2/sandboxes"

# What a task leaves, in every place that it can write to.
LEAVE = """
echo probe >/home/gem/probe; mkdir -p /home/gem/.config && echo probe >/home/gem/.config/probe
echo probe | sudo tee /etc/probe /opt/probe /usr/local/bin/probe /var/tmp/probe >/dev/null
echo probe >/tmp/probe; echo probe >/dev/shm/probe
echo 'export PROBE=1' >>/home/gem/.bashrc; echo 'PROBE=1' | sudo tee -a /etc/environment >/dev/null
sudo mkdir -p /var/spool/cron/crontabs /etc/cron.d && echo '* * * * * root true # probe' | sudo tee /etc/cron.d/probe >/dev/null
sudo mkdir -p /etc/arenite && echo probe | sudo tee /etc/arenite/probe >/dev/null
sudo hostname probe 2>/dev/null; sudo mount -t tmpfs probe /mnt 2>/dev/null; sudo sysctl -w net.ipv4.ip_default_ttl=63 >/dev/null 2>&1
(exec -a probe-process sleep 1000) >/dev/null 2>&1 &
perl -MIO::Socket::INET -e '$0 = "probe-port"; $s = IO::Socket::INET->new(Listen => 1, LocalPort => 8765); sleep 1000' >/dev/null 2>&1 &
setsid nohup bash -c 'while :; do echo probe >/home/gem/late; sleep 0.05; done' >/dev/null 2>&1 &
ipcmk -M 1000 >/dev/null 2>&1
# A busy host takes its time to start what is in the background.
for _ in $(seq 100); do
  [ -e /home/gem/late ] && pgrep -f '^probe-process' >/dev/null && grep -qi ':223D .* 0A' /proc/net/tcp && break
  sleep 0.1
done
"""

# Whatever is found of another task.
FIND = """
ls /home/gem/probe /home/gem/.config/probe /etc/probe /opt/probe /usr/local/bin/probe /var/tmp/probe /tmp/probe /dev/shm/probe \
   /etc/cron.d/probe /etc/arenite/probe /home/gem/late 2>/dev/null
grep -l PROBE /home/gem/.bashrc /etc/environment 2>/dev/null
[ -z "$PROBE" ] || echo environment
[ "$(hostname)" != probe ] || echo hostname
grep probe /proc/mounts
pgrep -fa '[p]robe-p'
[ "$(cat /proc/sys/net/ipv4/ip_default_ttl)" != 63 ] || echo sysctl
[ "$(tail -n +2 /proc/sysvipc/shm | wc -l)" = 0 ] || echo shm
grep -i ':223D .* 0A' /proc/net/tcp /proc/net/tcp6
sleep 0.2; ls /home/gem/late 2>/dev/null
true
"""


@pytest.mark.timeout(120 + 2 * TASKS)
def test_a_reset_leaves_nothing_for_the_next_task(server: Server) -> None:
    free: queue.Queue[LiveSandbox] = queue.Queue()
    with server.api(60) as api:
        for number in range(SANDBOXES):
            name = f"worker-{number}"
            api.post(API, json={"name": name, "image": "base", "resources": {"memory_bytes": 192 << 20}}).raise_for_status()
            free.put(LiveSandbox(server.url, name))

    def task(_: int) -> str:
        sandbox = free.get()
        try:
            found = (sandbox.bash(FIND).stdout or "").strip()
            found += " ".join(hook["name"] for hook in sandbox.http.get("/v1/sandbox/hooks").json()["data"])
            sandbox.bash(LEAVE)
            hook = {"name": "probe", "command": "echo probe >/home/gem/hook"}
            sandbox.http.post("/v1/sandbox/hooks", json=hook).raise_for_status()
            left = sandbox.output(
                "cat /home/gem/probe /etc/probe /tmp/probe /dev/shm/probe; pgrep -fc '^probe-process'; grep -ci ':223D .* 0A' /proc/net/tcp"
            )
            assert left.split()[:4] == ["probe"] * 4 and "0" not in left.split()[4:], left
            with server.api(60) as api:
                answer = api.post(f"{API}/{sandbox.name}/reset", json={})
                assert answer.status_code == 200 and answer.json()["ended"], answer.text
            return found
        finally:
            free.put(sandbox)

    try:
        with ThreadPoolExecutor(SANDBOXES) as pool:
            found = list(pool.map(task, range(TASKS)))
        assert set(found) == {""}, found
    finally:
        while not free.empty():
            free.get().delete()


def test_a_reset_leaves_no_cookie(sandbox: Callable[..., LiveSandbox]) -> None:
    browser = sandbox(image="browser", patience=120)
    cookie = {"name": "probe", "value": "1", "domain": "example.org", "path": "/", "expires": 4102444800}
    browser.http.post("/v1/browser/cookies", json={"cookies": [cookie]}).raise_for_status()
    names = [one["name"] for one in browser.http.get("/v1/browser/cookies").raise_for_status().json()["data"]]
    assert names == ["probe"]
    httpx.post(f"{browser.base_url}{API}/{browser.name}/reset", json={}, timeout=120).raise_for_status()
    assert browser.http.get("/v1/browser/cookies").raise_for_status().json()["data"] == []
