"""The console's pages of workers, rollouts, corpora and nodes."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from consoles import HOSTILE, error, heading, notification, picture, row, show, sign_in
from playwright.sync_api import Page, expect
from rag_cli import lines, run_rag
from tenant import Tenant, TenantsServer

PASSAGES = [
    {"id": "lima", "title": "Lima", "contents": "Lima is the capital of Peru and its largest city."},
    {"id": "oslo", "title": "Oslo", "contents": "Oslo is the capital of Norway, at the end of a fjord."},
    {"id": "hostile", "title": HOSTILE, "contents": f"The capital of markup: {HOSTILE}"},
]


@pytest.fixture(scope="module")
def worker(acme: Tenant) -> Iterator[str]:
    """A worker with a session, and steps of two tasks."""
    name = f"w-{uuid.uuid4().hex[:8]}"
    acme.json("POST", "/api/v1/session/create", json={"worker_id": name, "resource_type": "bash"})
    for task in ("task/one", "task/one", "task-two"):
        done = acme.json("POST", "/api/v1/execute", json={"worker_id": name, "action": "bash:run", "params": {"command": "echo hello"}, "task_id": task})
        assert done["code"] == 0, done
    yield name
    acme.json("POST", "/api/v1/worker/disconnect", json={"worker_id": name})


def test_a_worker_leads_to_its_sandbox_and_its_trajectory(tenants: TenantsServer, acme: Tenant, person: Page, worker: str) -> None:
    sign_in(person, tenants.url, acme.key, "#/workers")
    mine = row(person, worker)
    expect(mine).to_contain_text("active")
    expect(mine).to_contain_text("bash")
    (sandbox,) = (one["name"] for one in acme.json("GET", "/api/v2/sandboxes")["sandboxes"] if one["spec"]["labels"].get("agentflow.worker") == worker)
    expect(mine.get_by_role("link", name=sandbox)).to_have_attribute("href", f"#/sandboxes/{sandbox}")
    # It has a trajectory for each task, so the link leads to their list.
    expect(mine.get_by_role("link", name=re.compile("Trajectory of"))).to_have_attribute("href", re.compile(rf"trajectories\?worker={worker}$"))
    mine.get_by_role("link", name=worker, exact=True).click()
    expect(heading(person)).to_have_text(worker)
    expect(person.get_by_role("table", name="Sessions")).to_contain_text("bash")
    person.get_by_role("link", name="task/one").click()
    expect(heading(person)).to_have_text("task/one")
    attempts = person.get_by_role("table", name="Attempts")
    expect(attempts.locator("tbody tr")).to_have_count(1)
    expect(row(person, worker)).to_contain_text("at work")
    attempts.get_by_role("link", name=worker).click()
    expect(person).to_have_url(re.compile("/trajectory/"))
    expect(person.get_by_role("main")).to_contain_text("bash:run")


def test_rollouts_by_task_and_the_results_of_a_run(tenants: TenantsServer, acme: Tenant, person: Page, worker: str, tmp_path: Path) -> None:
    results = [
        {"task_id": "task/one", "status": "success", "success": True, "result": {"final_answer": HOSTILE}, "attempts": 1, "worker_id": worker, "worker_ids": [worker], "duration_ms": 2000},
        {"task_id": "elsewhere", "status": "agent", "success": False, "result": None, "error_message": "it gave up", "attempts": 2, "worker_id": "w-none", "duration_ms": 4000},
    ]
    file = lines(tmp_path / "results.jsonl", *results)
    sign_in(person, tenants.url, acme.key, "#/rollouts")
    first = row(person, "task/one")
    expect(first).to_contain_text("at work")
    expect(row(person, "task-two")).to_be_visible()
    uploads: list[str] = []
    person.on("request", lambda request: uploads.append(request.post_data or "") if request.method != "GET" else None)
    person.locator("input[type=file]").set_input_files(file)
    section = person.get_by_role("region", name="Results of the run")
    expect(section).to_contain_text("50.0 %")
    expect(section).to_contain_text("it gave up")
    expect(section).to_contain_text(HOSTILE)
    expect(section.get_by_role("link", name="Open the trajectory of task/one")).to_be_visible()
    expect(section.get_by_role("row").filter(has_text="elsewhere")).to_contain_text("not here")
    picture(person, "console-results")
    section.get_by_label("Outcome").select_option("agent")
    expect(section.locator("tbody tr")).to_have_count(1)
    assert not any("it gave up" in one for one in uploads), "the file does not leave the browser"
    section.get_by_role("button", name="Close results.jsonl").click()
    expect(section).to_have_count(0)
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text('{"a": 1}\nnothing\n')
    person.locator("input[type=file]").set_input_files(wrong)
    expect(notification(person)).to_contain_text("has no results")


def test_a_corpus_is_searched(tenants: TenantsServer, acme: Tenant, person: Page, tmp_path: Path) -> None:
    sign_in(person, tenants.url, acme.key, "#/corpora")
    expect(person.get_by_role("heading", name="No corpora yet")).to_be_visible()
    run_rag(tenants.server.data_dir, "index", "capitals", lines(tmp_path / "capitals.jsonl", *PASSAGES))
    try:
        show(person, "Overview")
        show(person, "Corpora")
        expect(row(person, "capitals")).to_contain_text("3")
        row(person, "capitals").get_by_role("link", name="capitals").click()
        expect(heading(person)).to_have_text("capitals")
        search = person.get_by_role("region", name="Search")
        search.get_by_role("button", name="Search").click()
        expect(error(search.get_by_label("Search for"))).to_contain_text("Enter what")
        search.get_by_label("Search for").fill("capital of Norway")
        person.keyboard.press("Enter")
        results = search.get_by_role("list", name="Results")
        expect(results.get_by_role("listitem").first).to_contain_text("Oslo is the capital of Norway")
        found = acme.json("POST", "/api/v2/corpora/capitals/search", json={"query": "capital of Norway", "top_k": 10})["results"]
        expect(results.get_by_role("listitem")).to_have_count(len(found))
        picture(person, "console-corpus")
        expect(person).to_have_url(re.compile("find=capital"))
        search.get_by_label("Search for").fill("markup")
        search.get_by_role("button", name="Search").click()
        expect(results).to_contain_text(HOSTILE)
        search.get_by_label("Search for").fill("zzzz")
        search.get_by_role("button", name="Search").click()
        expect(search).to_contain_text("No passage matches zzzz")
        # The server's words are shown.
        person.route("**/capitals/search", lambda route: route.fulfill(status=501, json={"detail": "the corpus has no vectors", "hint": "index it again", "code": "unsupported"}))
        search.get_by_role("button", name="Search").click()
        expect(search.get_by_role("alert")).to_contain_text("The corpus has no vectors")
        expect(search.get_by_role("alert")).to_contain_text("Index it again")
    finally:
        run_rag(tenants.server.data_dir, "rm", "capitals")


def test_nodes_are_for_operators_and_explain_a_server_alone(tenants: TenantsServer, acme: Tenant, person: Page) -> None:
    sign_in(person, tenants.url, tenants.operator.key, "#/nodes")
    expect(heading(person)).to_have_text("Nodes")
    expect(person.get_by_role("heading", name="This server has no cluster")).to_be_visible()
    person.context.clear_cookies()
    person.goto("about:blank")
    sign_in(person, tenants.url, acme.key, "#/nodes")
    expect(heading(person)).to_have_text("Sandboxes")
