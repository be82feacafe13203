"""Which trajectories have failed steps: by the API, the command line, the client, and the page's list."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import httpx
from arenite_server import REPOSITORY, Server
from commands import run
from consoles import PATIENCE
from playwright.sync_api import Page, expect
from sandboxes import LiveSandbox

sys.path.insert(0, str(REPOSITORY / "clients/python/src"))

import arenite  # noqa: E402


def select(api: httpx.Client, query: str) -> dict[str, Any]:
    """The `failures` of the selected trajectories by their ids."""
    listed = api.get(f"/api/v1/trajectories?{query}").raise_for_status().json()["trajectories"]
    return {one["trajectory"]: one.get("failures") for one in listed}


def test_failed_runs_are_found(server: Server, api: httpx.Client, sandbox: Callable[..., LiveSandbox], page: Page) -> None:
    good, bad = sandbox(), sandbox()
    for live in (good, bad):
        live.output("echo fine")
    bad.bash("exit 3")
    bad.bash("exit 4")
    bad.output("echo after")

    everything = select(api, "")
    assert everything[good.id] == {"steps": 0}
    assert everything[bad.id] == {"steps": 2, "last": 4}
    assert bad.id in select(api, "failed=true") and good.id not in select(api, "failed=true")
    assert good.id in select(api, "failed=false") and bad.id not in select(api, "failed=false")
    assert select(api, f"failed=false&sandbox={bad.name}") == {}
    refused = api.get("/api/v1/trajectories?failed=maybe")
    assert refused.status_code == 400 and "failed" in refused.text

    names = run(server, "trajectory", "ls", "--failed", "-o", "name").stdout.split()
    assert bad.id in names and good.id not in names
    table = run(server, "trajectory", "ls").stdout
    assert "failed" in table.splitlines()[0].lower()
    found = json.loads(run(server, "trajectory", "ls", "--failed", "--json").stdout)["trajectories"]
    assert next(one for one in found if one["trajectory"] == bad.id)["failures"] == {"steps": 2, "last": 4}
    with arenite.Client(server.url) as client:
        listed = {one.trajectory: one for one in client.trajectories.list(failed=True)}
    failures = listed[bad.id].failures
    assert good.id not in listed and failures is not None and (failures.steps, failures.last) == (2, 4)

    page.set_default_timeout(PATIENCE)
    page.goto(f"{server.url}/trajectories")
    table_of_runs = page.get_by_role("table", name="Trajectories")
    expect(table_of_runs.get_by_role("link", name=good.name)).to_be_visible(timeout=PATIENCE)
    page.get_by_role("checkbox", name="with failed steps").check()
    expect(table_of_runs.get_by_role("link", name=good.name)).to_have_count(0)
    row = table_of_runs.get_by_role("row").filter(has_text=bad.id)
    row.get_by_role("link", name="2", exact=True).click()
    expect(page.locator(".virtual-row[aria-selected=true]")).to_have_attribute("data-id", "step-4", timeout=PATIENCE)
