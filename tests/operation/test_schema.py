"""The documents of the server's own interfaces: valid OpenAPI, and answers that fit them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from arenite_server import Server
from openapi_spec_validator import validate
from sandboxes import LiveSandbox

SECONDS = 60


@pytest.mark.parametrize("path", ["/v1/openapi.json", "/sandbox/any/v1/openapi.json", "/api/v2/openapi.json", "/openapi.json"])
def test_documents_are_valid(server: Server, path: str) -> None:
    document = httpx.get(f"{server.url}{path}", timeout=60).raise_for_status().json()
    validate(document)
    assert document["openapi"].startswith("3.1")


@pytest.mark.timeout(SECONDS + 120)
def test_no_answer_of_the_api_is_a_server_error_or_breaks_the_document(server: Server, sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox()
    live.output("echo something to list")

    def names() -> set[str]:
        return {one["name"] for one in httpx.get(f"{server.url}/api/v2/sandboxes", timeout=60).json()["sandboxes"]}

    before = names()
    run = subprocess.run(
        [
            Path(sys.executable).with_name("schemathesis"), "run", f"{server.url}/api/v2/openapi.json",
            "--checks", "not_a_server_error,response_schema_conformance,content_type_conformance,status_code_conformance",
            # It calls with names that it read in answers, and other tests have sandboxes on this server.
            "--exclude-method", "DELETE",
            # Streams of events don't end by themselves: they are read for the time of a request.
            "--max-examples", "20", "--max-time", str(SECONDS), "--request-timeout", "15", "--generation-deterministic",
            "--continue-on-failure", "--warnings", "off", "--no-color",
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    for name in names() - before:
        httpx.delete(f"{server.url}/api/v2/sandboxes/{name}", timeout=60)
    assert run.returncode == 0, run.stdout[-12000:] + run.stderr[-2000:]
    assert live.output("echo alive") == "alive"
