"""The documents of the server's own interfaces: valid OpenAPI, and answers that fit them."""

from __future__ import annotations

from collections.abc import Callable

import generated_requests
import httpx
import loads
import pytest
from arenite_server import Server
from openapi_spec_validator import validate
from sandboxes import LiveSandbox

SECONDS = 40
FIT = "response_schema_conformance,content_type_conformance,status_code_conformance"


def check(url: str, checks: str, *arguments: str) -> None:
    generated_requests.check(url, checks, *arguments, examples=loads.size(5, 20), seconds=SECONDS, patience=15)


@pytest.mark.parametrize("path", ["/v1/openapi.json", "/sandbox/any/v1/openapi.json", "/api/v2/openapi.json", "/openapi.json"])
def test_documents_are_valid(server: Server, path: str) -> None:
    document = httpx.get(f"{server.url}{path}", timeout=60).raise_for_status().json()
    validate(document)
    assert document["openapi"].startswith("3.1")


@pytest.mark.load
@pytest.mark.timeout(SECONDS + 120)
def test_no_answer_of_the_api_is_a_server_error_or_breaks_the_document(server: Server, sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox()
    live.output("echo something to list")

    def names() -> set[str]:
        return {one["name"] for one in httpx.get(f"{server.url}/api/v2/sandboxes", timeout=60).json()["sandboxes"]}

    before = names()
    # It calls with names that it read in answers, and other tests have sandboxes on this server. Streams of events don't end by
    # themselves: they are read for the time of a request.
    # Those of other tests keep their disks.
    changing = [f"/api/v2/sandboxes/{{name}}/{verb}" for verb in ("reset", "rollback", "fork")]
    left_out = ("--exclude-method", "DELETE", *(word for path in changing for word in ("--exclude-path", path)))
    check(f"{server.url}/api/v2/openapi.json", f"not_a_server_error,{FIT}", *left_out)
    for name in names() - before:
        httpx.delete(f"{server.url}/api/v2/sandboxes/{name}", timeout=60)
    assert live.output("echo alive") == "alive"


@pytest.mark.load
@pytest.mark.timeout(SECONDS + 120)
def test_agentflows_answers_fit_its_document(own_server: Callable[..., Server]) -> None:
    server = own_server()
    server.start()
    # AgentFlow answers 500 also when a request is wrong or a tool fails. A server without images creates no sandboxes.
    check(f"{server.url}/openapi.json", FIT, "--exclude-path", "/api/v1/server/shutdown")
    server.stop()
