"""The sizes of loads: small in the tests, and large with `ARENITE_TEST_LOAD=full`, as the soak sets it."""

from __future__ import annotations

import os

FULL = os.environ.get("ARENITE_TEST_LOAD") == "full"


def size(tests: int, full: int) -> int:
    return full if FULL else tests
