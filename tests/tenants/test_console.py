"""The console in a real Chromium: signing in, creating, and the pages of admins; each page with axe, light, dark and narrow."""

from __future__ import annotations

import os
import re
import shlex
import signal
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import REPOSITORY
from playwright.sync_api import Browser, Locator, Page, expect
from tenant import Tenant, TenantsServer, first_process
from waiting import until

#: Milliseconds for the server's work; a loaded machine takes its time.
PATIENCE = 45_000
#: Would become an element and run, if a page took it as markup.
HOSTILE = "<img src=x onerror=document.title='owned'>"
PAGES = {"read": "", "use": "", "manage": "", "admin": "Keys, Webhooks, Audit log", "operator": "Keys, Webhooks, Audit log, Tenants"}
AXE = REPOSITORY / "tests/clients/node_modules/axe-core/axe.min.js"
LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
LOOKS = {"light": ("light", 1280, 860), "dark": ("dark", 1280, 860), "narrow": ("light", 390, 844)}


@pytest.fixture(scope="module")
def acme(tenants: TenantsServer) -> Iterator[Tenant]:
    tenant = tenants.tenant("acme")
    yield tenant
    tenants.operator.json("DELETE", "/api/v2/tenants/acme?force=true")


@pytest.fixture
def person(browser: Browser, tenants: TenantsServer) -> Iterator[Page]:
    """A page that must not make mistakes. Refused requests are none: the browser reports each as an error."""
    mistakes: list[str] = []
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.set_default_navigation_timeout(PATIENCE)
    page.on("pageerror", lambda error: mistakes.append(str(error)))
    page.on("console", lambda message: mistakes.append(message.text) if message.type == "error" and "Failed to load resource" not in message.text else None)
    expect.set_options(timeout=PATIENCE)
    yield page
    assert page.title() != "owned"
    context.close()
    assert not mistakes


def picture(page: Page, name: str) -> None:
    if folder := os.environ.get("ARENITE_TEST_PICTURES"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


def sign_in(page: Page, url: str, key: str, path: str = "") -> None:
    page.goto(f"{url}/{path}")
    page.fill("#key", key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#account")).to_be_visible()


def show(page: Page, name: str) -> Locator:
    """The page of that name, by its link."""
    page.locator("#pages").get_by_role("link", name=name, exact=True).click()
    expect(page.locator("#pages [aria-current]")).to_have_text(name)
    return page.locator("main")


def row(page: Page, text: str) -> Locator:
    return page.get_by_role("row").filter(has_text=text)


def error(field: Locator) -> Locator:
    """The error that is shown at a field."""
    return field.locator("xpath=..").locator(".bad")


class TestSigningIn:
    @pytest.mark.parametrize("role", PAGES)
    def test_a_role_gets_what_it_may_do(self, tenants: TenantsServer, acme: Tenant, person: Page, role: str) -> None:
        sandbox = f"of-{role}"
        acme.json("POST", "/api/v2/sandboxes", json={"name": sandbox})
        if role == "operator":
            body = {"tenant": "acme", "name": f"{role} {HOSTILE}", "role": "admin", "operator": True}
            key = tenants.operator.json("POST", "/api/v2/keys", json=body)["key"]
        else:
            key = acme.json("POST", "/api/v2/keys", json={"name": f"{role} {HOSTILE}", "role": role})["key"]
        person.goto(tenants.url)
        person.fill("#key", "arn_wrong")
        person.get_by_role("button", name="Sign in").click()
        expect(person.locator("#message")).to_have_text("Invalid key, token or ticket.")
        sign_in(person, tenants.url, key)
        account = person.locator("#account")
        for text in ("acme", role, f"{role} {HOSTILE}"):
            expect(account).to_contain_text(text)
        assert account.locator("img").count() == 0
        wanted = ["Sandboxes", "Snapshots", "Volumes", "Groups", "Usage", *(PAGES[role].split(", ") if PAGES[role] else [])]
        expect(person.locator("#pages a")).to_have_text(wanted)
        expect(row(person, sandbox).locator(".state.running")).to_be_visible()
        manages = role in ("manage", "admin", "operator")
        assert person.locator("#create").is_visible() == manages
        assert person.locator("#create-more").is_visible() == manages
        assert person.locator("#first-call").is_visible() == (role != "read")
        assert (row(person, sandbox).get_by_role("button", name=f"Pause {sandbox}").count() == 1) == manages
        assert (row(person, sandbox).get_by_role("button", name=f"Delete {sandbox}").count() == 1) == manages
        row(person, sandbox).get_by_role("link", name=f"Details of {sandbox}").click()
        expect(person.get_by_role("heading", name=sandbox)).to_be_visible()
        tools = person.locator("#page-sandbox .tools").get_by_role("button")
        expect(tools).to_have_text(["Steps", "Pause", "Extend", "Delete"] if manages else ["Steps"])
        # A page that the role may not see is not there under its address, either.
        person.goto(f"{tenants.url}/#/tenants")
        expect(person.locator("#pages [aria-current]")).to_have_text("Tenants" if role == "operator" else "Sandboxes")
        person.locator("#sign-out").click()
        expect(person.locator("#key")).to_be_visible()
        assert person.evaluate("fetch('api/v2/me').then(answer => answer.status)") == 401
        acme.json("DELETE", f"/api/v2/sandboxes/{sandbox}")

    def test_a_key_that_ends_asks_for_another(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        made = acme.new_key("manage")
        sign_in(person, tenants.url, made["key"])
        acme.json("DELETE", f"/api/v2/keys/{made['id']}")
        expect(person.locator("#sign-in")).to_be_visible()
        person.fill("#sign-in #key", acme.key)
        person.locator("#sign-in button").click()
        # It has other rights, so the page starts again with them.
        expect(person.locator("#pages a", has_text="Keys")).to_be_visible()
        expect(person.locator("#account")).to_contain_text("admin")


class TestCreating:
    def test_all_settings_reach_the_sandbox(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        name = f"web-{uuid.uuid4().hex[:6]}"
        sign_in(person, tenants.url, acme.key)
        expect(person.locator("#create select option").nth(1)).to_be_attached()
        # Only by keyboard: c opens it, Enter creates.
        person.keyboard.press("c")
        dialog = person.locator("#create-dialog")
        expect(dialog.get_by_label("Name", exact=True)).to_be_focused()
        person.keyboard.type(name)
        for label, text in (("CPU", "0.5"), ("Memory", "256MiB"), ("Disk", "1GiB"), ("Lifetime", "2h"), ("Idle timeout", "30m"), ("Main command", "echo started; sleep 1000")):
            dialog.get_by_label(label, exact=True).fill(text)
        dialog.get_by_label("Image").select_option("base")
        dialog.get_by_label("Network").select_option("none")
        dialog.get_by_label("When idle").select_option("pause")
        for number, (key, value) in enumerate([("GREETING", "it's \"here\""), ("EMPTY", "")], 1):
            dialog.get_by_label(f"Name of variable {number}").fill(key)
            dialog.get_by_label(f"Value of variable {number}").fill(value)
        dialog.get_by_label("Name of label 1").fill("note")
        dialog.get_by_label("Value of label 1").fill(HOSTILE)
        picture(person, "create")
        codes = {}
        for language in ("curl", "Command line", "Python"):
            dialog.get_by_role("button", name=language, exact=True).click()
            codes[language] = dialog.locator("pre").inner_text()
        assert "--memory 256MiB" in codes["Command line"] and f"arenite create {name}" in codes["Command line"]
        compile(codes["Python"], "the dialog's code", "exec")
        dialog.get_by_label("Number").press("Enter")
        expect(dialog).to_have_count(0)
        expect(person.locator("#message")).to_contain_text(f"Created {name}")
        made = acme.json("GET", f"/api/v2/sandboxes/{name}")
        spec = made["spec"]
        limits = {key: spec["resources"][key] for key in ("cpu_millis", "memory_bytes", "disk_bytes")}
        assert limits == {"cpu_millis": 500, "memory_bytes": 256 << 20, "disk_bytes": 1 << 30}
        assert (spec["image"], spec["network"], spec["idle_policy"]) == ("base", "none", "pause")
        assert (spec["timeout_seconds"], spec["idle_timeout_seconds"]) == (7200, 1800)
        assert spec["env"] == {"GREETING": "it's \"here\"", "EMPTY": ""} and spec["labels"] == {"note": HOSTILE}
        assert spec["args"] == ["sh", "-c", "echo started; sleep 1000"]
        # The label is text in the page of the sandbox, and it finds the row.
        person.fill("#find", "note=<img")
        row(person, name).get_by_role("link", name=f"Details of {name}").click()
        expect(person.locator(".facts").first).to_contain_text(HOSTILE)
        expect(person.locator("pre.log")).to_contain_text("started")
        # The code that it showed creates the same.
        acme.json("DELETE", f"/api/v2/sandboxes/{name}")
        script = codes["Python"].replace("import arenite", "") + f"\nassert sandbox.name == {name!r}\n"
        assert '"GREETING"' in script
        curl = httpx.post(f"{tenants.url}/api/v2/sandboxes", headers=acme.headers, content=body_of(codes["curl"]), timeout=60)
        assert curl.status_code == 201 and curl.json()["spec"]["labels"] == {"note": HOSTILE}
        acme.json("DELETE", f"/api/v2/sandboxes/{name}")

    def test_several_and_their_names(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        sign_in(person, tenants.url, acme.key)
        person.get_by_role("button", name="More settings").click()
        dialog = person.locator("#create-dialog")
        dialog.get_by_label("Name", exact=True).fill("several")
        dialog.get_by_label("Number").fill("2")
        dialog.get_by_role("button", name="Create", exact=True).click()
        expect(person.locator("#message")).to_contain_text("Created several-0, several-1.")
        for name in ("several-0", "several-1"):
            expect(row(person, name).locator(".state.running")).to_be_visible()
            acme.json("DELETE", f"/api/v2/sandboxes/{name}")

    def test_errors_are_at_their_fields(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        tenants.operator.json("PATCH", "/api/v2/tenants/acme", json={"limits": {"memory_bytes": 1 << 30}})
        acme.json("POST", "/api/v2/sandboxes", json={"name": "taken", "resources": {"memory_bytes": 128 << 20}})
        try:
            sign_in(person, tenants.url, acme.key)
            person.get_by_role("button", name="More settings").click()
            dialog = person.locator("#create-dialog")
            name, memory, create = dialog.get_by_label("Name", exact=True), dialog.get_by_label("Memory", exact=True), dialog.get_by_role("button", name="Create", exact=True)

            # What the page itself finds.
            memory.fill("much")
            create.click()
            expect(error(memory)).to_contain_text("512MiB")
            expect(memory).to_be_focused()
            expect(memory).to_have_attribute("aria-invalid", "true")
            # The quota, with its limit.
            memory.fill("4GiB")
            create.click()
            expect(error(memory)).to_contain_text(re.compile("1 GiB|1073741824"))
            picture(person, "create-refused")
            # Other refusals of the server.
            memory.fill("1MiB")
            create.click()
            expect(error(memory)).to_contain_text("outside")
            memory.fill("128MiB")
            name.fill("taken")
            create.click()
            expect(error(name)).to_contain_text("already exists")
            name.fill("Not A Name")
            create.click()
            expect(error(name)).to_contain_text("not valid")
            assert [one["name"] for one in acme.json("GET", "/api/v2/sandboxes")["sandboxes"]] == ["taken"]
        finally:
            acme.json("DELETE", "/api/v2/sandboxes/taken")
            tenants.operator.json("PATCH", "/api/v2/tenants/acme", json={"limits": {"memory_bytes": None}})


def body_of(curl: str) -> str:
    """The body of a curl command as a shell passes it."""
    words = shlex.split(curl.replace("\\\n", ""))
    return words[words.index("-d") + 1]


class TestLifecycle:
    def test_the_page_of_a_sandbox(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        name = f"busy-{uuid.uuid4().hex[:6]}"
        line = f"line {HOSTILE}"
        script = f"i=0; while true; do i=$((i+1)); echo \"$i {line}\"; sleep 0.3; done"
        acme.json("POST", "/api/v2/sandboxes", json={"name": name, "args": ["sh", "-c", script], "env": {"A": HOSTILE}})
        sign_in(person, tenants.url, acme.key, f"#/sandboxes/{name}")
        page = person.locator("#page-sandbox")
        expect(page.get_by_role("heading", name=name)).to_be_visible()
        expect(page.locator(".chart .value").first).to_have_text(re.compile(r"^(< )?[\d.]+ of [\d.]+ cores?$"))
        expect(page.locator(".chart .value").nth(1)).to_have_text(re.compile(r"MiB of"))
        log = page.locator("pre.log")
        expect(log).to_contain_text(f"1 {line}")
        # It follows.
        expect(log).to_contain_text(f"9 {line}")
        assert page.locator("img").count() == 0
        picture(person, "sandbox")
        page.get_by_role("button", name="Pause").click()
        expect(page.locator(".state.paused")).to_be_visible()
        expect(page.locator(".log-box")).to_contain_text("paused")
        assert acme.json("GET", f"/api/v2/sandboxes/{name}")["state"] == "paused"
        # Looking does not wake it.
        time.sleep(3)
        assert acme.json("GET", f"/api/v2/sandboxes/{name}")["state"] == "paused"
        page.get_by_role("button", name="Resume").click()
        expect(page.locator(".state.running")).to_be_visible()
        page.get_by_role("button", name="Delete").click()
        expect(person.locator("#confirm-title")).to_contain_text(name)
        person.keyboard.press("Enter")
        expect(person.locator("#confirm")).to_have_count(0)
        page.get_by_role("button", name="Delete").click()
        person.click('#confirm button[value="yes"]')
        expect(person.locator("#page-sandboxes")).to_be_visible()
        assert acme.http.get(f"/api/v2/sandboxes/{name}").status_code == 404

    def test_its_lifetime_is_extended_up_to_the_quota(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        made = acme.json("POST", "/api/v2/sandboxes", json={"name": "longer", "timeout_seconds": 7200})
        tenants.operator.json("PATCH", "/api/v2/tenants/acme", json={"limits": {"max_timeout_seconds": 6 * 3600}})
        try:
            sign_in(person, tenants.url, acme.key, "#/sandboxes/longer")
            page = person.locator("#page-sandbox")
            expect(page.locator(".facts").first).to_contain_text("deleted in 1 h")
            page.get_by_role("button", name="Extend").click()
            dialog = person.locator("dialog[open]")
            dialog.get_by_label("By").fill("soon")
            dialog.get_by_role("button", name="Extend").click()
            expect(error(dialog.get_by_label("By"))).to_contain_text("90s")
            dialog.get_by_label("By").fill("3h")
            dialog.get_by_role("button", name="Extend").click()
            expect(dialog).to_have_count(0)
            expect(page.locator(".facts").first).to_contain_text("deleted in 4 h")
            before, after = (datetime.fromisoformat(one["expires_at"]) for one in (made, acme.json("GET", "/api/v2/sandboxes/longer")))
            assert (after - before).total_seconds() == 3 * 3600
            page.get_by_role("button", name="Extend").click()
            dialog.get_by_label("By").fill("2d")
            dialog.get_by_role("button", name="Extend").click()
            expect(dialog.locator(".bad[role=alert]")).to_contain_text(re.compile("21600|6 h"))
        finally:
            acme.json("DELETE", "/api/v2/sandboxes/longer")
            tenants.operator.json("PATCH", "/api/v2/tenants/acme", json={"limits": {"max_timeout_seconds": None}})

    def test_one_that_ended_says_why(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        made = acme.json("POST", "/api/v2/sandboxes", json={"name": "ended"})
        os.kill(first_process(tenants, made), signal.SIGKILL)
        died = until(lambda: acme.json("GET", "/api/v2/sandboxes/ended")["died"])
        sign_in(person, tenants.url, acme.key)
        expect(row(person, "ended").locator(".reason")).to_have_text(died["message"])
        row(person, "ended").get_by_role("link", name="Details of ended").click()
        expect(person.locator(".died")).to_contain_text(died["reason"].replace("_", " "))
        expect(person.locator(".died")).to_contain_text(died["message"])
        person.locator("#page-sandbox").get_by_role("button", name="Start").click()
        expect(person.locator("#page-sandbox .state.running")).to_be_visible()
        expect(person.locator(".died")).to_be_hidden()
        acme.json("DELETE", "/api/v2/sandboxes/ended")

    def test_one_that_others_delete(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        acme.json("POST", "/api/v2/sandboxes", json={"name": "going"})
        sign_in(person, tenants.url, acme.key, "#/sandboxes/going")
        expect(person.locator("#page-sandbox .state.running")).to_be_visible()
        acme.json("DELETE", "/api/v2/sandboxes/going")
        expect(person.locator("#page-sandbox .message")).to_contain_text("was deleted")
        person.goto(f"{tenants.url}/#/sandboxes/{HOSTILE}")
        expect(person.locator("#page-sandbox .message.bad")).to_be_visible()


class TestAdmins:
    def test_a_key_is_created_used_rotated_and_revoked(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        sign_in(person, tenants.url, acme.key)
        show(person, "Keys")
        name = f"ci {HOSTILE}"

        def secret() -> str:
            shown = person.locator("dialog[open] input.secret")
            expect(shown).to_be_visible()
            value = shown.input_value()
            # Escape does not lose it.
            person.keyboard.press("Escape")
            expect(shown).to_be_visible()
            person.get_by_role("button", name="Done").click()
            expect(shown).to_have_count(0)
            return value

        person.get_by_role("button", name="Create a key").click()
        dialog = person.locator("dialog[open]")
        dialog.get_by_role("button", name="Create", exact=True).click()
        expect(dialog.locator(".bad").first).to_contain_text("name")
        dialog.get_by_label("Name").fill(name)
        dialog.get_by_label("Role").select_option("manage")
        dialog.get_by_label("Expires after").fill("2h")
        dialog.get_by_label("Bound to").fill("mine\nteam=red\n")
        dialog.get_by_role("button", name="Create", exact=True).click()
        key = secret()
        me = httpx.get(f"{tenants.url}/api/v2/me", headers={"x-api-key": key}).json()
        assert (me["name"], me["role"], sorted(me["bound"])) == (name, "manage", ["mine", "team=red"])
        assert me["expires_at"] is not None
        mine = row(person, me["key"])
        expect(mine).to_contain_text(name)
        expect(mine).to_contain_text("mine, team=red")
        assert mine.locator("img").count() == 0
        mine.get_by_role("button", name="Rotate").click()
        dialog.get_by_label("The old key is accepted for").fill("10m")
        dialog.get_by_role("button", name="Rotate").click()
        new = secret()
        ids = {}
        for each in (key, new):
            ids[each] = httpx.get(f"{tenants.url}/api/v2/me", headers={"x-api-key": each}).json()["key"]
        assert ids[key] != ids[new]
        for each in (key, new):
            row(person, ids[each]).get_by_role("button", name="Revoke").click()
            expect(person.locator("#question")).to_contain_text(ids[each])
            person.locator("#question").get_by_role("button", name="Revoke").click()
            expect(row(person, ids[each])).to_have_count(0)
            until(lambda each=each: httpx.get(f"{tenants.url}/api/v2/me", headers={"x-api-key": each}).status_code == 401)
        person.get_by_label("Also ended ones").check()
        expect(row(person, ids[new])).to_contain_text("revoked")

    def test_tenants(self, tenants: TenantsServer, person: Page) -> None:
        name = f"globex-{uuid.uuid4().hex[:6]}"
        sign_in(person, tenants.url, tenants.operator.key)
        show(person, "Tenants")
        person.get_by_role("button", name="Create a tenant").click()
        dialog = person.locator("dialog[open]")
        dialog.get_by_label("Name").fill("Not A Name")
        dialog.get_by_role("button", name="Create", exact=True).click()
        expect(dialog.locator(".bad[role=alert]")).to_be_visible()
        dialog.get_by_label("Name").fill(name)
        dialog.get_by_role("button", name="Create", exact=True).click()
        tenant = row(person, name)
        expect(tenant).to_contain_text("unlimited")
        person.get_by_role("button", name=f"Limits of {name}").click()
        dialog.get_by_label("Sandboxes").fill("3")
        dialog.get_by_label("Memory").fill("a lot")
        dialog.get_by_role("button", name="Save").click()
        expect(error(dialog.get_by_label("Memory"))).to_contain_text("512MiB")
        dialog.get_by_label("Memory").fill("4GiB")
        dialog.get_by_role("button", name="Save").click()
        expect(tenant.locator('[data-quota="sandboxes"] .value')).to_have_text("0 of 3")
        expect(tenant.locator('[data-quota="memory_bytes"] .value')).to_have_text("0 B of 4.0 GiB")
        limits = tenants.operator.json("GET", f"/api/v2/tenants/{name}")["limits"]
        assert {quota: limit for quota, limit in limits.items() if limit is not None} == {"sandboxes": 3, "memory_bytes": 4 << 30}
        tenants.operator.json("POST", "/api/v2/keys", json={"tenant": name, "name": "theirs", "role": "read"})
        person.get_by_role("button", name=f"Limits of {name}").click()
        expect(dialog.get_by_label("Memory")).to_have_value("4GiB")
        dialog.get_by_label("Memory").fill("")
        dialog.get_by_role("button", name="Save").click()
        expect(tenant.locator('[data-quota="memory_bytes"]')).to_have_count(0)
        tenant.get_by_role("link", name=re.compile(r"\d+ keys? of")).click()
        expect(row(person, "theirs")).to_be_visible()
        show(person, "Tenants")
        person.get_by_role("button", name=f"Disable {name}").click()
        person.locator("#question").get_by_role("button", name="Disable").click()
        expect(tenant).to_contain_text("disabled")
        assert tenants.operator.json("GET", f"/api/v2/tenants/{name}")["disabled"] is True
        person.get_by_role("button", name=f"Enable {name}").click()
        expect(tenant).to_contain_text("enabled")
        key = tenants.operator.json("POST", "/api/v2/keys", json={"tenant": name, "name": "theirs", "role": "manage"})["key"]
        httpx.post(f"{tenants.url}/api/v2/sandboxes", headers={"x-api-key": key}, json={"name": "left"}, timeout=60).raise_for_status()
        show(person, "Usage")
        show(person, "Tenants")
        person.get_by_role("button", name=f"Remove {name}").click()
        remove = person.locator("#question").get_by_role("button", name="Remove")
        expect(remove).to_be_disabled()
        person.locator("#question").get_by_label("Also delete its 1 sandbox").check()
        remove.click()
        expect(tenant).to_have_count(0)
        assert tenants.operator.http.get(f"/api/v2/tenants/{name}").status_code == 404

    def test_usage_is_the_apis(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        acme.json("POST", "/api/v2/sandboxes", json={"name": "used"})
        for n in range(3):
            acme.json("POST", "/sandbox/used/v1/bash/exec", json={"command": f"i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; echo {n}"})
        # The last reading is before the delete, so nothing changes after it.
        acme.json("DELETE", "/api/v2/sandboxes/used")
        until(lambda: any(one.get("name") == "used" and one["tool_calls"] >= 3 for one in acme.json("GET", "/api/v2/usage?group=sandbox")["rows"]))
        time.sleep(11)
        sign_in(person, tenants.url, acme.key)
        show(person, "Usage")
        (total,) = acme.json("GET", "/api/v2/usage")["rows"]
        value = person.locator('[data-amount="core_seconds"]')
        expect(value).to_contain_text("core-seconds")
        assert float(value.inner_text().split()[0].replace(",", "")) == pytest.approx(total["core_seconds"], abs=0.006)
        calls = person.locator('[data-amount="tool_calls"]').inner_text()
        assert calls == f"{total['tool_calls']:,} calls"
        mine = next(one for one in acme.json("GET", "/api/v2/usage?group=sandbox")["rows"] if one.get("name") == "used")
        cells = row(person, mine["sandbox"]).get_by_role("cell").all_inner_texts()
        assert float(cells[1].replace(",", "")) == pytest.approx(mine["core_seconds"], abs=0.006)
        assert cells[-1] == str(mine["tool_calls"])
        with person.expect_download() as download:
            person.get_by_role("link", name="CSV").click()
        text = Path(download.value.path()).read_text()
        assert text.startswith("tenant,hour,sandbox") and mine["sandbox"] in text
        # The same without sight: a table, and no other tenant.
        person.get_by_text("The charts as a table").click()
        expect(person.get_by_role("table", name="Usage over time")).to_contain_text(str(total["tool_calls"]))
        assert person.get_by_label("Tenant", exact=True).count() == 0
        assert {state["quota"] for state in acme.json("GET", "/api/v2/me")["quotas"]} >= set(
            person.locator(".quotas li").evaluate_all("all => all.map(one => one.dataset.quota)")
        )

    def test_the_audit_log_in_pages(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        stranger = acme.new_key("read")
        for n in range(130):
            httpx.post(f"{tenants.url}/api/v2/groups", headers={"x-api-key": stranger["key"]}, json={"name": f"g{n}", "ttl_seconds": 60})
        sign_in(person, tenants.url, acme.key)
        show(person, "Audit log")
        rows = person.get_by_role("table", name="Audit log").locator("tbody tr")
        expect(rows).to_have_count(100)
        expect(row(person, stranger["id"]).first).to_contain_text("forbidden")
        person.get_by_role("button", name="Show older rows").click()
        until(lambda: rows.count() > 130)
        person.get_by_label("Outcome").select_option("ok")
        expect(row(person, "forbidden")).to_have_count(0)
        person.get_by_label("Outcome").select_option("")
        person.get_by_label("Find in these rows").fill(f"{stranger['id']} forbidden")
        expect(rows).to_have_count(until(lambda: rows.count()))
        assert all(stranger["id"] in text for text in rows.all_inner_texts())
        person.get_by_label("Find in these rows").fill("")
        person.get_by_label("Until").fill("2020-01-01T00:00")
        expect(person.get_by_text("There are no such rows.")).to_be_visible()

    def test_webhooks_and_groups(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        sign_in(person, tenants.url, acme.key)
        show(person, "Webhooks")
        person.get_by_role("button", name="Create a webhook").click()
        dialog = person.locator("dialog[open]")
        dialog.get_by_label("URL").fill("no address")
        dialog.get_by_role("button", name="Create", exact=True).click()
        expect(dialog.locator(".bad[role=alert]")).to_be_visible()
        dialog.get_by_label("URL").fill("http://127.0.0.1:9/hook")
        dialog.get_by_label("Events").fill("sandbox.created, sandbox.deleted")
        dialog.get_by_role("button", name="Create", exact=True).click()
        expect(person.locator("input.secret")).to_have_value(re.compile("^whsec_"))
        person.get_by_role("button", name="Done").click()
        hook = row(person, "127.0.0.1:9")
        expect(hook).to_contain_text("sandbox.created, sandbox.deleted")
        # Its address is private, so no delivery leaves the server.
        hook.get_by_role("button", name="Test").click()
        expect(person.locator("#page-webhooks .message.bad")).to_contain_text("did not accept the test")
        acme.json("POST", "/api/v2/sandboxes", json={"name": "heard"})
        acme.json("DELETE", "/api/v2/sandboxes/heard")
        until(lambda: acme.json("GET", f"/api/v2/webhooks/{acme.json('GET', '/api/v2/webhooks')['webhooks'][0]['id']}/deliveries")["deliveries"])
        hook.get_by_role("button", name="Deliveries").click()
        expect(person.locator("dialog[open]").get_by_role("row").filter(has_text="sandbox.created")).to_be_visible()
        person.get_by_role("button", name="Close").click()
        hook.get_by_role("button", name="Remove").click()
        person.locator("#question").get_by_role("button", name="Remove").click()
        expect(hook).to_have_count(0)
        show(person, "Groups")
        person.get_by_role("button", name="Create a group").click()
        dialog.get_by_label("Name").fill("trainer")
        dialog.get_by_label("Lease").fill("10m")
        dialog.get_by_role("button", name="Create", exact=True).click()
        group = row(person, "trainer")
        expect(group).to_contain_text("10m")
        group.get_by_role("button", name="Renew").click()
        expect(person.locator("#page-groups .message")).to_have_text("Renewed trainer.")
        group.get_by_role("button", name="Delete").click()
        person.locator("#question").get_by_role("button", name="Delete").click()
        expect(group).to_have_count(0)


class TestNetwork:
    def test_a_refused_name_is_allowed_and_observed(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        network = {"mode": "allowlist", "allow": ["a.example", {"host": "b.example", "ports": [80], "protocol": "http", "methods": ["GET"]}]}
        acme.json("POST", "/api/v2/sandboxes", json={"name": "walled", "network": network})

        def reach(name: str) -> None:
            acme.json("POST", "/sandbox/walled/v1/bash/exec", json={"command": f"curl -s -m 5 http://{name}/"})

        def rules() -> dict[str, Any]:
            return {field: acme.json("GET", "/api/v2/sandboxes/walled/network")[field] for field in ("mode", "allow", "deny")}

        sign_in(person, tenants.url, acme.key, "#/sandboxes/walled")
        section = person.get_by_role("region", name="Network", exact=True)
        expect(section.get_by_role("heading")).to_have_text("Network")
        expect(section.locator("code")).to_have_count(2)
        expect(section).to_contain_text("Nothing was decided yet.")
        # It follows.
        reach("refused.example")
        refused = section.get_by_role("row").filter(has_text="refused.example:53")
        expect(refused).to_contain_text("no rule allows it")
        picture(person, "network")
        section.get_by_role("button", name="Allow refused.example").click()
        expect(person.locator("#page-sandbox .message")).to_contain_text("The network was changed.")
        expect(section.get_by_role("button", name="Allow refused.example")).to_have_count(0)
        assert rules() == {**network, "allow": [*network["allow"], "refused.example"], "deny": []}
        section.get_by_role("button", name="Change the network").click()
        dialog = person.locator("dialog[open]")
        dialog.get_by_label("Allow").fill("https://wrong.example")
        dialog.get_by_role("button", name="Change", exact=True).click()
        expect(dialog).to_contain_text("invalid network rule")
        dialog.get_by_label("Mode").select_option("observe")
        dialog.get_by_label("Allow").fill("")
        dialog.get_by_label("Deny").fill("denied.example")
        dialog.get_by_role("button", name="Change", exact=True).click()
        expect(section.locator(".chip")).to_have_text("observe")
        assert rules() == {"mode": "observe", "allow": [], "deny": ["denied.example"]}
        # A floor is shown; what it refuses can't be allowed here.
        tenants.operator.json("PATCH", "/api/v2/tenants/acme", json={"network_floor": {"mode": "allowlist", "allow": ["floor.example"]}})
        try:
            reach("other.example")
            expect(section).to_contain_text("floor.example")
            expect(section.get_by_role("row").filter(has_text="other.example")).to_contain_text("floor does not allow it")
            expect(section.get_by_role("button", name="Allow other.example")).to_have_count(0)
        finally:
            tenants.operator.json("PATCH", "/api/v2/tenants/acme", json={"network_floor": None})
        acme.json("DELETE", "/api/v2/sandboxes/walled")


class TestDisks:
    def test_a_history_is_rolled_back_and_forked(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        acme.json("POST", "/api/v2/sandboxes", json={"name": "tried"})

        def run(name: str, command: str) -> str:
            return acme.json("POST", f"/sandbox/{name}/v1/bash/exec", json={"command": command})["data"]["stdout"] or ""

        sign_in(person, tenants.url, acme.key, "#/sandboxes/tried")
        line = person.locator(".history ol > li")
        expect(line).to_have_count(2)
        for number in (1, 2):
            run("tried", f"echo {number} >file-{number}")
            person.get_by_role("button", name="Take a checkpoint").click()
            person.locator("dialog[open]").get_by_label("Note").fill(f"{HOSTILE} {number}")
            person.locator("dialog[open]").get_by_role("button", name="Take it").click()
            expect(line).to_have_count(2 + number)
        assert person.locator(".history img").count() == 0
        expect(line.nth(2)).to_contain_text(f"{HOSTILE} 2")
        person.get_by_role("button", name="Changes of #2").click()
        expect(line.nth(2).locator("code")).to_have_text("/home/gem/file-2")
        person.get_by_role("button", name="Roll back to #1").click()
        person.locator("#question").get_by_role("button", name="Roll back").click()
        expect(person.locator("#page-sandbox .message")).to_contain_text("Rolled back to #1.")
        expect(line.nth(1)).to_have_attribute("aria-current", "step")
        assert run("tried", "ls file-*").split() == ["file-1"]
        person.get_by_role("button", name="Fork from #2").click()
        expect(person.get_by_role("heading", name="tried")).to_have_count(0)
        fork = person.locator("#page-sandbox h2").inner_text()
        assert run(fork, "ls file-*").split() == ["file-1", "file-2"]
        for name in (fork, "tried"):
            acme.json("DELETE", f"/api/v2/sandboxes/{name}")

    def test_snapshots_and_volumes(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        acme.json("POST", "/api/v2/sandboxes", json={"name": "sealed"})
        acme.json("POST", "/api/v2/snapshots", json={"name": "kept", "sandbox": "sealed", "note": HOSTILE})
        sign_in(person, tenants.url, acme.key)
        show(person, "Snapshots")
        expect(row(person, "kept")).to_contain_text(HOSTILE)
        row(person, "kept").get_by_role("button", name="Create a sandbox from kept").click()
        expect(person.locator("#page-sandbox .state.running")).to_be_visible()
        made = person.locator("#page-sandbox h2").inner_text()
        show(person, "Snapshots")
        row(person, "kept").get_by_role("button", name="Files of kept").click()
        files = person.locator("dialog[open]")
        files.get_by_role("button", name="Open etc").click()
        expect(files).to_contain_text("/etc")
        with person.expect_download() as download:
            files.get_by_role("link", name="passwd", exact=True).click()
        assert download.value.path().read_text().startswith("root:")
        files.get_by_role("button", name="Up", exact=True).click()
        expect(files.get_by_role("button", name="Open etc")).to_be_visible()
        files.get_by_role("button", name="Close").click()
        row(person, "kept").get_by_role("button", name="Delete kept").click()
        person.locator("#question").get_by_role("button", name="Delete").click()
        expect(row(person, "kept")).to_have_count(0)
        show(person, "Volumes")
        person.get_by_role("button", name="Create a volume").click()
        dialog = person.locator("dialog[open]")
        dialog.get_by_label("Name").fill("models")
        dialog.get_by_label("Size").fill("much")
        dialog.get_by_role("button", name="Create", exact=True).click()
        expect(error(dialog.get_by_label("Size"))).to_contain_text("Write a number and a unit")
        dialog.get_by_label("Size").fill("64MiB")
        dialog.get_by_role("button", name="Create", exact=True).click()
        expect(row(person, "models")).to_contain_text("64 MiB")
        person.get_by_role("button", name="Resize models").click()
        dialog.get_by_label("Size").fill("128MiB")
        dialog.get_by_role("button", name="Resize", exact=True).click()
        expect(row(person, "models")).to_contain_text("128 MiB")
        person.get_by_role("button", name="Copy models").click()
        dialog.get_by_label("Name of the copy").fill("second")
        dialog.get_by_role("button", name="Copy", exact=True).click()
        for name in ("second", "models"):
            row(person, name).first.get_by_role("button", name=f"Delete {name}").click()
            person.locator("#question").get_by_role("button", name="Delete").click()
            expect(row(person, name)).to_have_count(0)
        for name in (made, "sealed"):
            acme.json("DELETE", f"/api/v2/sandboxes/{name}")


@pytest.fixture(scope="module")
def furnished(tenants: TenantsServer, acme: Tenant) -> Iterator[Tenant]:
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
    hook = acme.json("POST", "/api/v2/webhooks", json={"url": "http://127.0.0.1:9/hook", "types": ["sandbox.paused"]})
    yield acme
    acme.json("DELETE", f"/api/v2/webhooks/{hook['id']}")
    acme.json("DELETE", "/api/v2/groups/furniture")
    acme.json("DELETE", "/api/v2/volumes/data")
    acme.json("DELETE", "/api/v2/snapshots/greeted")
    for name in ("shown", "asleep"):
        acme.json("DELETE", f"/api/v2/sandboxes/{name}")
    tenants.operator.json("PATCH", "/api/v2/tenants/acme", json={"limits": {"sandboxes": None, "cpu_millis": None}})


def states(page: Page, url: str) -> Iterator[str]:
    """Each page and dialog, one after the other."""

    def close() -> None:
        page.keyboard.press("Escape")
        expect(page.locator("dialog[open]")).to_have_count(0)

    expect(row(page, "shown").locator("td.memory meter")).to_be_visible()
    yield "sandboxes"
    page.locator("#create-more").click()
    page.locator("#create-dialog").get_by_label("Memory", exact=True).fill("much")
    page.locator("#create-dialog").get_by_role("button", name="Create", exact=True).click()
    expect(page.locator("#create-dialog [aria-invalid]")).to_be_visible()
    yield "create"
    close()
    page.get_by_role("button", name="Delete shown").click()
    yield "question"
    close()
    page.goto(f"{url}/#/sandboxes/shown")
    expect(page.locator("pre.log")).to_contain_text("hello")
    page.get_by_role("button", name="Changes of the disk as it is").click()
    expect(page.locator(".history .changes")).to_contain_text(["/home/gem/greeting"])
    expect(page.locator(".network")).to_contain_text("refused.example")
    yield "sandbox"
    page.get_by_role("button", name="Change the network").click()
    yield "network"
    close()
    page.get_by_role("button", name="Extend").click()
    yield "extend"
    close()
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
    expect(page.locator("#page-usage .chart").first).to_be_visible()
    page.get_by_text("The charts as a table").click()
    yield "usage"
    show(page, "Keys")
    expect(row(page, "valid").first).to_be_visible()
    yield "keys"
    page.get_by_role("button", name="Create a key").click()
    page.locator("dialog[open]").get_by_label("Name").fill("for axe")
    yield "key"
    page.locator("dialog[open]").get_by_role("button", name="Create", exact=True).click()
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


@pytest.mark.parametrize("look", LOOKS)
def test_all_pages_are_accessible(tenants: TenantsServer, furnished: Tenant, person: Page, look: str) -> None:
    scheme, width, height = LOOKS[look]
    person.emulate_media(color_scheme=scheme)
    person.set_viewport_size({"width": width, "height": height})
    key = tenants.operator.json("POST", "/api/v2/keys", json={"tenant": "acme", "name": f"axe {look}", "role": "admin", "operator": True})["key"]
    axe = AXE.read_text()
    found = {}
    person.goto(tenants.url)

    def check(state: str) -> None:
        picture(person, f"console-{state}-{look}")
        person.evaluate(axe)
        violations = person.evaluate(
            "levels => axe.run(document, {runOnly: levels}).then(({violations}) => violations.map(one => [one.id, one.nodes.map(node => node.html.slice(0, 200))]))",
            LEVELS,
        )
        if violations:
            found[state] = violations
        too_wide = person.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert not too_wide, f"{state} is wider than the window"

    check("sign-in")
    sign_in(person, tenants.url, key)
    for state in states(person, tenants.url):
        check(state)
    assert not found


def test_a_thousand_sandboxes_do_not_freeze_it(tenants: TenantsServer, acme: Tenant, person: Page) -> None:
    """The list is that of a real sandbox, a thousand times, since a test can't make that many."""
    one = acme.json("POST", "/api/v2/sandboxes", json={"name": "one"})
    acme.json("DELETE", "/api/v2/sandboxes/one")
    many = [{**one, "id": f"s{n:011d}", "name": f"many-{n}"} for n in range(1000)]
    person.route(re.compile(r"/api/v2/sandboxes$"), lambda route: route.fulfill(json={"sandboxes": many}))
    person.add_init_script("window.longest = 0; new PerformanceObserver(list => { for (const task of list.getEntries()) longest = Math.max(longest, task.duration); }).observe({type: 'longtask', buffered: true})")
    sign_in(person, tenants.url, acme.key)
    expect(person.locator("#count")).to_have_text("1,000")
    rows = person.locator("#list tbody tr")
    expect(rows).to_have_count(100)
    person.get_by_role("button", name=re.compile("Show 100 more of 900")).click()
    expect(rows).to_have_count(200)
    person.fill("#find", "many-99")
    expect(rows).to_have_count(11)
    person.fill("#find", "")
    # Two more readings of everything.
    person.wait_for_timeout(11_000)
    assert person.evaluate("longest") < 1500


def test_a_server_without_keys_shows_no_account(tenants: TenantsServer, person: Page) -> None:
    """Such a server has one user, who may do everything but has no tenants. It answers as this one is made to here."""
    me = {**tenants.operator.json("GET", "/api/v2/me"), "key": None, "name": None, "tenants": False}
    sign_in(person, tenants.url, tenants.operator.key)
    html = person.request.get(f"{tenants.url}/")
    assert 'data-keys="required"' in html.text()
    person.route(f"{tenants.url}/", lambda route: route.fulfill(response=html, body=html.text().replace('data-keys="required"', 'data-keys="none"')))
    person.route("**/api/v2/me", lambda route: route.fulfill(json=me))
    person.reload()
    expect(person.locator("#pages a")).to_have_text(["Sandboxes", "Snapshots", "Volumes", "Groups", "Usage", "Webhooks"])
    expect(person.locator("#account")).to_be_hidden()
