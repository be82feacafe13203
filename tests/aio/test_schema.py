"""Schemathesis reads our document and calls every operation with what the document allows, and with what it does not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sandboxes import LiveSandbox

# Calls that wait as long as their caller says: within any limit of ours they are no hang.
WAITING = ("/v1/file/watch/wait", "/v1/bash/output", "/v1/shell/wait", "/v1/file/watch/{watcher_id}/poll")
SECONDS = 150


@pytest.mark.timeout(SECONDS + 120)
def test_no_answer_is_a_server_error_or_breaks_the_document(sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox(image="code", patience=120)
    excluded = [argument for path in WAITING for argument in ("--exclude-path", path)]
    run = subprocess.run(
        [
            Path(sys.executable).with_name("schemathesis"), "run", f"{live.url}/v1/openapi.json", *excluded,
            "--checks", "not_a_server_error,response_schema_conformance,content_type_conformance",
            "--max-examples", "4", "--max-time", str(SECONDS), "--request-timeout", "60", "--generation-deterministic",
            "--continue-on-failure", "--warnings", "off", "--no-color",
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-12000:] + run.stderr[-2000:]
    assert live.output("echo alive") == "alive"
