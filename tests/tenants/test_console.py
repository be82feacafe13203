"""The console in a real Chromium: signing in, creating, and the pages of sandboxes and admins."""

from __future__ import annotations

import os
import re
import shlex
import signal
import time
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from consoles import ALWAYS, HOSTILE, PAGES, answer, choose, error, heading, navigation, notification, picture, row, show, sign_in, state
from playwright.sync_api import Page, expect
from tenant import Tenant, TenantsServer, first_process
from waiting import until


class TestSigningIn:
    @pytest.mark.parametrize("role", PAGES)
    def test_a_role_gets_what_it_may_do(self, tenants: TenantsServer, acme: Tenant, person: Page, role: str) -> None:
        sandbox = f"of-{role}"
        # Of the first try.
        acme.http.delete(f"/api/v2/sandboxes/{sandbox}")
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
        account = person.get_by_role("group", name="Account")
        for text in ("acme", role, f"{role} {HOSTILE}"):
            expect(account).to_contain_text(text)
        assert account.locator("img").count() == 0
        wanted = [*ALWAYS, *(PAGES[role].split(", ") if PAGES[role] else []), "API docs", "Settings"]
        expect(navigation(person).get_by_role("link")).to_have_text(wanted)
        expect(row(person, sandbox).get_by_text("running", exact=True)).to_be_visible()
        manages = role in ("manage", "admin", "operator")
        assert person.get_by_role("button", name="Create sandbox").is_visible() == manages
        assert (person.get_by_role("checkbox", name=f"Select {sandbox}").count() == 1) == manages
        assert (row(person, sandbox).get_by_role("button", name=f"Pause {sandbox}").count() == 1) == manages
        assert (row(person, sandbox).get_by_role("button", name=f"Delete {sandbox}").count() == 1) == manages
        row(person, sandbox).get_by_role("link", name=sandbox, exact=True).click()
        expect(heading(person)).to_have_text(sandbox)
        tools = person.locator(".page-head .actions").get_by_role("button")
        expect(tools).to_have_text(["Steps", "Pause", "Extend", "Delete"] if manages else ["Steps"])
        show(person, "Overview")
        expect(person.get_by_role("region", name="Now")).to_contain_text("Running")
        assert person.get_by_role("region", name="A first call").is_visible() == (role != "read")
        # A page that the role may not see is not there under its address, either.
        person.goto(f"{tenants.url}/#/tenants")
        expect(heading(person)).to_have_text("Tenants" if role == "operator" else "Sandboxes")
        expect(navigation(person).locator("[aria-current]")).to_have_text("Tenants" if role == "operator" else "Sandboxes")
        person.get_by_role("button", name="Sign out").click()
        expect(person.locator("#key")).to_be_visible()
        assert person.evaluate("fetch('api/v2/me').then(answer => answer.status)") == 401
        acme.json("DELETE", f"/api/v2/sandboxes/{sandbox}")

    def test_a_key_that_ends_asks_for_another(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        made = acme.new_key("manage")
        sign_in(person, tenants.url, made["key"])
        acme.json("DELETE", f"/api/v2/keys/{made['id']}")
        dialog = person.get_by_role("dialog", name="Sign in again")
        dialog.get_by_label("API key, token or ticket").fill("arn_wrong")
        dialog.get_by_role("button", name="Sign in").click()
        expect(dialog).to_contain_text("Invalid key, token or ticket.")
        dialog.get_by_label("API key, token or ticket").fill(acme.key)
        dialog.get_by_role("button", name="Sign in").click()
        # It has other rights, so the page starts again with them.
        expect(navigation(person).get_by_role("link", name="Keys")).to_be_visible()
        expect(person.get_by_role("group", name="Account")).to_contain_text("admin")


class TestCreating:
    def test_all_settings_reach_the_sandbox(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        name = f"web-{uuid.uuid4().hex[:6]}"
        sign_in(person, tenants.url, acme.key)
        expect(heading(person)).to_have_text("Sandboxes")
        # Only by keyboard: c opens it, Enter creates.
        person.keyboard.press("c")
        dialog = person.get_by_role("dialog", name="Create sandboxes")
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
        for language in ("curl", "Command line", "Python", "TypeScript"):
            dialog.get_by_role("button", name=language, exact=True).click()
            codes[language] = dialog.locator("pre").inner_text()
        assert "--memory 256MiB" in codes["Command line"] and f"arenite create {name}" in codes["Command line"]
        compile(codes["Python"], "the dialog's code", "exec")
        assert f'name: "{name}"' in codes["TypeScript"]
        dialog.get_by_label("Number").press("Enter")
        expect(dialog).to_have_count(0)
        expect(notification(person)).to_contain_text(f"Created {name}")
        made = acme.json("GET", f"/api/v2/sandboxes/{name}")
        spec = made["spec"]
        limits = {key: spec["resources"][key] for key in ("cpu_millis", "memory_bytes", "disk_bytes")}
        assert limits == {"cpu_millis": 500, "memory_bytes": 256 << 20, "disk_bytes": 1 << 30}
        assert (spec["image"], spec["network"], spec["idle_policy"]) == ("base", "none", "pause")
        assert (spec["timeout_seconds"], spec["idle_timeout_seconds"]) == (7200, 1800)
        assert spec["env"] == {"GREETING": "it's \"here\"", "EMPTY": ""} and spec["labels"] == {"note": HOSTILE}
        assert spec["args"] == ["sh", "-c", "echo started; sleep 1000"]
        # The label is text in the page of the sandbox, and it finds the row.
        person.get_by_role("searchbox", name="Find sandboxes").fill("note=<img")
        row(person, name).get_by_role("link", name=name, exact=True).click()
        expect(person.get_by_role("region", name="Settings")).to_contain_text(HOSTILE)
        expect(person.get_by_role("log")).to_contain_text("started")
        # The code that it showed creates the same.
        acme.json("DELETE", f"/api/v2/sandboxes/{name}")
        script = codes["Python"].replace("import arenite", "") + f"\nassert sandbox.name == {name!r}\n"
        assert '"GREETING"' in script
        curl = httpx.post(f"{tenants.url}/api/v2/sandboxes", headers=acme.headers, content=body_of(codes["curl"]), timeout=60)
        assert curl.status_code == 201 and curl.json()["spec"]["labels"] == {"note": HOSTILE}
        acme.json("DELETE", f"/api/v2/sandboxes/{name}")

    def test_its_network_secrets_and_volumes(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        name = f"walled-{uuid.uuid4().hex[:6]}"
        acme.json("PUT", "/api/v2/secrets/upstream", json={"value": "sk-the-value", "hosts": ["api.example.com"]})
        acme.json("POST", "/api/v2/volumes", json={"name": "data", "size_bytes": 64 << 20})
        try:
            sign_in(person, tenants.url, acme.key)
            person.get_by_role("button", name="Create sandbox").click()
            dialog = person.get_by_role("dialog", name="Create sandboxes")
            dialog.get_by_label("Name", exact=True).fill(name)
            dialog.get_by_label("Network", exact=True).select_option("allowlist")
            dialog.get_by_label("Allow", exact=True).fill("https://wrong.example")
            dialog.get_by_label("upstream", exact=True).check()
            dialog.get_by_label("Name of volume 1").fill("data/sets")
            create = dialog.get_by_role("button", name="Create", exact=True)
            create.click()
            expect(dialog.get_by_text("data has no path.")).to_be_visible()
            dialog.get_by_label("Value of volume 1").fill("/data:ro")
            create.click()
            expect(dialog).to_contain_text("Invalid network rule")
            picture(person, "create-network")
            dialog.get_by_label("Allow", exact=True).fill("pypi.org\n*.example.com:443")
            dialog.get_by_label("Deny", exact=True).fill("bad.example.com")
            dialog.get_by_role("button", name="Command line", exact=True).click()
            command = dialog.locator("pre").inner_text()
            for part in ("--network allowlist", "--allow pypi.org", "--deny bad.example.com", "--secret upstream", "--volume data/sets:/data:ro"):
                assert part in command
            create.click()
            expect(dialog).to_have_count(0)
            spec = acme.json("GET", f"/api/v2/sandboxes/{name}")["spec"]
            network = acme.json("GET", f"/api/v2/sandboxes/{name}/network")
            rules = {field: network[field] for field in ("mode", "allow", "deny")}
            assert rules == {"mode": "allowlist", "allow": ["pypi.org", "*.example.com:443"], "deny": ["bad.example.com"]}
            assert [secret["name"] for secret in spec["secrets"]] == ["upstream"]
            (volume,) = spec["volumes"]
            assert {field: volume[field] for field in ("name", "path", "sub_path", "read_only")} == {"name": "data", "path": "/data", "sub_path": "sets", "read_only": True}
        finally:
            acme.http.delete(f"/api/v2/sandboxes/{name}")
            acme.json("DELETE", "/api/v2/volumes/data")
            acme.json("DELETE", "/api/v2/secrets/upstream")

    def test_several_and_their_names(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        sign_in(person, tenants.url, acme.key)
        person.get_by_role("button", name="Create sandbox").click()
        dialog = person.get_by_role("dialog", name="Create sandboxes")
        dialog.get_by_label("Name", exact=True).fill("several")
        dialog.get_by_label("Number").fill("2")
        dialog.get_by_role("button", name="Create", exact=True).click()
        expect(notification(person)).to_contain_text("Created several-0, several-1.")
        for name in ("several-0", "several-1"):
            expect(row(person, name).get_by_text("running", exact=True)).to_be_visible()
            acme.json("DELETE", f"/api/v2/sandboxes/{name}")

    def test_errors_are_at_their_fields(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        tenants.operator.json("PATCH", "/api/v2/tenants/acme", json={"limits": {"memory_bytes": 1 << 30}})
        acme.json("POST", "/api/v2/sandboxes", json={"name": "taken", "resources": {"memory_bytes": 128 << 20}})
        try:
            sign_in(person, tenants.url, acme.key)
            person.get_by_role("button", name="Create sandbox").click()
            dialog = person.get_by_role("dialog", name="Create sandboxes")
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
            expect(error(memory)).to_contain_text("Memory: this tenant may have 1.0 GiB")
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
        page = person.get_by_role("main")
        expect(heading(person)).to_have_text(name)
        expect(page.locator(".chart .value").first).to_have_text(re.compile(r"^(< )?[\d.]+ of [\d.]+ cores?$"))
        expect(page.locator(".chart .value").nth(1)).to_have_text(re.compile(r"MiB of"))
        log = page.get_by_role("log")
        expect(log).to_contain_text(f"1 {line}")
        # It follows.
        expect(log).to_contain_text(f"9 {line}")
        assert page.locator("img").count() == 0
        picture(person, "sandbox")
        page.get_by_role("button", name="Pause").click()
        expect(state(person, "paused")).to_be_visible()
        expect(page.get_by_role("region", name="Log")).to_contain_text("paused")
        assert acme.json("GET", f"/api/v2/sandboxes/{name}")["state"] == "paused"
        # Looking does not wake it.
        time.sleep(3)
        assert acme.json("GET", f"/api/v2/sandboxes/{name}")["state"] == "paused"
        page.get_by_role("button", name="Resume").click()
        expect(state(person, "running")).to_be_visible()
        page.get_by_role("button", name="Delete").click()
        question = person.get_by_role("dialog", name=f"Delete the sandbox {name}?")
        expect(question.get_by_role("button", name="Keep it")).to_be_focused()
        person.keyboard.press("Enter")
        expect(question).to_have_count(0)
        # The focus is back where it was.
        expect(page.get_by_role("button", name="Delete")).to_be_focused()
        page.get_by_role("button", name="Delete").click()
        answer(person, "Delete")
        expect(heading(person)).to_have_text("Sandboxes")
        assert acme.http.get(f"/api/v2/sandboxes/{name}").status_code == 404

    def test_its_lifetime_is_extended_up_to_the_quota(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        made = acme.json("POST", "/api/v2/sandboxes", json={"name": "longer", "timeout_seconds": 7200})
        tenants.operator.json("PATCH", "/api/v2/tenants/acme", json={"limits": {"max_timeout_seconds": 6 * 3600}})
        try:
            sign_in(person, tenants.url, acme.key, "#/sandboxes/longer")
            page = person.get_by_role("main")
            facts = page.get_by_role("region", name="Settings")
            expect(facts).to_contain_text("deleted in 1 h")
            page.get_by_role("button", name="Extend").click()
            dialog = person.get_by_role("dialog")
            dialog.get_by_label("By", exact=True).fill("soon")
            dialog.get_by_role("button", name="Extend").click()
            expect(error(dialog.get_by_label("By", exact=True))).to_contain_text("90s")
            dialog.get_by_label("By", exact=True).fill("3h")
            dialog.get_by_role("button", name="Extend").click()
            expect(dialog).to_have_count(0)
            expect(facts).to_contain_text("deleted in 4 h")
            before, after = (datetime.fromisoformat(one["expires_at"]) for one in (made, acme.json("GET", "/api/v2/sandboxes/longer")))
            assert (after - before).total_seconds() == 3 * 3600
            page.get_by_role("button", name="Extend").click()
            dialog.get_by_label("By", exact=True).fill("2d")
            dialog.get_by_role("button", name="Extend").click()
            expect(dialog.get_by_role("alert")).to_contain_text(re.compile("21600|6 h"))
        finally:
            acme.json("DELETE", "/api/v2/sandboxes/longer")
            tenants.operator.json("PATCH", "/api/v2/tenants/acme", json={"limits": {"max_timeout_seconds": None}})

    def test_one_that_ended_says_why(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        made = acme.json("POST", "/api/v2/sandboxes", json={"name": "ended"})
        os.kill(first_process(tenants, made), signal.SIGKILL)
        died = until(lambda: acme.json("GET", "/api/v2/sandboxes/ended")["died"])
        sign_in(person, tenants.url, acme.key)
        expect(row(person, "ended").locator(".reason")).to_have_text(died["message"])
        row(person, "ended").get_by_role("link", name="ended", exact=True).click()
        expect(person.locator(".died")).to_contain_text(died["reason"].replace("_", " "))
        expect(person.locator(".died")).to_contain_text(died["message"])
        person.get_by_role("main").get_by_role("button", name="Start").click()
        expect(state(person, "running")).to_be_visible()
        expect(person.locator(".died")).to_have_count(0)
        acme.json("DELETE", "/api/v2/sandboxes/ended")

    def test_one_that_others_delete(self, tenants: TenantsServer, acme: Tenant, person: Page) -> None:
        acme.json("POST", "/api/v2/sandboxes", json={"name": "going"})
        sign_in(person, tenants.url, acme.key, "#/sandboxes/going")
        expect(state(person, "running")).to_be_visible()
        acme.json("DELETE", "/api/v2/sandboxes/going")
        expect(person.get_by_role("main").get_by_role("status").get_by_text("was deleted")).to_be_visible()
        person.goto(f"{tenants.url}/#/sandboxes/{HOSTILE}")
        expect(person.get_by_role("main").get_by_role("alert")).to_be_visible()


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
        dialog = person.get_by_role("dialog")
        dialog.get_by_role("button", name="Create", exact=True).click()
        expect(dialog.locator(".problem").first).to_contain_text("name")
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
            expect(person.get_by_role("dialog")).to_contain_text(ids[each])
            answer(person, "Revoke")
            expect(row(person, ids[each])).to_have_count(0)
            until(lambda each=each: httpx.get(f"{tenants.url}/api/v2/me", headers={"x-api-key": each}).status_code == 401)
        person.get_by_label("Show ended keys").check()
        expect(row(person, ids[new])).to_contain_text("revoked")

    def test_tenants(self, tenants: TenantsServer, person: Page) -> None:
        name = f"globex-{uuid.uuid4().hex[:6]}"
        sign_in(person, tenants.url, tenants.operator.key)
        show(person, "Tenants")
        person.get_by_role("button", name="Create a tenant").click()
        dialog = person.get_by_role("dialog")
        dialog.get_by_label("Name").fill("Not A Name")
        dialog.get_by_role("button", name="Create", exact=True).click()
        expect(dialog.get_by_role("alert")).to_be_visible()
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
        choose(person, f"More of {name}", "Disable")
        answer(person, "Disable")
        expect(tenant).to_contain_text("disabled")
        assert tenants.operator.json("GET", f"/api/v2/tenants/{name}")["disabled"] is True
        choose(person, f"More of {name}", "Enable")
        expect(tenant).to_contain_text("enabled")
        key = tenants.operator.json("POST", "/api/v2/keys", json={"tenant": name, "name": "theirs", "role": "manage"})["key"]
        httpx.post(f"{tenants.url}/api/v2/sandboxes", headers={"x-api-key": key}, json={"name": "left"}, timeout=60).raise_for_status()
        show(person, "Usage")
        show(person, "Tenants")
        choose(person, f"More of {name}", "Remove")
        remove = person.get_by_role("dialog").get_by_role("button", name="Remove")
        expect(remove).to_be_disabled()
        person.get_by_role("dialog").get_by_label("Also delete its 1 sandbox").check()
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
        table = person.get_by_role("table", name="Audit log")
        rows = table.locator("tbody tr.item")
        expect(rows).to_have_count(100)
        expect(row(person, stranger["id"]).first).to_contain_text("forbidden")
        person.get_by_role("button", name="Show older rows").click()
        # Long tables draw what is in view, and tell how many rows there are.
        until(lambda: int(table.get_attribute("aria-rowcount") or 0) > 131)
        assert rows.count() < 130
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
        dialog = person.get_by_role("dialog")
        dialog.get_by_label("URL").fill("no address")
        dialog.get_by_role("button", name="Create", exact=True).click()
        expect(dialog.get_by_role("alert")).to_be_visible()
        dialog.get_by_label("URL").fill("http://127.0.0.1:9/hook")
        dialog.get_by_label("Events").fill("sandbox.created, sandbox.deleted")
        dialog.get_by_role("button", name="Create", exact=True).click()
        expect(person.locator("input.secret")).to_have_value(re.compile("^whsec_"))
        person.get_by_role("button", name="Done").click()
        hook = row(person, "127.0.0.1:9")
        expect(hook).to_contain_text("sandbox.created, sandbox.deleted")
        # Its address is private, so no delivery leaves the server.
        hook.get_by_role("button", name="Test").click()
        expect(notification(person)).to_contain_text("did not accept the test")
        acme.json("POST", "/api/v2/sandboxes", json={"name": "heard"})
        acme.json("DELETE", "/api/v2/sandboxes/heard")
        until(lambda: acme.json("GET", f"/api/v2/webhooks/{acme.json('GET', '/api/v2/webhooks')['webhooks'][0]['id']}/deliveries")["deliveries"])
        hook.get_by_role("button", name="Deliveries").click()
        expect(person.get_by_role("dialog").get_by_role("row").filter(has_text="sandbox.created")).to_be_visible()
        person.get_by_role("dialog").get_by_role("button", name="Close").click()
        hook.get_by_role("button", name="Remove").click()
        answer(person, "Remove")
        expect(hook).to_have_count(0)
        show(person, "Groups")
        person.get_by_role("button", name="Create a group").click()
        dialog.get_by_label("Name").fill("trainer")
        dialog.get_by_label("Lease").fill("10m")
        dialog.get_by_role("button", name="Create", exact=True).click()
        group = row(person, "trainer")
        expect(group).to_contain_text("10m")
        group.get_by_role("button", name="Renew").click()
        expect(notification(person)).to_contain_text("Renewed trainer.")
        group.get_by_role("button", name="Delete").click()
        answer(person, "Delete")
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
        expect(notification(person)).to_contain_text("The network was changed.")
        expect(section.get_by_role("button", name="Allow refused.example")).to_have_count(0)
        assert rules() == {**network, "allow": [*network["allow"], "refused.example"], "deny": []}
        section.get_by_role("button", name="Change the network").click()
        dialog = person.get_by_role("dialog")
        dialog.get_by_label("Allow").fill("https://wrong.example")
        dialog.get_by_role("button", name="Change", exact=True).click()
        expect(dialog).to_contain_text("Invalid network rule")
        dialog.get_by_label("Mode").select_option("observe")
        dialog.get_by_label("Allow").fill("")
        dialog.get_by_label("Deny").fill("denied.example")
        dialog.get_by_role("button", name="Change", exact=True).click()
        expect(section.locator(".badge")).to_have_text("observe")
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
            person.get_by_role("dialog").get_by_label("Note").fill(f"{HOSTILE} {number}")
            person.get_by_role("dialog").get_by_role("button", name="Take it").click()
            expect(line).to_have_count(2 + number)
        assert person.locator(".history img").count() == 0
        expect(line.nth(2)).to_contain_text(f"{HOSTILE} 2")
        person.get_by_role("button", name="Changes of #2").click()
        expect(line.nth(2).locator("code")).to_have_text("/home/gem/file-2")
        person.get_by_role("button", name="Roll back to #1").click()
        answer(person, "Roll back")
        expect(notification(person)).to_contain_text("Rolled back to #1.")
        expect(line.nth(1)).to_have_attribute("aria-current", "step")
        assert run("tried", "ls file-*").split() == ["file-1"]
        person.get_by_role("button", name="Fork from #2").click()
        expect(person.get_by_role("heading", name="tried")).to_have_count(0)
        fork = heading(person).inner_text()
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
        expect(state(person, "running")).to_be_visible()
        made = heading(person).inner_text()
        show(person, "Snapshots")
        row(person, "kept").get_by_role("button", name="Files of kept").click()
        files = person.get_by_role("dialog")
        files.get_by_role("button", name="Open etc").click()
        expect(files).to_contain_text("/etc")
        with person.expect_download() as download:
            files.get_by_role("link", name="passwd", exact=True).click()
        assert download.value.path().read_text().startswith("root:")
        files.get_by_role("button", name="Up", exact=True).click()
        expect(files.get_by_role("button", name="Open etc")).to_be_visible()
        files.get_by_role("button", name="Close").click()
        row(person, "kept").get_by_role("button", name="Delete kept").click()
        answer(person, "Delete")
        expect(row(person, "kept")).to_have_count(0)
        show(person, "Volumes")
        person.get_by_role("button", name="Create a volume").click()
        dialog = person.get_by_role("dialog")
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
            answer(person, "Delete")
            expect(row(person, name)).to_have_count(0)
        for name in (made, "sealed"):
            acme.json("DELETE", f"/api/v2/sandboxes/{name}")
