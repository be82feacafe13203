"""The console's page of nodes, on a cluster: their state, and a drain with its progress."""

from __future__ import annotations

from collections.abc import Callable

import httpx
from arenite_server import Server
from commands import run
from consoles import PATIENCE, answer, error, heading, picture, row, violations
from nodes import create_on_all, nodes_of
from playwright.sync_api import Browser, expect
from postgres import Postgres


def test_a_node_is_drained_and_takes_sandboxes_again(postgres: Postgres, own_server: Callable[..., Server], browser: Browser) -> None:
    args = {"green": ("--node-label", "zone=east")}
    with nodes_of(postgres, own_server, args) as nodes:
        red = nodes["red"]
        made = create_on_all(postgres, red, least=1)["green"]
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        mistakes: list[str] = []
        page.on("pageerror", lambda error: mistakes.append(str(error)))
        page.goto(f"{red.url}/#/")
        page.get_by_role("button", name="Filter by node").click()
        page.get_by_role("menuitemcheckbox", name="green").click()
        expect(page.get_by_role("status", name="Number of sandboxes")).to_have_text(str(len(made)))
        expect(row(page, made[0])).to_contain_text("green")
        picture(page, "console-of-node")
        of_green = httpx.get(f"{nodes['blue'].url}/api/v2/sandboxes?node=green", timeout=30).raise_for_status().json()["sandboxes"]
        assert sorted(one["name"] for one in of_green) == sorted(made) and {one["node"] for one in of_green} == {"green"}
        assert sorted(run(red, "ls", "--node", "green", "-q").stdout.split()) == sorted(made)
        page.goto(f"{red.url}/#/nodes")
        expect(heading(page)).to_have_text("Nodes")
        expect(page.get_by_role("table", name="Nodes").locator("tbody tr")).to_have_count(3)
        green = row(page, "green")
        for text in ("up", "zone=east", str(len(made))):
            expect(green).to_contain_text(text)
        green.get_by_role("button", name="Drain green").click()
        dialog = page.get_by_role("dialog", name="Drain the node green?")
        expect(dialog).to_contain_text(f"{len(made)} sandbox")
        dialog.get_by_label("Delete those that are left after").fill("soon")
        dialog.get_by_role("button", name="Drain").click()
        expect(error(dialog.get_by_label("Delete those that are left after"))).to_contain_text("90s")
        dialog.get_by_label("Delete those that are left after").fill("1h")
        dialog.get_by_role("button", name="Drain").click()
        expect(green).to_contain_text(f"draining: {len(made)} left")
        picture(page, "console-nodes")
        green.get_by_role("link", name="green").click()
        expect(heading(page)).to_have_text("green")
        drain = page.get_by_role("status").filter(has_text="The node gets no new ones")
        expect(drain).to_contain_text("They are deleted in")
        picture(page, "console-node")
        assert violations(page) == []
        for name in made:
            httpx.delete(f"{red.url}/api/v2/sandboxes/{name}", timeout=60).raise_for_status()
        expect(drain).to_contain_text("No sandboxes are left")
        page.get_by_role("button", name="End the drain of green").click()
        answer(page, "End the drain")
        expect(drain).to_have_count(0)
        listed = httpx.get(f"{red.url}/api/v2/nodes", timeout=30).raise_for_status().json()["nodes"]
        assert next(one for one in listed if one["name"] == "green")["drain"] is None
        page.goto(f"{red.url}/#/nodes/none")
        expect(page.get_by_role("heading", name="There is no such node")).to_be_visible()
        context.close()
        assert not mistakes


def test_workers_of_all_nodes_are_listed(postgres: Postgres, own_server: Callable[..., Server], browser: Browser) -> None:
    with nodes_of(postgres, own_server) as nodes:
        for name, node in nodes.items():
            made = httpx.post(f"{node.url}/api/v1/session/create", json={"worker_id": f"w-{name}", "resource_type": "bash"}, timeout=60).raise_for_status().json()
            assert made["code"] == 0, made
        listed = httpx.get(f"{nodes['red'].url}/api/v2/workers", timeout=30).raise_for_status().json()
        assert {one["worker_id"] for one in listed["workers"]} == {f"w-{name}" for name in nodes}
        owners = {one["worker_id"]: one["node"] for one in listed["workers"]}
        assert set(owners.values()) <= set(nodes) and "warnings" not in listed
        # Pages of two lists are one.
        first = httpx.get(f"{nodes['blue'].url}/api/v2/workers?limit=2", timeout=30).json()
        rest = httpx.get(f"{nodes['blue'].url}/api/v2/workers?limit=2&cursor={first['next_cursor']}", timeout=30).json()
        assert [one["worker_id"] for one in first["workers"] + rest["workers"]] == sorted(owners)
        page = browser.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(f"{nodes['red'].url}/#/workers")
        for worker, node in owners.items():
            expect(row(page, worker)).to_contain_text(node)
        nodes["green"].kill()
        expect(page.get_by_role("status").filter(has_text="green")).to_contain_text("workers", timeout=60_000)
        page.close()
        nodes["green"].start()
        for name, node in nodes.items():
            httpx.post(f"{node.url}/api/v1/worker/disconnect", json={"worker_id": f"w-{name}"}, timeout=60)
