"""A rollout of some tasks; five hundred are in the soak."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentflow.rollouts import rolled_out
from arenite_server import Server


@pytest.mark.timeout(600)
def test_a_rollout_comes_to_the_same_however_it_is_run(server: Server, tmp_path: Path) -> None:
    rolled_out(server, tmp_path, 20, 8)
