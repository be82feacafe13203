"""A run may need two second tries, and not more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
#: Fails at its first try, passes at its second.
FLAKY = """
import pathlib, pytest
@pytest.mark.parametrize("n", range({}))
def test_flaky(n, request):
    seen = pathlib.Path(__file__).with_name(f"seen-{{n}}")
    before = seen.exists()
    seen.touch()
    assert before
"""


@pytest.mark.parametrize(("flaky", "code"), [(0, 5), (2, 0), (3, 1)])
def test_a_run_fails_above_two_second_tries(tmp_path: Path, flaky: int, code: int) -> None:
    (tmp_path / "test_flaky.py").write_text(FLAKY.format(flaky) if flaky else "")
    log = tmp_path / "second-tries"
    line = [sys.executable, "-m", "pytest", "-q", "-p", "second_tries", "-p", "no:cacheprovider", "--reruns", "1", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(TESTS), "ARENITE_SECOND_TRIES": str(log)}
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert len(log.read_text().splitlines() if log.exists() else []) == flaky
    if flaky > 2:
        assert f"{flaky} tests needed a second try" in done.stdout
