"""kill -9 of the server while it saves or restores processes: the sandbox goes on, and nothing is left.

`ARENITE_TEST_KILLS` sets the number of kills."""

from __future__ import annotations

import os
import random
import threading
import time

import httpx
import leaks
import pytest
from arenite_server import Server
from engine_servers import path_of_runsc
from sandboxes import LiveSandbox
from small import within

KILLS = int(os.environ.get("ARENITE_TEST_KILLS", "4"))
API = "/api/v2/sandboxes"


def ask(server: Server, path: str, **body: object) -> None:
    """A call that the kill may break off."""
    try:
        httpx.post(f"{server.url}{API}/{path}", json=body, timeout=60)
    except httpx.HTTPError:
        pass


@pytest.mark.timeout(180 + 60 * KILLS)
def test_processes_outlive_kills_while_they_are_saved(server: Server) -> None:
    path_of_runsc()
    chance = random.Random(7)
    images = server.data_dir / "pool" / "processes"
    before = leaks.steady(server)
    httpx.post(f"{server.url}{API}", json={"name": "saved", "image": "base", "tier": "gvisor"}, timeout=120).raise_for_status()
    box = LiveSandbox(server.url, "saved", 120)
    begun = box.client.shell.exec_command(command="VALUE=kept; sleep 100000 & echo job $!").data
    job = begun.output.split("job ")[1].strip()

    def check() -> None:
        same = box.client.shell.exec_command(command="echo $VALUE; jobs -pr", id=begun.session_id).data
        assert same.output.split() == ["kept", job]

    for _ in range(KILLS):
        saver = threading.Thread(target=ask, args=(server, "saved/checkpoints"), kwargs={"keep_processes": True})
        saver.start()
        time.sleep(chance.uniform(0.02, 0.6))
        server.kill()
        saver.join()
        server.start()
        check()
        history = httpx.get(f"{server.url}{API}/saved/history").json()["checkpoints"]
        within(30, "only what was acknowledged or is whole is left", lambda: {one["id"] for one in history} == set(os.listdir(images)))
    httpx.post(f"{server.url}{API}/saved/checkpoints", json={"keep_processes": True}, timeout=120).raise_for_status()
    last = httpx.get(f"{server.url}{API}/saved/history").json()["checkpoints"][-1]["number"]
    for _ in range(KILLS):
        returner = threading.Thread(target=ask, args=(server, "saved/rollback"), kwargs={"to": last})
        returner.start()
        time.sleep(chance.uniform(0.02, 0.8))
        server.kill()
        returner.join()
        server.start()
        if box.details()["state"] != "running":
            httpx.post(f"{server.url}{API}/saved/start", json={}, timeout=120).raise_for_status()
        answer = httpx.post(f"{server.url}{API}/saved/rollback", json={"to": last}, timeout=120)
        assert answer.status_code == 200, answer.text
        check()
    box.delete()
    server.restart()
    assert os.listdir(images) == []
    leaks.settle(before, server)
