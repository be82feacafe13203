"""The console's pages of images and templates: pulls and builds with what they report, and how they end."""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from consoles import HOSTILE, answer, error, heading, notification, picture, row, sentence, show, sign_in
from playwright.sync_api import Locator, Page, expect
from registries import Registry, Relay, layer, registry
from small import tiny_files
from tenant import Tenant, TenantsServer
from waiting import until

CONFIG = {"Env": ["PATH=/usr/bin"], "User": "root", "WorkingDir": "/var"}


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry with a small image and one of 24 MiB."""
    folder = tmp_path_factory.mktemp("registry")
    tiny_files(folder / "tiny")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted((folder / "tiny").rglob("*")):
            tar.add(path, path.relative_to(folder / "tiny"), recursive=False)
    with registry(folder) as running:
        running.push("team/small", [out.getvalue()], CONFIG)
        running.push("team/big", [out.getvalue(), layer({"big": os.urandom(24 << 20)})], CONFIG)
        yield running


@pytest.fixture(scope="module")
def relay(pushed: Registry) -> Iterator[Relay]:
    relay = Relay(pushed.host)
    yield relay
    relay.close()


@pytest.fixture(scope="module")
def settings(pushed: Registry, relay: Relay) -> tuple[str, ...]:
    return ("--image-registry", pushed.host, "--image-registry", relay.host)


def images(acme: Tenant) -> list[str]:
    return [one["name"] for one in acme.json("GET", "/api/v2/images")["images"]]


def job(page: Page, name: str) -> Locator:
    return page.get_by_role("listitem", name=name, exact=True)


def build(page: Page, name: str, **fields: Any) -> Locator:
    page.get_by_role("button", name="Build an image", exact=True).click()
    dialog = page.get_by_role("dialog", name="Build an image")
    dialog.get_by_label("Name", exact=True).fill(name)
    for label, text in fields.items():
        dialog.get_by_label(label, exact=True).fill(text)
    dialog.get_by_role("button", name="Build", exact=True).click()
    expect(dialog).to_have_count(0)
    return job(page, f"Build of {name}")


class TestPulls:
    def test_a_pull_shows_its_bytes_and_ends_as_an_image(self, tenants: TenantsServer, acme: Tenant, person: Page, relay: Relay) -> None:
        relay.limit, relay.passed = 12 << 20, 0
        name = f"{relay.host}/team/big:1"
        sign_in(person, tenants.url, acme.key, "#/images")
        person.get_by_role("button", name="Pull", exact=True).click()
        dialog = person.get_by_role("dialog", name="Pull an image")
        dialog.get_by_role("button", name="Pull", exact=True).click()
        expect(error(dialog.get_by_label("Reference"))).to_contain_text("reference")
        dialog.get_by_label("Reference").fill(name)
        person.keyboard.press("Enter")
        pull = job(person, f"Pull of {name}")
        assert relay.stuck.wait(60)
        expect(pull.get_by_role("progressbar")).to_be_visible()
        expect(pull).to_contain_text(re.compile(r"Downloading: [\d.]+ MiB of \d+ MiB"))

        def shows_what_the_server_has() -> bool:
            (progress,) = acme.json("GET", "/api/v2/images/pulls")["pulls"]
            shown = int(pull.get_by_role("progressbar").get_attribute("aria-valuenow") or 0)
            return shown > 0 and abs(shown - 100 * progress["bytes_done"] / progress["bytes"]) <= 1

        until(shows_what_the_server_has)
        picture(person, "console-pull")
        # It goes on while another page is shown, and another window sees it.
        show(person, "Volumes")
        show(person, "Images")
        expect(pull.get_by_role("progressbar")).to_be_visible()
        other = person.context.new_page()
        other.goto(f"{tenants.url}/#/images")
        elsewhere = other.get_by_role("listitem", name=f"Pull of {name}")
        expect(elsewhere).to_contain_text("started elsewhere")
        expect(elsewhere.get_by_role("progressbar")).to_be_visible()
        other.close()
        # Cancelled, nothing is left but what was downloaded.
        pull.get_by_role("button", name=f"Cancel the pull of {name}").click()
        expect(pull).to_contain_text("pull cancelled")
        until(lambda: acme.json("GET", "/api/v2/images/pulls")["pulls"] == [])
        assert name not in images(acme)
        relay.limit = None
        pull.get_by_role("button", name=f"Try again: the pull of {name}").click()
        expect(pull).to_contain_text("pull done")
        expect(notification(person)).to_contain_text(f"Pulled {name}")
        mine = row(person, name)
        expect(mine).to_contain_text("this tenant")
        mine.get_by_role("link", name=name).click()
        expect(heading(person)).to_have_text(name)
        found = acme.json("GET", f"/api/v2/images/{name}")
        facts = person.get_by_role("region", name="Properties")
        for text in (found["digest"], found["source"], "in 2 layers", "/var", "nothing"):
            expect(facts).to_contain_text(text)
        expect(person.get_by_role("table", name="Layers").locator("tbody tr")).to_have_count(2)
        person.get_by_role("button", name="Delete", exact=True).click()
        expect(person.get_by_role("dialog")).to_contain_text("Layers that other images and sandboxes use stay")
        answer(person, "Delete")
        expect(heading(person)).to_have_text("Images")
        expect(row(person, name)).to_have_count(0)
        assert name not in images(acme)

    def test_refusals_are_shown_whole(self, tenants: TenantsServer, acme: Tenant, person: Page, pushed: Registry) -> None:
        sign_in(person, tenants.url, acme.key, "#/images")
        for name, reason in ((f"{pushed.host}/team/small:none", "Check the name"), ("registry.invalid/x:1", "image_registry"), (HOSTILE.replace(" ", ""), "")):
            person.get_by_role("button", name="Pull", exact=True).click()
            person.get_by_label("Reference").fill(name)
            person.keyboard.press("Enter")
            pull = job(person, f"Pull of {name}")
            refused = acme.http.post("/api/v2/images/pull", json={"image": name}).json()
            expect(pull.get_by_role("alert")).to_contain_text(sentence(refused.get("message") or refused["detail"]))
            expect(pull.get_by_role("alert")).to_contain_text(reason)
            expect(pull).to_contain_text("pull failed")
            pull.get_by_role("button", name=f"Dismiss the pull of {name}").click()
            expect(pull).to_have_count(0)

    def test_a_lost_connection_is_not_called_a_failure(self, tenants: TenantsServer, acme: Tenant, person: Page, relay: Relay) -> None:
        relay.limit, relay.passed = 12 << 20, 0
        relay.stuck.clear()
        name = f"{relay.host}/team/big:1"
        sign_in(person, tenants.url, acme.key, "#/images")
        person.route("**/api/v2/images/pull", lambda route: route.fulfill(content_type="text/event-stream", body='event: pull\ndata: {"image":"x","state":"downloading","layers":2,"layers_done":0,"bytes":100,"bytes_done":10}\n\n'))
        person.get_by_role("button", name="Pull", exact=True).click()
        person.get_by_label("Reference").fill(name)
        person.keyboard.press("Enter")
        pull = job(person, f"Pull of {name}")
        expect(pull).to_contain_text("connection lost")
        expect(pull).to_contain_text("its result is not known here")
        picture(person, "console-pull-lost")


class TestBuilds:
    def test_a_text_is_built_with_live_output(self, tenants: TenantsServer, acme: Tenant, person: Page, pushed: Registry) -> None:
        base = f"{pushed.host}/team/small:1"
        acme.json("POST", "/api/v2/images/pull", json={"image": base})
        sign_in(person, tenants.url, acme.key, "#/images")
        going = build(person, "team/waits:1", Dockerfile=f"FROM {base}\nRUN echo first; read line < /proc/self/mounts; sleep 86400\n")
        expect(going.get_by_role("log")).to_contain_text("first")
        expect(going.get_by_role("progressbar")).to_contain_text("")
        expect(going).to_contain_text(re.compile(r"Step \d of \d"))
        picture(person, "console-build")
        going.get_by_role("button", name="Cancel the build of team/waits:1").click()
        expect(going).to_contain_text("build cancelled")
        assert "team/waits:1" not in images(acme)

        built = build(person, "team/made:1", Dockerfile=f'FROM {base}\nRUN echo "{HOSTILE}"\nLABEL kind=made\nCMD ["/bin/cat", "/etc/passwd"]\n')
        expect(built).to_contain_text("build done")
        expect(built.get_by_role("log")).to_contain_text(HOSTILE)
        expect(built.get_by_role("log")).to_contain_text("Step 2 of")
        built.get_by_role("link", name="team/made:1").click()
        expect(heading(person)).to_have_text("team/made:1")
        facts = person.get_by_role("region", name="Properties")
        expect(facts.get_by_role("link", name=base)).to_be_visible()
        for text in ("kind=made", "/bin/cat /etc/passwd", "built or loaded here"):
            expect(facts).to_contain_text(text)
        expect(person.get_by_role("table", name="Layers")).to_contain_text("RUN echo")
        picture(person, "console-image")
        # A sandbox of it: the dialog has it chosen.
        person.get_by_role("button", name="Create a sandbox from it").click()
        dialog = person.get_by_role("dialog", name="Create sandboxes")
        expect(dialog.get_by_label("Image")).to_have_value("team/made:1")
        dialog.get_by_label("Name", exact=True).fill("of-made")
        dialog.get_by_role("button", name="Create", exact=True).click()
        expect(dialog).to_have_count(0)
        expect(facts.get_by_role("link", name="of-made")).to_be_visible()
        person.get_by_role("button", name="Delete", exact=True).click()
        expect(person.get_by_role("dialog")).to_contain_text("1 sandbox keeps what they have")
        answer(person, "Keep it")
        acme.json("DELETE", "/api/v2/sandboxes/of-made")
        acme.json("DELETE", "/api/v2/images/team/made:1")

    def test_a_folder_and_an_archive_are_contexts(self, tenants: TenantsServer, acme: Tenant, person: Page, pushed: Registry, tmp_path: Path) -> None:
        base = f"{pushed.host}/team/small:1"
        acme.json("POST", "/api/v2/images/pull", json={"image": base})
        folder = tmp_path / "context"
        deep = folder / ("deep/" * 24) / "with ümlaut"
        deep.mkdir(parents=True)
        (deep / "file").write_text("from the folder")
        (folder / "Dockerfile").write_text(f"FROM {base}\nARG WHAT\nCOPY . /srv/\nRUN cat /srv/{'deep/' * 24}with\\ ümlaut/file; echo; echo \"$WHAT\"\n")
        archive = tmp_path / "context.tgz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(folder, ".")
        sign_in(person, tenants.url, acme.key, "#/images")
        for source, chosen, name in (("folder", folder, "of-folder"), ("archive", archive, "of-archive")):
            person.get_by_role("button", name="Build an image", exact=True).click()
            dialog = person.get_by_role("dialog", name="Build an image")
            dialog.get_by_label("Name", exact=True).fill(name)
            dialog.get_by_label("Context").select_option(source)
            dialog.get_by_role("button", name="Build", exact=True).click()
            expect(dialog.locator(".problem")).to_contain_text("Choose a")
            dialog.locator("input[type=file]").set_input_files(chosen)
            dialog.get_by_text("More settings").click()
            dialog.get_by_label("Name of argument 1").fill("WHAT")
            dialog.get_by_label("Value of argument 1").fill("an argument of " + name)
            dialog.get_by_role("button", name="Build", exact=True).click()
            made = job(person, f"Build of {name}")
            expect(made).to_contain_text("build done")
            expect(made.get_by_role("log")).to_contain_text("from the folder")
            expect(made.get_by_role("log")).to_contain_text(f"an argument of {name}")
            acme.json("DELETE", f"/api/v2/images/{name}")

    def test_a_step_that_fails_says_why(self, tenants: TenantsServer, acme: Tenant, person: Page, pushed: Registry) -> None:
        base = f"{pushed.host}/team/small:1"
        acme.json("POST", "/api/v2/images/pull", json={"image": base})
        sign_in(person, tenants.url, acme.key, "#/images")
        failed = build(person, "fails", Dockerfile=f"FROM {base}\nRUN echo why it fails; exit 3\n")
        expect(failed).to_contain_text("build failed")
        expect(failed.get_by_role("log")).to_contain_text("why it fails")
        expect(failed.get_by_role("alert")).to_contain_text("3")
        picture(person, "console-build-failed")
        wrong = build(person, "wrong", Dockerfile="FROM\n")
        expect(wrong.get_by_role("alert")).to_be_visible()
        assert not {"fails", "wrong"} & set(images(acme))


def test_thousands_of_images(tenants: TenantsServer, acme: Tenant, person: Page) -> None:
    """The list is that of a real image, thousands of times, since a test can't make that many."""
    one = acme.json("GET", "/api/v2/images")["images"][0]
    many = {"images": [{**one, "name": f"many-{n}", "labels": {"n": str(n)}} for n in range(5000)]}
    person.route(re.compile(r"/api/v2/images$"), lambda route: route.fulfill(json=many))
    sign_in(person, tenants.url, acme.key, "#/images")
    table = person.get_by_role("table", name="Images")
    expect(table).to_have_attribute("aria-rowcount", "5001")
    assert table.locator("tbody tr.item").count() < 150
    person.get_by_role("searchbox", name="Search images").fill("many-499")
    expect(table.locator("tbody tr.item")).to_have_count(11)
    expect(person).to_have_url(re.compile("find=many-499"))


def test_templates(tenants: TenantsServer, acme: Tenant, person: Page) -> None:
    sign_in(person, tenants.url, acme.key, "#/templates")
    for template in acme.json("GET", "/api/v2/templates")["templates"]:
        expect(person.get_by_role("link", name=template["name"], exact=True).first).to_be_visible()
    person.get_by_role("table", name="Templates").get_by_role("link", name="default", exact=True).click()
    expect(heading(person)).to_have_text("default")
    spec = acme.json("GET", "/api/v2/templates/default")["spec"]
    expect(person.get_by_role("region", name="Start").get_by_role("link", name=spec["image"])).to_be_visible()
    expect(person.get_by_role("region", name="Limits")).to_contain_text(f"{spec['resources']['pids']:,}")
    person.get_by_role("button", name="Create a sandbox from it").click()
    dialog = person.get_by_role("dialog", name="Create sandboxes")
    expect(dialog.get_by_label("Template")).to_have_value("default")
    dialog.get_by_label("Name", exact=True).fill("of-template")
    dialog.get_by_role("button", name="Create", exact=True).click()
    expect(dialog).to_have_count(0)
    assert acme.json("GET", "/api/v2/sandboxes/of-template")["template"] == "default"
    acme.json("DELETE", "/api/v2/sandboxes/of-template")
    person.goto(f"{tenants.url}/#/templates/none")
    expect(person.get_by_role("heading", name="There is no such template")).to_be_visible()
