"""The console's list of sandboxes, the palette, themes, secrets and routes to models; and how its files are served."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator

import httpx
import pytest
from consoles import HOSTILE, answer, error, heading, navigation, notification, picture, row, show, sign_in, violations
from playwright.sync_api import Locator, Page, expect
from tenant import Tenant, TenantsServer
from waiting import until


@pytest.fixture
def several(acme: Tenant) -> Iterator[list[str]]:
    """Sandboxes of two teams, the oldest first."""
    names = ["many-a", "many-b", "many-c"]
    for name, team in zip(names, ("red", "blue", "red"), strict=True):
        acme.json("POST", "/api/v2/sandboxes", json={"name": name, "labels": {"team": team}})
    yield names
    for name in names:
        acme.http.delete(f"/api/v2/sandboxes/{name}")


def names(page: Page) -> Locator:
    return page.get_by_role("table", name="Sandboxes").locator("a.title")


def states(acme: Tenant) -> dict[str, str]:
    return {one["name"]: one["state"] for one in acme.json("GET", "/api/v2/sandboxes")["sandboxes"] if one["name"].startswith("many-")}


class TestTheList:
    def test_it_is_sorted_searched_filtered_and_saved_as_a_view(self, tenants: TenantsServer, acme: Tenant, several: list[str], person: Page) -> None:
        sign_in(person, tenants.url, acme.key)
        # The newest first.
        expect(names(person)).to_have_text(["many-c", "many-b", "many-a"])
        table = person.get_by_role("table", name="Sandboxes")
        table.get_by_role("button", name="Name", exact=True).click()
        expect(names(person)).to_have_text(["many-a", "many-b", "many-c"])
        expect(table.get_by_role("columnheader", name="Name")).to_have_attribute("aria-sort", "ascending")
        # The server filters by label and state.
        with person.expect_request(lambda request: "label=team%3Dred" in request.url):
            person.get_by_role("button", name="Filter by label").click()
            person.get_by_role("dialog").get_by_label("Label").fill("team=red")
            person.keyboard.press("Enter")
        expect(names(person)).to_have_text(["many-a", "many-c"])
        acme.json("POST", "/api/v2/sandboxes/many-c/pause", json={})
        person.get_by_role("button", name="Filter by state").click()
        person.get_by_role("menuitemcheckbox", name="paused").click()
        expect(names(person)).to_have_text(["many-c"])
        assert "state=paused" in person.url
        # The address has all of it, so going back to it shows the same.
        person.reload()
        expect(names(person)).to_have_text(["many-c"])
        person.get_by_role("button", name="Views", exact=True).click()
        person.get_by_role("menuitem", name="Save this view").click()
        person.get_by_role("dialog").get_by_label("Name").fill(f"red {HOSTILE}")
        person.get_by_role("dialog").get_by_role("button", name="Save").click()
        person.get_by_role("button", name="Clear filters").click()
        expect(names(person)).to_have_count(3)
        person.reload()
        expect(names(person)).to_have_count(3)
        person.get_by_role("button", name="Views", exact=True).click()
        person.get_by_role("menuitemcheckbox", name=f"red {HOSTILE}").click()
        expect(names(person)).to_have_text(["many-c"])
        person.get_by_role("button", name=f"View: red {HOSTILE}").click()
        person.get_by_role("menuitem", name=f"Remove red {HOSTILE}").click()
        person.get_by_role("button", name="Remove the filter state: paused").click()
        person.get_by_role("searchbox", name="Find sandboxes").fill("many-c")
        expect(names(person)).to_have_text(["many-c"])
        person.get_by_role("searchbox", name="Find sandboxes").fill("none of these")
        person.get_by_role("button", name="Show all").click()
        expect(names(person)).to_have_count(3)

    def test_many_are_paused_resumed_and_deleted_at_once(self, tenants: TenantsServer, acme: Tenant, several: list[str], person: Page) -> None:
        sign_in(person, tenants.url, acme.key)
        expect(names(person)).to_have_count(3)
        bulk = person.get_by_role("group", name="Selected sandboxes")
        # By keyboard: x selects the row with the focus.
        person.keyboard.press("j")
        expect(names(person).first).to_be_focused()
        person.keyboard.press("x")
        person.keyboard.press("j")
        person.keyboard.press("x")
        expect(bulk).to_contain_text("2 sandboxes selected")
        bulk.get_by_role("button", name="Pause selected").click()
        expect(notification(person)).to_contain_text("Paused 2 sandboxes.")
        until(lambda: states(acme) == {"many-a": "running", "many-b": "paused", "many-c": "paused"})
        person.get_by_role("checkbox", name="Select all rows").check()
        bulk.get_by_role("button", name="Resume selected").click()
        expect(notification(person)).to_contain_text("Resumed 2 sandboxes.")
        assert set(states(acme).values()) == {"running"}
        bulk.get_by_role("button", name="Delete selected").click()
        expect(person.get_by_role("dialog", name="Delete 3 sandboxes?")).to_be_visible()
        answer(person, "Delete")
        expect(person.get_by_text("No sandboxes yet")).to_be_visible()
        assert states(acme) == {}

    def test_operators_see_those_of_each_tenant(self, tenants: TenantsServer, acme: Tenant, several: list[str], person: Page) -> None:
        operator = tenants.operator
        operator.json("POST", "/api/v2/sandboxes", json={"name": "many-a"})
        listed = [one["name"] for one in operator.json("GET", "/api/v2/sandboxes", params={"tenant": "acme", "label": "team=red"})["sandboxes"]]
        assert listed == ["many-a", "many-c"]
        assert tenants.command(operator.key, "ls", "-q", "--tenant", "acme", "--newest").stdout.split() == ["many-c", "many-b", "many-a"]
        for caller, tenant, status in ((acme, "default", 403), (operator, "nobody", 404), (operator, "N o", 400)):
            assert caller.http.get("/api/v2/sandboxes", params={"tenant": tenant}).status_code == status
        sign_in(person, tenants.url, operator.key)
        expect(names(person).filter(has_text="many-")).to_have_text(["many-a"])
        person.get_by_role("button", name="Filter by tenant").click()
        person.get_by_role("menuitemcheckbox", name="acme").click()
        expect(person.get_by_role("table", name="Sandboxes").locator("span.title").filter(has_text="many-")).to_have_text(["many-c", "many-b", "many-a"])
        # The operator's own sandbox of that name is out of reach here.
        expect(names(person)).to_have_count(0)
        expect(person.get_by_role("button", name="Delete many-a")).to_have_count(0)
        expect(person.get_by_role("checkbox")).to_have_count(0)
        assert violations(person) == []
        picture(person, "list-tenant")
        person.get_by_role("button", name="Remove the filter tenant: acme").click()
        expect(names(person).filter(has_text="many-")).to_have_text(["many-a"])
        operator.json("DELETE", "/api/v2/sandboxes/many-a")

    def test_a_key_that_only_reads_selects_nothing(self, tenants: TenantsServer, acme: Tenant, several: list[str], person: Page) -> None:
        sign_in(person, tenants.url, acme.new_key("read")["key"])
        expect(names(person)).to_have_count(3)
        expect(person.get_by_role("checkbox")).to_have_count(0)
        person.keyboard.press("c")
        expect(person.get_by_role("dialog")).to_have_count(0)


class TestTheShell:
    def test_the_palette_finds_pages_sandboxes_and_actions(self, tenants: TenantsServer, acme: Tenant, several: list[str], person: Page) -> None:
        sign_in(person, tenants.url, acme.key)
        expect(names(person)).to_have_count(3)

        def run(words: str) -> None:
            person.keyboard.press("Control+k")
            expect(person.get_by_role("combobox", name="Search pages, sandboxes and actions")).to_be_focused()
            person.keyboard.type(words)
            expect(person.get_by_role("dialog").get_by_role("option", selected=True)).to_be_visible()
            person.keyboard.press("Enter")

        run("audit")
        expect(heading(person)).to_have_text("Audit log")
        expect(heading(person)).to_be_focused()
        run("many-b")
        expect(heading(person)).to_have_text("many-b")
        run("create sand")
        expect(person.get_by_role("dialog", name="Create sandboxes").get_by_label("Name", exact=True)).to_be_focused()
        person.keyboard.press("Escape")
        expect(person.get_by_role("dialog")).to_have_count(0)
        # Going back closes what is open on a page.
        person.keyboard.press("g")
        person.keyboard.press("v")
        expect(heading(person)).to_have_text("Volumes")
        person.keyboard.press("c")
        expect(person.get_by_role("dialog")).to_be_visible()
        person.go_back()
        expect(person.get_by_role("dialog")).to_have_count(0)
        expect(heading(person)).to_have_text("many-b")

    def test_single_keys_can_be_switched_off(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        sign_in(person, tenants.url, acme.key, "#/settings")
        person.get_by_label("Single keys are shortcuts").uncheck()
        heading(person).focus()
        person.keyboard.press("c")
        person.keyboard.press("?")
        expect(person.get_by_role("dialog")).to_have_count(0)
        person.keyboard.press("Control+k")
        expect(person.get_by_role("combobox", name="Search pages, sandboxes and actions")).to_be_focused()

    def test_a_theme_stays_and_is_there_before_the_first_paint(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        person.emulate_media(color_scheme="light")
        sign_in(person, tenants.url, acme.key, "#/settings")
        ground = "getComputedStyle(document.body).backgroundColor"
        light = person.evaluate(ground)
        person.get_by_role("button", name="Dark", exact=True).click()
        dark = person.evaluate(ground)
        assert dark != light
        # Without the main script, the page is dark, too.
        person.route(re.compile(r"/static/web/.*\.js$"), lambda route: route.abort())
        person.reload()
        assert person.evaluate(ground) == dark
        person.unroute_all()
        person.reload()
        expect(heading(person)).to_have_text("Settings")
        assert person.evaluate(ground) == dark

    def test_a_theme_reaches_a_dashboard_which_is_on_another_host(
        self, tenants: TenantsServer, acme: Tenant, several: list[str], person: Page
    ) -> None:
        person.emulate_media(color_scheme="light")
        chosen = "({ ...document.documentElement.dataset })"
        sign_in(person, tenants.url, acme.key)
        for theme, contrast in (("Dark", "High"), ("As the system", "As the system")):
            person.goto(f"{tenants.url}/#/settings")
            person.get_by_role("group", name="Theme").get_by_role("button", name=theme, exact=True).click()
            person.get_by_role("group", name="Contrast").get_by_role("button", name=contrast, exact=True).click()
            person.goto(f"{tenants.url}/#/sandboxes/{several[0]}")
            person.get_by_role("link", name="Dashboard", exact=True).click()
            expect(person).to_have_title(f"{several[0]}: Arenite")
            assert person.url.startswith(f"http://{acme.json('GET', f'/api/v2/sandboxes/{several[0]}')['id']}.")
            assert "theme" not in person.url
            wanted = {"theme": "dark", "contrast": "more"} if theme == "Dark" else {}
            assert person.evaluate(chosen) == wanted
            person.reload()
            assert person.evaluate(chosen) == wanted

    def test_all_works_without_motion_and_at_200_percent(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        person.emulate_media(reduced_motion="reduce")
        # 1280 pixels at 200 %.
        person.set_viewport_size({"width": 640, "height": 430})
        sign_in(person, tenants.url, acme.key)
        for name in ("Overview", "Usage", "Keys", "Settings"):
            show(person, name)
            assert person.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        running = person.evaluate("document.getAnimations().filter(one => one.effect.getComputedTiming().duration > 2).length")
        assert running == 0


class TestSecretsAndModels:
    def test_a_secret_is_created_rotated_changed_and_revoked(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        value = "sk-the-value-of-the-secret"
        sign_in(person, tenants.url, acme.key)
        show(person, "Secrets")
        person.get_by_role("button", name="Create a secret").click()
        dialog = person.get_by_role("dialog")
        dialog.get_by_role("button", name="Create", exact=True).click()
        expect(error(dialog.get_by_label("Name"))).to_have_text("Give it a name.")
        expect(error(dialog.get_by_label("Hosts"))).to_have_text("Name the hosts that get it.")
        dialog.get_by_label("Name").fill("upstream")
        dialog.get_by_label("Value").fill(value)
        dialog.get_by_label("Hosts").fill("not a host!")
        dialog.get_by_role("button", name="Create", exact=True).click()
        expect(dialog.get_by_role("alert")).to_be_visible()
        dialog.get_by_label("Hosts").fill("api.example.com\nother.example.com")
        dialog.get_by_role("button", name="Create", exact=True).click()
        expect(row(person, "upstream")).to_contain_text("api.example.com, other.example.com")
        made = acme.json("GET", "/api/v2/secrets/upstream")
        assert made["hosts"] == ["api.example.com", "other.example.com"]
        # The value is written, and nowhere to be read.
        assert value not in person.content()
        row(person, "upstream").get_by_role("button", name="Rotate").click()
        dialog.get_by_label("New value").fill("sk-another-value")
        dialog.get_by_role("button", name="Rotate", exact=True).click()
        expect(notification(person)).to_contain_text("Rotated upstream.")
        assert acme.json("GET", "/api/v2/secrets/upstream")["rotated_at"] > made["rotated_at"]
        row(person, "upstream").get_by_role("button", name="Change").click()
        dialog.get_by_label("Query").check()
        dialog.get_by_role("button", name="Change", exact=True).click()
        expect(row(person, "upstream").locator(".badge")).to_have_text(["header", "query"])
        row(person, "upstream").get_by_role("button", name="Revoke").click()
        answer(person, "Revoke")
        expect(person.get_by_text("No secrets yet")).to_be_visible()
        assert acme.json("GET", "/api/v2/secrets")["secrets"] == []

    def test_a_route_to_models_has_a_budget(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        sign_in(person, tenants.url, acme.key)
        show(person, "Models")
        person.get_by_role("button", name="Create a route").click()
        dialog = person.get_by_role("dialog")
        dialog.get_by_label("Name").fill("gpt")
        dialog.get_by_label("Upstream").fill("https://api.example.com/v1")
        dialog.get_by_label("Budget in dollars").fill("much")
        dialog.get_by_role("button", name="Create", exact=True).click()
        expect(error(dialog.get_by_label("Budget in dollars"))).to_contain_text("such as 20")
        dialog.get_by_label("Budget in dollars").fill("20")
        dialog.get_by_role("button", name="Create", exact=True).click()
        expect(error(dialog.get_by_label("Prices"))).to_have_text("A budget in dollars needs prices.")
        dialog.get_by_label("Prices").fill("gpt-5*=1.25,10,0.125\n*=2,8")
        dialog.get_by_label("Budget in tokens").fill("1,000,000")
        dialog.get_by_label("Models").fill("gpt-5*")
        dialog.get_by_label("Requests a minute").fill("60")
        dialog.get_by_role("button", name="Create", exact=True).click()
        mine = row(person, "gpt")
        expect(mine).to_contain_text("0 of 1,000,000")
        expect(mine).to_contain_text("$0.00 of $20.00")
        made = acme.json("GET", "/api/v2/models/gpt")
        assert (made["budget"], made["models"], made["requests_per_minute"]) == ({"tokens": 1_000_000, "cost_usd": 20}, ["gpt-5*"], 60)
        prices = [(one["models"], one["input"], one["output"], one.get("cached")) for one in made["prices"]]
        assert prices == [("gpt-5*", 1.25, 10, 0.125), ("*", 2, 8, None)]
        mine.get_by_role("button", name="Change").click()
        expect(dialog.get_by_label("Prices")).to_have_value("gpt-5*=1.25,10,0.125\n*=2,8")
        expect(dialog.get_by_label("Budget in dollars")).to_have_value("20")
        dialog.get_by_label("Budget in dollars").fill("30.5")
        dialog.get_by_role("button", name="Change", exact=True).click()
        expect(mine).to_contain_text("$30.50")
        changed = acme.json("GET", "/api/v2/models/gpt")
        assert changed["budget"]["cost_usd"] == 30.5 and changed["models"] == ["gpt-5*"]
        mine.get_by_role("button", name="Remove").click()
        answer(person, "Remove")
        expect(person.get_by_text("No routes to models yet")).to_be_visible()


def test_its_files_are_small_immutable_and_the_only_ones(tenants: TenantsServer, acme: Tenant, person: Page) -> None:
    cookies = httpx.post(f"{tenants.url}/login", json={"key": acme.key}).cookies
    page = httpx.get(f"{tenants.url}/", headers={"accept": "text/html"}, cookies=cookies)
    policy = page.headers["content-security-policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy and "require-trusted-types-for 'script'" in policy
    files = re.findall(r'"(static/web/[^"]+)"\s+integrity="(sha256-[^"]+)"', page.text)
    assert [name.rsplit(".", 1)[1] for name, _ in files] == ["css", "js"]
    total = len(page.content)
    for name, integrity in files:
        for encoding in ("br", "gzip", "identity"):
            # They need no credentials.
            with httpx.stream("GET", f"{tenants.url}/{name}", headers={"accept-encoding": encoding}) as file:
                raw = b"".join(file.iter_raw())
            assert file.status_code == 200 and file.headers.get("content-encoding", "identity") == encoding
            assert "immutable" in file.headers["cache-control"] and file.headers["vary"] == "accept-encoding"
            if encoding == "gzip":
                total += len(raw)
        assert integrity == f"sha256-{base64.b64encode(hashlib.sha256(raw).digest()).decode()}"
        if name.endswith(".js"):
            assert f"'{integrity}'" in policy
    assert total <= 150_000
    assert httpx.get(f"{tenants.url}/static/web/console-0000000000000000.js").status_code == 404
    # The browser asks for these, for the API, and for nothing else.
    asked: list[str] = []
    person.on("request", lambda request: asked.append(request.url))
    sign_in(person, tenants.url, acme.key)
    expect(navigation(person)).to_be_visible()
    foreign = [url for url in asked if not url.startswith((tenants.url, "data:", "blob:"))]
    assert not foreign
    assert {url.removeprefix(f"{tenants.url}/") for url in asked if "/static/" in url} == {name for name, _ in files}
