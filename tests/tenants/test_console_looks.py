"""All pages and states of the console with axe, in all looks; and long lists."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest
from consoles import ALWAYS, LOOKS, navigation, picture, row, show, sign_in, violations
from playwright.sync_api import Page, expect
from rag_cli import lines, run_rag
from tenant import Tenant, TenantsServer

NODE = {
    "name": "red", "state": "up", "epoch": 3, "address": "10.0.0.1:8902", "sandboxes": 12, "room": 88, "labels": {"zone": "east"}, "tiers": ["namespace"], "version": "0.1.0",
    "memory_total_bytes": 64 << 30, "memory_available_bytes": 12 << 30, "disk_total_bytes": 1 << 40, "disk_available_bytes": 1 << 36,
    "started_at": "2026-01-01T00:00:00Z", "renewed_at": "2026-01-01T00:00:00Z", "drain": None,
}
DRAINED = {**NODE, "name": "green", "drain": {"since": "2026-01-01T00:00:00Z", "deadline": "2126-01-01T00:00:00Z"}}
#: A build that prints something and fails.
FAILED_BUILD = (
    'event: step\ndata: {"step": 1, "of": 2, "text": "FROM base"}\n\nevent: step\ndata: {"step": 2, "of": 2, "text": "RUN make"}\n\n'
    'event: log\ndata: {"step": 2, "line": "cc: no such file"}\n\nevent: failed\ndata: {"status": 422, "detail": "step 2 failed with exit code 1", "hint": "read its output"}\n\n'
)
PULLS = {"pulls": [{"image": "docker.io/library/python:3.12", "state": "downloading", "layers": 4, "layers_done": 1, "bytes": 50 << 20, "bytes_done": 20 << 20}]}
RESULTS = [
    {"task_id": "task-one", "status": "success", "success": True, "result": {"final_answer": "forty-two"}, "worker_id": "furniture-worker", "duration_ms": 2000},
    {"task_id": "task-two", "status": "agent", "success": False, "error_message": "it gave up", "worker_id": "another", "duration_ms": 4000},
]


@pytest.fixture(scope="module")
def furnished(tenants: TenantsServer, acme: Tenant, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenant]:
    """A tenant that has something on each page."""
    tenants.operator.json("PATCH", "/api/v2/tenants/acme", json={"limits": {"sandboxes": 8, "cpu_millis": 16_000}})
    acme.json("POST", "/api/v2/sandboxes", json={"name": "shown", "args": ["sh", "-c", "echo hello; sleep 1000"], "labels": {"team": "red"}, "timeout_seconds": 7200, "network": {"mode": "allowlist", "allow": ["a.example"]}})
    acme.json("POST", "/api/v2/sandboxes", json={"name": "asleep"})
    acme.json("POST", "/api/v2/sandboxes/asleep/pause", json={})
    acme.json("POST", "/sandbox/shown/v1/bash/exec", json={"command": "echo hello; curl -s http://refused.example"})
    acme.json("POST", "/api/v2/sandboxes/shown/checkpoints", json={"note": "with a greeting"})
    acme.json("POST", "/sandbox/shown/v1/bash/exec", json={"command": "echo hello >greeting"})
    acme.json("POST", "/api/v2/snapshots", json={"name": "greeted", "sandbox": "shown"})
    acme.json("POST", "/api/v2/volumes", json={"name": "data", "size_bytes": 64 << 20})
    acme.json("POST", "/api/v2/groups", json={"name": "furniture", "ttl_seconds": 3600})
    acme.json("PUT", "/api/v2/secrets/upstream", json={"value": "sk-value", "hosts": ["api.example.com"]})
    acme.json("PUT", "/api/v2/models/gpt", json={"upstream": "https://api.example.com/v1", "secret": "upstream", "budget": {"tokens": 1_000_000}})
    worker = {"worker_id": "furniture-worker"}
    acme.json("POST", "/api/v1/session/create", json={**worker, "resource_type": "bash"})
    acme.json("POST", "/api/v1/execute", json={**worker, "action": "bash:run", "params": {"command": "echo hello"}, "task_id": "task-one"})
    passages = [{"id": "oslo", "title": "Oslo", "contents": "Oslo is the capital of Norway, at the end of a fjord."}]
    run_rag(tenants.server.data_dir, "index", "capitals", lines(tmp_path_factory.mktemp("corpus") / "capitals.jsonl", *passages))
    hook = acme.json("POST", "/api/v2/webhooks", json={"url": "http://127.0.0.1:9/hook", "types": ["sandbox.paused"]})
    yield acme
    acme.json("POST", "/api/v1/worker/disconnect", json=worker)
    run_rag(tenants.server.data_dir, "rm", "capitals")
    acme.json("DELETE", "/api/v2/models/gpt")
    acme.json("DELETE", "/api/v2/secrets/upstream")
    acme.json("DELETE", f"/api/v2/webhooks/{hook['id']}")
    acme.json("DELETE", "/api/v2/groups/furniture")
    acme.json("DELETE", "/api/v2/volumes/data")
    acme.json("DELETE", "/api/v2/snapshots/greeted")
    for name in ("shown", "asleep"):
        acme.json("DELETE", f"/api/v2/sandboxes/{name}")
    tenants.operator.json("PATCH", "/api/v2/tenants/acme", json={"limits": {"sandboxes": None, "cpu_millis": None}})


def states(page: Page, url: str) -> Iterator[str]:
    """Each page and dialog, one after the other."""
    dialog = page.get_by_role("dialog")

    def close() -> None:
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)

    expect(row(page, "shown").get_by_role("meter", name="Memory used")).to_be_visible()
    yield "sandboxes"
    page.get_by_role("checkbox", name="Select shown").check()
    page.get_by_role("button", name="Filter by state").click()
    page.get_by_role("menuitemcheckbox", name="running").click()
    expect(page.get_by_role("group", name="Active filters")).to_be_visible()
    expect(page.get_by_role("group", name="Selected sandboxes")).to_be_visible()
    page.get_by_role("button", name="Filter by state").click()
    yield "filtered"
    page.keyboard.press("Escape")
    page.get_by_role("searchbox", name="Find sandboxes").fill("nothing has this name")
    expect(page.get_by_text("No sandbox matches")).to_be_visible()
    yield "none-found"
    page.get_by_role("button", name="Show all").click()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("combobox", name="Search pages, sandboxes and actions")).to_be_focused()
    page.keyboard.type("sho")
    yield "palette"
    close()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    yield "shortcuts"
    close()
    page.get_by_role("button", name="Create sandbox").click()
    dialog.get_by_label("Memory", exact=True).fill("much")
    dialog.get_by_role("button", name="Create", exact=True).click()
    expect(dialog.locator("[aria-invalid=true]")).to_be_focused()
    yield "create"
    close()
    page.get_by_role("button", name="Delete shown").click()
    yield "question"
    close()
    row(page, "shown").get_by_role("button", name=re.compile("steps? of shown")).click()
    expect(page.get_by_role("dialog", name="Steps of shown")).to_contain_text("live")
    yield "steps"
    close()
    show(page, "Overview")
    expect(page.get_by_role("region", name="Quotas")).to_contain_text("of 8")
    expect(page.get_by_role("region", name="The last 24 hours").get_by_role("img").first).to_be_visible()
    yield "overview"
    page.goto(f"{url}/#/sandboxes/shown")
    expect(page.get_by_role("log")).to_contain_text("hello")
    page.get_by_role("button", name="Changes of the disk as it is").click()
    expect(page.locator(".history .changes")).to_contain_text(["/home/gem/greeting"])
    expect(page.get_by_role("region", name="Network", exact=True)).to_contain_text("refused.example")
    yield "sandbox"
    page.get_by_role("button", name="Change the network").click()
    yield "network"
    close()
    page.get_by_role("button", name="Extend").click()
    yield "extend"
    close()
    page.goto(f"{url}/#/sandboxes/no-such-sandbox")
    expect(page.get_by_role("main").get_by_role("alert")).to_be_visible()
    yield "missing"
    yield from agent_states(page, url, close)
    yield from image_states(page, url, close)
    show(page, "Snapshots")
    expect(row(page, "greeted")).to_be_visible()
    yield "snapshots"
    show(page, "Volumes")
    expect(row(page, "data")).to_be_visible()
    yield "volumes"
    show(page, "Groups")
    expect(row(page, "furniture")).to_be_visible()
    yield "groups"
    show(page, "Usage")
    expect(page.locator(".quotas li").first).to_be_visible()
    expect(page.locator(".chart").first).to_be_visible()
    page.get_by_text("The charts as a table").click()
    yield "usage"
    show(page, "Secrets")
    expect(row(page, "upstream")).to_contain_text("api.example.com")
    yield "secrets"
    page.get_by_role("button", name="Create a secret").click()
    yield "secret-form"
    close()
    show(page, "Models")
    expect(row(page, "gpt")).to_contain_text("0 of 1,000,000")
    yield "models"
    page.get_by_role("button", name="Change gpt").click()
    yield "route-form"
    close()
    show(page, "Keys")
    expect(row(page, "valid").first).to_be_visible()
    yield "keys"
    page.get_by_role("button", name="Create a key").click()
    dialog.get_by_label("Name").fill("for axe")
    yield "key"
    dialog.get_by_role("button", name="Create", exact=True).click()
    expect(page.locator("input.secret")).to_be_visible()
    yield "secret"
    page.get_by_role("button", name="Done").click()
    show(page, "Webhooks")
    page.get_by_role("button", name="Deliveries").first.click()
    yield "webhooks"
    close()
    show(page, "Audit log")
    expect(row(page, "sandbox.create").first).to_be_visible()
    yield "audit"
    show(page, "Tenants")
    expect(row(page, "acme")).to_be_visible()
    yield "tenants"
    page.get_by_role("button", name="Limits of acme").click()
    yield "limits"
    close()
    show(page, "Settings")
    expect(page.get_by_role("region", name="Server")).to_contain_text("Arenite")
    yield "settings"
    page.get_by_role("button", name="High", exact=True).click()
    expect(page.locator("html")).to_have_attribute("data-contrast", "more")
    show(page, "Sandboxes")
    expect(row(page, "shown")).to_be_visible()
    yield "high-contrast"
    # Without data, while it loads, and if it can't be read.
    page.route("**/api/v2/volumes", lambda route: route.fulfill(json={"volumes": []}))
    show(page, "Volumes")
    expect(page.get_by_role("heading", name="No volumes yet")).to_be_visible()
    yield "empty"
    page.route("**/api/v2/snapshots", lambda route: None)
    show(page, "Snapshots")
    expect(page.get_by_role("status", name="Loading")).to_be_visible()
    yield "loading"
    page.route("**/api/v2/groups", lambda route: route.fulfill(status=503, json={"detail": "the store does not answer", "hint": "read the server's log", "code": "unavailable"}))
    show(page, "Groups")
    expect(page.get_by_role("main").get_by_role("alert")).to_contain_text("Read the server's log")
    yield "unreadable"
    page.unroute_all(behavior="ignoreErrors")


def agent_states(page: Page, url: str, close: Callable[[], None]) -> Iterator[str]:
    """Rollouts, workers, corpora, and nodes."""
    show(page, "Rollouts")
    expect(row(page, "task-one")).to_be_visible()
    yield "rollouts"
    results = "\n".join(json.dumps(one) for one in RESULTS).encode()
    page.locator("input[type=file]").set_input_files({"name": "results.jsonl", "mimeType": "application/jsonl", "buffer": results})
    expect(page.get_by_role("region", name="Results of the run")).to_contain_text("50.0 %")
    yield "results"
    page.get_by_role("table", name="Tasks").get_by_role("link", name="task-one", exact=True).click()
    expect(page.get_by_role("table", name="Attempts")).to_be_visible()
    yield "task"
    show(page, "Workers")
    expect(row(page, "furniture-worker")).to_contain_text("active")
    yield "workers"
    page.get_by_role("link", name="furniture-worker", exact=True).click()
    expect(page.get_by_role("table", name="Sessions")).to_be_visible()
    yield "worker"
    show(page, "Corpora")
    page.get_by_role("link", name="capitals", exact=True).click()
    page.get_by_label("Search for").fill("capital")
    page.keyboard.press("Enter")
    expect(page.get_by_role("list", name="Results")).to_contain_text("Oslo")
    yield "corpus"
    page.goto(f"{url}/#/corpora")
    expect(row(page, "capitals")).to_be_visible()
    yield "corpora"
    show(page, "Nodes")
    expect(page.get_by_role("heading", name="This server has no cluster")).to_be_visible()
    yield "no-cluster"
    page.route("**/api/v2/nodes", lambda route: route.fulfill(json={"nodes": [NODE, DRAINED]}))
    expect(row(page, "green")).to_contain_text("draining: 12 left")
    yield "nodes"
    page.get_by_role("button", name="Drain red").click()
    yield "drain"
    close()
    page.get_by_role("link", name="green", exact=True).click()
    expect(page.get_by_role("main")).to_contain_text("12 sandboxes are left")
    yield "node"
    page.unroute("**/api/v2/nodes")


def image_states(page: Page, url: str, close: Callable[[], None]) -> Iterator[str]:
    """Images with a pull and a build, and templates."""
    page.route("**/api/v2/images/pulls", lambda route: route.fulfill(json=PULLS))
    page.route("**/api/v2/images/build?*", lambda route: route.fulfill(content_type="text/event-stream", body=FAILED_BUILD))
    show(page, "Images")
    expect(row(page, "base").first).to_be_visible()
    page.get_by_role("button", name="Build an image", exact=True).click()
    page.get_by_text("More settings").click()
    page.get_by_role("dialog").get_by_role("button", name="Build", exact=True).click()
    expect(page.get_by_role("dialog").locator("[aria-invalid=true]").first).to_be_focused()
    yield "build"
    page.get_by_role("dialog").get_by_label("Name", exact=True).fill("team/app:1")
    page.get_by_role("dialog").get_by_role("button", name="Build", exact=True).click()
    expect(page.get_by_role("listitem", name="Build of team/app:1")).to_contain_text("Read its output")
    expect(page.get_by_role("progressbar")).to_be_visible()
    yield "images"
    page.get_by_role("button", name="Dismiss the build of team/app:1").click()
    page.get_by_role("button", name="Pull", exact=True).click()
    yield "pull"
    close()
    page.unroute("**/api/v2/images/pulls")
    page.get_by_role("table", name="Images").get_by_role("link", name="base", exact=True).click()
    expect(page.get_by_role("table", name="Layers")).to_be_visible()
    yield "image"
    page.goto(f"{url}/#/images/none")
    expect(page.get_by_role("heading", name="There is no such image")).to_be_visible()
    yield "no-image"
    show(page, "Templates")
    expect(page.get_by_role("table", name="Templates")).to_be_visible()
    yield "templates"
    page.get_by_role("table", name="Templates").get_by_role("link", name="default", exact=True).click()
    expect(page.get_by_role("region", name="Limits")).to_be_visible()
    yield "template"


@pytest.mark.parametrize("look", LOOKS)
def test_all_pages_are_accessible(tenants: TenantsServer, furnished: Tenant, person: Page, look: str) -> None:
    scheme, width, height = LOOKS[look]
    person.emulate_media(color_scheme=scheme)
    person.set_viewport_size({"width": width, "height": height})
    key = tenants.operator.json("POST", "/api/v2/keys", json={"tenant": "acme", "name": f"axe {look}", "role": "admin", "operator": True})["key"]
    found = {}
    person.goto(tenants.url)

    def check(state: str) -> None:
        picture(person, f"console-{state}-{look}")
        if wrong := violations(person):
            found[state] = wrong

    check("sign-in")
    sign_in(person, tenants.url, key)
    for state in states(person, tenants.url):
        check(state)
    assert not found


def test_ten_thousand_sandboxes_do_not_freeze_it(tenants: TenantsServer, acme: Tenant, person: Page) -> None:
    """The list is that of a real sandbox, ten thousand times, since a test can't make that many."""
    one = acme.json("POST", "/api/v2/sandboxes", json={"name": "one"})
    acme.json("DELETE", "/api/v2/sandboxes/one")
    many = json.dumps({"sandboxes": [{**one, "id": f"s{n:011d}", "name": f"many-{n}"} for n in range(10_000)]})
    person.route(re.compile(r"/api/v2/sandboxes$"), lambda route: route.fulfill(body=many, content_type="application/json"))
    sign_in(person, tenants.url, acme.key)
    expect(person.get_by_role("status", name="Number of sandboxes")).to_have_text("10,000")
    table = person.get_by_role("table", name="Sandboxes")
    rows = table.locator("tbody tr.item")
    expect(table).to_have_attribute("aria-rowcount", "10001")
    assert rows.count() < 150
    # To the last row and back, by keyboard.
    person.get_by_role("button", name="Name", exact=True).click()
    table.get_by_role("link", name="many-0", exact=True).focus()
    person.keyboard.press("End")
    expect(table.get_by_role("link", name="many-9999", exact=True)).to_be_focused()
    expect(table.get_by_role("link", name="many-9999", exact=True)).to_be_in_viewport()
    person.keyboard.press("k")
    expect(table.get_by_role("link", name="many-9998", exact=True)).to_be_focused()
    assert rows.count() < 150
    person.keyboard.press("Home")
    expect(table.get_by_role("link", name="many-0", exact=True)).to_be_focused()
    person.get_by_role("checkbox", name="Select all rows").check()
    expect(person.get_by_role("group", name="Selected sandboxes")).to_contain_text("10,000 sandboxes selected")
    person.get_by_role("searchbox", name="Find sandboxes").fill("many-99")
    expect(rows).to_have_count(111)
    person.get_by_role("searchbox", name="Find sandboxes").fill("")
    assert rows.count() < 150


def test_a_server_without_keys_shows_no_account(tenants: TenantsServer, person: Page) -> None:
    """Such a server has one user, who may do everything but has no tenants. It answers as this one is made to here."""
    me = {**tenants.operator.json("GET", "/api/v2/me"), "key": None, "name": None, "tenants": False}
    sign_in(person, tenants.url, tenants.operator.key)
    html = person.request.get(f"{tenants.url}/")
    assert 'data-keys="required"' in html.text()
    person.route(f"{tenants.url}/", lambda route: route.fulfill(response=html, body=html.text().replace('data-keys="required"', 'data-keys="none"')))
    person.route("**/api/v2/me", lambda route: route.fulfill(json=me))
    person.reload()
    expect(navigation(person).get_by_role("link")).to_have_text([*ALWAYS, "Secrets", "Models", "Webhooks", "Nodes", "API docs", "Settings"])
    expect(person.get_by_role("button", name="Sign out")).to_have_count(0)
    expect(person.get_by_role("group", name="Account")).not_to_contain_text("default")
