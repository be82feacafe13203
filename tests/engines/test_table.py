"""docs/ENGINES.md has the results of the conformance suite."""

from __future__ import annotations

import os

import pytest
from engine_servers import bless, documented, table


@pytest.mark.last
def test_the_table_says_what_was_found() -> None:
    if os.environ.get("ARENITE_BLESS"):
        bless()
    assert table() == documented(), "write it with ARENITE_BLESS=1"
