"""Schemathesis reads our document and calls every operation with what the document allows, and with what it does not."""

from __future__ import annotations

from collections.abc import Callable

import generated_requests
import loads
import pytest
from sandboxes import LiveSandbox

# Calls that wait as long as their caller says: within any limit of ours they are no hang.
WAITING = ("/v1/file/watch/wait", "/v1/bash/output", "/v1/shell/wait", "/v1/file/watch/{watcher_id}/poll")
SECONDS = loads.size(40, 90)


@pytest.mark.load
@pytest.mark.timeout(SECONDS + 120)
def test_no_answer_is_a_server_error_or_breaks_the_document(sandbox: Callable[..., LiveSandbox]) -> None:
    live = sandbox(image="code", patience=120)
    excluded = [argument for path in WAITING for argument in ("--exclude-path", path)]
    checks = "not_a_server_error,response_schema_conformance,content_type_conformance"
    generated_requests.check(f"{live.url}/v1/openapi.json", checks, *excluded, examples=loads.size(2, 4), seconds=SECONDS, patience=60)
    assert live.output("echo alive") == "alive"
