"""Long loads, run by `cargo xtask soak`; the usual tests hold scaled-down forms of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from agentflow.rollouts import rolled_out
from arenite_server import Server
from isolation.browsers import browsers_side_by_side
from isolation.kills import killed_under_load
from isolation.rounds import kills_on_a_small_disk, random_kills
from isolation.test_many import made_used_deleted
from small import small_server

TURNS = int(os.environ.get("ARENITE_SOAK_SANDBOXES", "1000"))
KILLS = int(os.environ.get("ARENITE_SOAK_KILLS", "200"))
BROWSERS = int(os.environ.get("ARENITE_SOAK_BROWSERS", "10"))
BROWSER_SECONDS = float(os.environ.get("ARENITE_SOAK_BROWSER_SECONDS", "600"))
SECONDS = float(os.environ.get("ARENITE_SOAK_SECONDS", "300"))
TASKS = int(os.environ.get("ARENITE_SOAK_TASKS", "500"))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_thousand_sandboxes_in_turn_leave_nothing(server: Server) -> None:
    made_used_deleted(server, TURNS)


@pytest.mark.soak
@pytest.mark.timeout(14400)
def test_two_hundred_random_kills_leak_nothing(server: Server) -> None:
    random_kills(server, KILLS)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_forty_random_kills_on_a_small_disk_lose_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    # A name shorter than the test's: a data directory's path has at most 70 bytes.
    with small_server(tmp_path_factory.mktemp("kills")) as server:
        kills_on_a_small_disk(server, 40)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_processes_of_sandboxes_killed_at_random_under_load(server: Server) -> None:
    killed_under_load(server, SECONDS)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_browsers_side_by_side_while_they_are_killed(server: Server) -> None:
    browsers_side_by_side(server, BROWSER_SECONDS, BROWSERS, pause=3)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_five_hundred_tasks_come_to_the_same_however_they_are_run(server: Server, tmp_path: Path) -> None:
    rolled_out(server, tmp_path, TASKS, 32)
