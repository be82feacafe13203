"""Annotations of trajectories: by the command line, the clients, and the page, by two writers, and for those who may only read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import REPOSITORY, Server
from commands import run
from consoles import picture, sign_in, violations
from operation.conftest import own_server  # noqa: F401
from playwright.sync_api import Browser, Locator, Page, expect
from sandboxes import LiveSandbox
from small import SmallServer, tiny_image
from tenant import Tenant, TenantsServer

sys.path.insert(0, str(REPOSITORY / "clients/python/src"))

import arenite  # noqa: E402

PATIENCE = 45_000
expect.set_options(timeout=PATIENCE)
LOOKS = {"light": ("light", 1440, 900), "dark": ("dark", 1440, 900), "narrow": ("light", 390, 844)}
HOSTILE = "<img src=x onerror=\"alert('owned')\"><script>alert(1)</script>"


@pytest.fixture
def person(page: Page) -> Iterator[Page]:
    """A page that must not make mistakes, nor run anything that a note brought along."""
    mistakes: list[str] = []
    page.set_default_timeout(PATIENCE)
    page.on("pageerror", lambda error: mistakes.append(str(error)))
    page.on("dialog", lambda dialog: (mistakes.append(dialog.message), dialog.dismiss()))
    page.on("console", lambda message: mistakes.append(message.text) if "Content Security Policy" in message.text else None)
    yield page
    assert not mistakes


@pytest.fixture
def live(sandbox: Callable[..., LiveSandbox]) -> LiveSandbox:
    """Its steps: a create, a command that works, and one that fails."""
    made = sandbox()
    made.output("echo the-first")
    made.bash("exit 3")
    return made


def path(live: LiveSandbox) -> str:
    return f"/api/v1/trajectories/{live.id}/annotations"


def add(api: httpx.Client, live: LiveSandbox, **body: Any) -> dict[str, Any]:
    answer = api.post(path(live), json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def listed(api: httpx.Client, live: LiveSandbox) -> list[dict[str, Any]]:
    return api.get(path(live)).raise_for_status().json()["annotations"]


def notes(page: Page, step: int) -> Locator:
    return page.get_by_role("region", name=f"Notes on step {step}")


def test_the_command_line_annotates_selects_and_exports(server: Server, api: httpx.Client, live: LiveSandbox, tmp_path: Path) -> None:
    label = f"good-{live.id}"

    def command(*words: str, code: int = 0, **more: Any) -> str:
        done = run(server, "trajectory", *words, **more)
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    whole = command("annotate", live.name, "--rating", "4", "--label", label).strip()
    assert "U+001B" in command("annotate", live.name, "--step", "3", "--note", "a\x1b[31m", code=2)
    of_step = command("annotate", live.name, "--step", "3", "--note", HOSTILE, "--label", "wrong-tool").strip()
    table = command("annotations", live.name)
    assert whole in table and "wrong-tool" in table and "<script>" in table
    assert json.loads(command("annotations", live.name, "--step", "3", "--json"))["annotations"][0]["id"] == of_step
    command("annotate", live.name, "--edit", of_step, "--rating", "1", "--clear", "note")
    changed = next(one for one in listed(api, live) if one["id"] == of_step)
    assert (changed["text"], changed["rating"], changed["labels"], changed["revision"]) == ("", 1, ["wrong-tool"], 2)
    assert "4.0" in command("ls", "--label", label)
    assert live.id in command("ls", "--label", label, "--min-rating", "4", "-o", "name")
    assert live.id not in command("ls", "--label", label, "--min-rating", "5", "-o", "name")
    file = tmp_path / "good.jsonl"
    command("export", "--label", label, "--min-rating", "4", "--format", "sharegpt", "--annotations", "-o", str(file))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines[0]["metadata"]["rating"] == 4 and label in lines[0]["metadata"]["labels"]
    assert "metadata" not in json.loads(command("export", live.name, "--format", "sharegpt").splitlines()[0])
    atif = json.loads(command("export", live.name, "--format", "atif"))
    assert atif["extra"]["annotations"][0]["rating"] == 4
    assert atif["steps"][-1]["extra"]["annotations"][0]["id"] == of_step
    assert "annotations" not in command("export", live.name, "--format", "atif", "--no-annotations")
    # The record is as it was.
    assert "all as written" in command("verify", live.name)
    for words, said in [
        (("annotate", live.name), "nothing to annotate with"),
        (("annotate", live.name, "--rating", "6"), "--rating"),
        (("annotate", live.name, "--label", "Good"), "lower-case"),
        (("annotate", live.name, "--edit", of_step, "--rating", "2", "--clear", "rating"), "exclude each other"),
    ]:
        assert said in command(*words, code=2)
    assert "no step 99" in command("annotate", live.name, "--step", "99", "--rating", "1", code=2)
    assert of_step in command("unannotate", live.name, of_step)
    assert "there is no annotation" in command("unannotate", live.name, of_step, code=3)
    assert "removed 1 annotations" in command("unannotate", live.name, "--all")
    assert listed(api, live) == []


def test_the_python_client_annotates(server: Server, live: LiveSandbox) -> None:
    with arenite.Client(server.url) as client:
        trajectory = client.trajectories.get(live.id)
        note = trajectory.annotate("ünïcode\n" + HOSTILE, step=2, labels=["b", "a"])
        assert (note.step, note.text, note.labels, note.rating) == (2, "ünïcode\n" + HOSTILE, ["a", "b"], None)
        trajectory.annotate(rating=5, labels=[f"of-{live.id}"])
        found = client.trajectories.list(label=["a", f"of-{live.id}"], min_rating=5)
        assert [one.trajectory for one in found] == [live.id]
        assert found[0].annotations is not None and (found[0].annotations.count, found[0].annotations.rating) == (2, 5)
        changed = trajectory.change_annotation(note, rating=3)
        assert (changed.rating, changed.text) == (3, note.text)
        with pytest.raises(arenite.PreconditionFailed):
            trajectory.change_annotation(note, text="too late")
        assert trajectory.change_annotation(note.id, rating=0).rating is None
        with pytest.raises(arenite.PreconditionFailed):
            trajectory.remove_annotation(changed)
        assert b'"kind":"annotation"' in trajectory.export("jsonl")
        assert b'"kind":"annotation"' not in trajectory.export("jsonl", annotations=False)
        trajectory.remove_annotation(note.id)
        assert [one.rating for one in trajectory.annotations()] == [5]
        assert trajectory.annotations(step=2) == []
        with pytest.raises(arenite.NotFound):
            client.trajectories.get("s00000000000").annotate(rating=1)


def test_steps_are_annotated_by_mouse(server: Server, api: httpx.Client, live: LiveSandbox, person: Page) -> None:
    person.goto(f"{server.url}/trajectory/{live.id}#step-3")
    notes(person, 3).get_by_role("button", name="Add").click()
    form = person.get_by_role("form", name="New annotation")
    form.get_by_role("button", name="Save").click()
    expect(form).to_contain_text("Write a note, add a label, or choose a rating.")
    form.get_by_role("radio", name="2 of 5").check()
    form.get_by_label("Labels").fill("Wrong-Tool, phase:plan")
    form.get_by_label("Note", exact=True).fill(HOSTILE)
    form.get_by_role("button", name="Save").click()
    card = notes(person, 3).get_by_role("article")
    expect(card).to_contain_text(HOSTILE)
    expect(card.get_by_role("img", name="Rated 2 of 5")).to_be_visible()
    assert card.locator("img, script").count() == 0
    (one,) = listed(api, live)
    assert (one["step"], one["text"], one["labels"], one["rating"]) == (3, HOSTILE, ["phase:plan", "wrong-tool"], 2)
    # It is marked in the list, and the filter finds it; the address has the filter.
    row = person.locator('.virtual-row[data-id="step-3"]')
    expect(row).to_contain_text("annotated: rated 2 of 5, phase:plan, wrong-tool, 1 note")
    person.get_by_role("combobox", name="Notes").select_option("Label wrong-tool")
    expect(person.locator(".virtual-row")).to_have_count(1)
    expect(person).to_have_url(f"{server.url}/trajectory/{live.id}?note=label-wrong-tool#step-3")
    person.reload()
    expect(person.locator(".virtual-row")).to_have_count(1)
    person.get_by_role("combobox", name="Notes").select_option("Not annotated")
    expect(row).to_have_count(0)
    person.get_by_role("button", name="Clear", exact=True).click()
    row.click()
    # Edited, and deleted.
    notes(person, 3).get_by_role("button", name="Edit the annotation").click()
    form = person.get_by_role("form", name="Edit the annotation")
    form.get_by_role("button", name="No rating").click()
    form.get_by_label("Note", exact=True).fill("clearer")
    form.get_by_role("button", name="Save").click()
    expect(card).to_contain_text("clearer")
    (one,) = listed(api, live)
    assert (one["text"], one["rating"], one["revision"]) == ("clearer", None, 2)
    notes(person, 3).get_by_role("button", name="Delete the annotation").click()
    person.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(card).to_have_count(0)
    assert listed(api, live) == []


def test_steps_and_runs_are_annotated_by_keyboard(server: Server, api: httpx.Client, live: LiveSandbox, person: Page) -> None:
    person.goto(f"{server.url}/trajectory/{live.id}#step-2")
    expect(notes(person, 2).get_by_role("button", name="Add a note")).to_be_visible()
    # A rating of one's own is changed, not given twice.
    for rating in "25":
        person.keyboard.press(rating)
        expect(notes(person, 2).get_by_role("img", name=f"Rated {rating} of 5")).to_be_visible()
    assert [one["rating"] for one in listed(api, live)] == [5]
    person.keyboard.press("n")
    form = person.get_by_role("form", name="New annotation")
    expect(form.get_by_label("Note", exact=True)).to_be_focused()
    person.keyboard.type("written with n 3 and f")
    person.keyboard.press("Control+Enter")
    expect(form).to_have_count(0)
    expect(notes(person, 2)).to_contain_text("written with n 3 and f")
    person.keyboard.press("n")
    expect(form.get_by_label("Note", exact=True)).to_be_focused()
    person.keyboard.press("Escape")
    expect(form).to_have_count(0)
    # The whole run, whose mean rating is in the head.
    person.keyboard.press("Shift+N")
    dialog = person.get_by_role("dialog")
    dialog.get_by_role("button", name="Add").press("Enter")
    form.get_by_role("radio", name="1 of 5").focus()
    person.keyboard.press("4")
    expect(form.get_by_role("radio", name="4 of 5")).to_be_checked()
    form.get_by_label("Labels").fill("reviewed")
    form.get_by_label("Labels").press("Enter")
    expect(dialog.get_by_role("article")).to_contain_text("reviewed")
    dialog.get_by_role("button", name="Close").click()
    expect(person.locator(".page-head .totals")).to_contain_text("rated 4 of 5")
    assert {(one["step"], one["rating"]) for one in listed(api, live)} == {(2, 5), (2, None), (None, 4)}
    person.goto(f"{server.url}/trajectories")
    person.get_by_label("Search trajectories").fill(live.name)
    expect(person.get_by_role("img", name="Rated 4 of 5")).to_be_visible()
    person.get_by_role("combobox", name="Notes").select_option("Label reviewed")
    expect(person.get_by_role("link", name=live.name)).to_be_visible()
    person.get_by_role("combobox", name="Notes").select_option("Rated 5")
    expect(person.get_by_role("link", name=live.name)).to_have_count(0)


def test_two_writers_lose_nothing(server: Server, api: httpx.Client, live: LiveSandbox, person: Page) -> None:
    one = add(api, live, step=3, text="as it was")
    person.goto(f"{server.url}/trajectory/{live.id}#step-3")
    notes(person, 3).get_by_role("button", name="Edit the annotation").click()
    form = person.get_by_role("form", name="Edit the annotation")
    form.get_by_label("Note", exact=True).fill("as the page has it")
    api.patch(f"{path(live)}/{one['id']}", json={"text": "as the other one has it"}).raise_for_status()
    form.get_by_role("button", name="Save").click()
    expect(form).to_contain_text("Someone changed this annotation meanwhile")
    expect(form).to_contain_text("as the other one has it")
    expect(form.get_by_label("Note", exact=True)).to_have_value("as the page has it")
    assert listed(api, live)[0]["text"] == "as the other one has it"
    form.get_by_role("button", name="Replace it with mine").click()
    form.get_by_role("button", name="Save").click()
    expect(form).to_have_count(0)
    assert (listed(api, live)[0]["text"], listed(api, live)[0]["revision"]) == ("as the page has it", 3)


def test_the_export_dialog_has_annotations(server: Server, api: httpx.Client, live: LiveSandbox, person: Page) -> None:
    add(api, live, step=3, labels=["of-the-step"])
    person.goto(f"{server.url}/trajectory/{live.id}")
    person.get_by_role("button", name="Export").click()
    dialog = person.locator("dialog#export")
    expect(dialog.get_by_label("With annotations")).to_be_checked()
    expect(dialog).to_contain_text("of-the-step")
    dialog.get_by_label("Format").select_option("openai-messages")
    expect(dialog.get_by_label("With annotations")).not_to_be_checked()
    expect(dialog).not_to_contain_text("of-the-step")
    dialog.get_by_label("With annotations").check()
    expect(dialog).to_contain_text("of-the-step")
    expect(dialog).to_contain_text("--annotations")


@pytest.fixture
def tenants(own_server: Callable[..., Server]) -> Iterator[TenantsServer]:  # noqa: F811
    server = own_server(kind=SmallServer, args=("--default-image", "tiny", "--tenants"))
    server.start()
    tiny_image(server.data_dir / "pool")
    yield TenantsServer(server)


def test_roles_tenants_and_a_restart_crash(tenants: TenantsServer, browser: Browser) -> None:
    acme, other = tenants.tenant("acme"), tenants.tenant("other")
    made = acme.json("POST", "/api/v2/sandboxes", json={"name": "one", "image": "tiny"})
    acme.json("PATCH", "/api/v2/sandboxes/one", json={"labels": {"a": "b"}})
    annotations = f"/api/v1/trajectories/{made['id']}/annotations"
    user = acme.new_key("use")
    one = Tenant(tenants.url, "acme", user["key"]).json("POST", annotations, json={"text": "kept", "step": 2, "rating": 3})
    assert one["author"] == user["id"]
    reader = Tenant(tenants.url, "acme", acme.new_key("read")["key"])
    assert reader.json("GET", annotations)["annotations"] == [one]
    this = f"{annotations}/{one['id']}"
    for method, where in [("POST", annotations), ("PATCH", this), ("DELETE", this), ("DELETE", annotations)]:
        refused = reader.http.request(method, where, json={"text": "no"})
        assert refused.status_code == 403 and refused.json()["hint"], refused.text
    # For another tenant, there is nothing.
    for method, where in [("GET", annotations), ("POST", annotations), ("GET", this), ("PATCH", this), ("DELETE", this)]:
        assert other.http.request(method, where, json={"text": "no"}).status_code == 404
    assert other.http.delete(annotations).status_code == 404
    assert other.json("GET", "/api/v1/trajectories?annotated=true")["trajectories"] == []
    changed = acme.json("PATCH", this, json={"labels": ["x"]})
    assert (changed["author"], changed["changed_by"] != user["id"]) == (user["id"], True)
    audit = [row["action"] for row in acme.json("GET", "/api/v2/audit")["rows"]]
    assert "annotation.create" in audit and "annotation.change" in audit
    # After the sandbox, and after a kill of the server.
    acme.json("DELETE", "/api/v2/sandboxes/one")
    tenants.server.kill()
    tenants.server.start()
    assert acme.json("GET", annotations)["annotations"] == [changed]
    assert [found["annotations"]["labels"] for found in acme.json("GET", "/api/v1/trajectories?label=x")["trajectories"]] == [["x"]]
    # A record that was removed by hand is gone for everyone, and its annotations can be removed.
    page = browser.new_page()
    page.set_default_timeout(PATIENCE)
    sign_in(page, tenants.url, reader.key)
    page.goto(f"{tenants.url}/trajectory/{made['id']}#step-2")
    expect(notes(page, 2)).to_contain_text("kept")
    expect(notes(page, 2).get_by_role("button")).to_have_count(0)
    page.keyboard.press("4")
    page.keyboard.press("n")
    expect(page.get_by_role("form", name="New annotation")).to_have_count(0)
    page.close()
    assert acme.json("GET", annotations)["annotations"] == [changed]
    (log,) = (tenants.server.data_dir / "trajectories/logs/acme").glob(f"{made['id']}.jsonl")
    log.unlink()
    assert acme.http.get(annotations).status_code == 404
    assert acme.http.post(annotations, json={"rating": 1}).status_code == 404
    assert acme.json("DELETE", annotations)["removed"] == 1


@pytest.mark.parametrize("look", LOOKS)
def test_notes_are_accessible(server: Server, api: httpx.Client, live: LiveSandbox, browser: Browser, look: str) -> None:
    add(api, live, step=3, text=HOSTILE + "x" * 300, labels=["wrong-tool", "phase:plan"], rating=2)
    add(api, live, rating=4, labels=["reviewed"])
    theme, width, height = LOOKS[look]
    context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": height}, reduced_motion="reduce")  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(PATIENCE)

    def opened() -> None:
        notes(page, 3).get_by_role("button", name="Edit the annotation").click()
        expect(page.get_by_role("form", name="Edit the annotation")).to_be_visible()

    def of_run() -> None:
        page.get_by_role("button", name="on the whole run").click()
        expect(page.get_by_role("dialog").get_by_role("article")).to_be_visible()

    one = f"trajectory/{live.id}"
    states: dict[str, tuple[str, Callable[[], Any]]] = {
        "list": ("trajectories", lambda: expect(page.get_by_role("combobox", name="Notes")).to_be_visible()),
        "step": (f"{one}#step-3", lambda: expect(notes(page, 3).get_by_role("article")).to_be_visible()),
        "form": (f"{one}#step-3", opened),
        "run": (one, of_run),
    }
    wrong: list[Any] = []
    for name, (where, ready) in states.items():
        page.goto("about:blank")
        page.goto(f"{server.url}/{where}")
        ready()
        picture(page, f"notes-{name}-{look}")
        wrong += [(name, one) for one in violations(page)]
    context.close()
    assert not wrong
