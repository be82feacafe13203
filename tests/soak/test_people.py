"""Ten minutes of a person beside an agent; `tests/trajectory/test_record.py` has seconds of it."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest
from arenite_server import Server, binary
from playwright.sync_api import Page
from trajectory.people import worked_by_both

SECONDS = float(os.environ.get("ARENITE_SOAK_PERSON_SECONDS", "600"))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_minutes_of_a_person_beside_an_agent(server: Server, page: Page) -> None:
    def arenite(*words: str) -> Any:
        line = [str(binary()), *words, "--server", server.url]
        return subprocess.run(line, capture_output=True, text=True, timeout=600, check=False)

    page.set_default_timeout(60_000)
    worked_by_both(server, page, arenite, SECONDS)
