"""Schemathesis: it reads an OpenAPI document, calls its operations with generated requests, and checks the answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def check(url: str, checks: str, *arguments: str, examples: int, seconds: int, patience: int) -> None:
    """Fails with what it found first, so that a summary of one line says it."""
    run = subprocess.run(
        [
            Path(sys.executable).with_name("schemathesis"), "run", url, "--checks", checks, *arguments,
            "--max-examples", str(examples), "--max-time", str(seconds), "--request-timeout", str(patience),
            "--generation-deterministic", "--continue-on-failure", "--warnings", "off", "--no-color",
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if run.returncode != 0:
        output = run.stdout + run.stderr
        found = next((at for title in (" FAILURES ", " ERRORS ") if (at := output.find(title)) >= 0), 0)
        first = " ".join(word for word in output[found : found + 2000].split() if word.strip("_="))
        raise AssertionError(f"{first}\n{output[-12000:]}")
