"""The API's documentation in a real Chromium: search, calls to real sandboxes, and its code, which is run as it is shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import page_calls
import pytest
import sdk_methods
from arenite_server import REPOSITORY, Server
from consoles import LOOKS, answer, heading, navigation, picture, violations
from jsonschema import Draft202012Validator
from playwright.sync_api import Locator, Page, expect
from recorded_calls import DOCUMENTS, DIALECTS, Recorder, operations
from sandboxes import LiveSandbox

CLIENTS = REPOSITORY / "clients"
LANGUAGES = ("curl", "Python", "TypeScript")
#: Opens each operation, and reads its code in each language.
READ_CODE = """async ([operations, languages]) => {
  const frame = () => new Promise(requestAnimationFrame);
  const until = async ready => { for (let n = 0; n < 600 && !ready(); n++) await frame(); if (!ready()) throw new Error(location.hash); };
  const pressed = name => [...document.querySelectorAll('.code-tabs button')].find(button => button.textContent === name);
  const all = [];
  for (const [dialect, id, title, path] of operations) {
    location.hash = `#/${dialect}/${id}`;
    await until(() => document.querySelector('h1').textContent === title && document.querySelector('.operation-path code')?.textContent.endsWith(path) && pressed('curl'));
    const texts = [];
    for (const language of languages) {
      pressed(language).click();
      await until(() => pressed(language).getAttribute('aria-pressed') === 'true');
      texts.push(document.querySelector('.code-tabs pre').textContent);
    }
    all.push(texts);
  }
  return all;
}"""


def find(page: Page, words: str, title: str) -> None:
    """Opens the best result of a search, by keyboard."""
    expect(page.get_by_role("navigation", name="Operations of")).to_contain_text("1")
    page.keyboard.press("/")
    expect(page.get_by_role("combobox", name="Search operations")).to_be_focused()
    page.keyboard.type(words)
    expect(page.get_by_role("option").first).to_be_visible()
    page.keyboard.press("Enter")
    expect(heading(page)).to_have_text(title)


def send(page: Page) -> Locator:
    page.get_by_role("button", name="Send", exact=True).click()
    found = page.get_by_role("region", name="Answer", exact=True)
    expect(found.get_by_role("status")).to_contain_text("ms")
    return found


def code(page: Page, language: str) -> str:
    page.get_by_role("group", name="Language").get_by_role("button", name=language, exact=True).click()
    return page.get_by_role("group", name="The same as code").inner_text()


@pytest.fixture(scope="module")
def typescript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which programs find the package `arenite`."""
    source = CLIENTS / "typescript"
    for command in (["npm", "ci", "--silent", "--no-audit", "--no-fund"], ["npm", "run", "--silent", "build"]):
        subprocess.run(command, cwd=source, check=True, timeout=300)
    folder = tmp_path_factory.mktemp("programs")
    (folder / "node_modules").mkdir()
    (folder / "node_modules/arenite").symlink_to(source)
    return folder


def run(language: str, text: str, folder: Path) -> str:
    """Runs a program as a reader would."""
    environment = {**os.environ, "PYTHONPATH": str(CLIENTS / "python/src")}
    file = folder / f"{uuid.uuid4().hex}.mjs"
    file.write_text(text)
    command = {"curl": ["bash", "-c", text], "Python": [sys.executable, "-c", text], "TypeScript": ["node", str(file)]}[language]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def test_documents_are_what_the_server_serves(server: Server) -> None:
    for path, name in DOCUMENTS.items():
        served = httpx.get(server.url + path).json()
        served.pop("servers", None)
        assert served == json.loads((page_calls.GOLDEN / f"{name}.json").read_text()), path


def test_examples_of_bodies_are_valid() -> None:
    checked = 0
    for name in DOCUMENTS.values():
        document = json.loads((page_calls.GOLDEN / f"{name}.json").read_text())
        for path, item in document["paths"].items():
            for operation in item.values():
                for media in operation.get("requestBody", {}).get("content", {}).values():
                    if "example" in media:
                        errors = list(Draft202012Validator({**media["schema"], "components": document["components"]}).iter_errors(media["example"]))
                        assert not errors, (path, errors)
                        checked += 1
    assert checked > 15


def test_methods_of_the_sdk_are_those_of_the_table() -> None:
    assert sdk_methods.TABLE.read_text() == sdk_methods.text(), "run: python tests/sdk_methods.py"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_each_interface_is_tried(server: Server, sandbox: Callable[..., LiveSandbox], person: Page, typescript: Path, scheme: str) -> None:
    person.emulate_media(color_scheme=scheme)
    live = sandbox()
    word = uuid.uuid4().hex
    (typescript / "answer.bin").unlink(missing_ok=True)

    # AIO: a command in the chosen sandbox.
    person.goto(f"{server.url}/v1/docs")
    find(person, "bash exec", "Runs a command in a fresh process")
    assert person.url.endswith("#/aio/exec")
    person.get_by_label("Sandbox", exact=True).fill(live.name)
    person.get_by_role("textbox", name="Body").fill(json.dumps({"command": f"echo {word}; echo hidden >&2"}))
    expect(send(person)).to_contain_text(f'"stdout": "{word}\\n"')
    expect(person.get_by_role("region", name="Answer", exact=True).get_by_role("status")).to_contain_text("200 OK")
    picture(person, f"docs-answer-{scheme}")
    for language in LANGUAGES:
        assert word in run(language, code(person, language), typescript), language
    # A person caused the call of the page, and an agent those of the programs.
    origins = [step["origin"] for step in httpx.get(f"{live.url}/steps").json()["steps"] if word in json.dumps(step)]
    assert origins == ["person", "agent", "agent", "agent"], origins

    # A file is saved as it is.
    live.output("printf '\\x00\\xff' > /tmp/bytes")
    find(person, "file download", "The bytes of a file, or of a range of it")
    person.get_by_label("path").fill("/tmp/bytes")
    found = send(person)
    expect(found).to_contain_text("2 bytes")
    with person.expect_download() as saved:
        found.get_by_role("link", name="Save").click()
    assert Path(saved.value.path()).read_bytes() == b"\x00\xff"
    run("Python", code(person, "Python"), typescript)
    assert (typescript / "answer.bin").read_bytes() == b"\x00\xff"

    # Arenite: the sandbox itself. What does not exist is an answer, too.
    find(person, "GET /api/v2/sandboxes/{name}", "Describes a sandbox")
    expect(person.get_by_label("name (required)")).to_have_value(live.name)
    expect(send(person)).to_contain_text(f'"name": "{live.name}"')
    for language in LANGUAGES:
        assert live.name in run(language, code(person, language), typescript), language
    person.get_by_label("name (required)").fill("nobody")
    expect(send(person)).to_contain_text("there is no sandbox nobody")
    expect(person.get_by_role("region", name="Answer", exact=True).get_by_role("status")).to_contain_text("404")

    # Agent-Sandbox.
    find(person, "GET /api/v1/sandbox lists the sandboxes agent-sandbox", "Lists the sandboxes")
    assert person.url.endswith("#/agent-sandbox/agent_sandbox_list")
    expect(send(person)).to_contain_text(live.name)
    for language in LANGUAGES:
        assert live.name in run(language, code(person, language), typescript), language

    # AgentFlow: a session, and a tool in it.
    worker = f"page-{word[:8]}"
    find(person, "session create", "Creates a worker's session")
    person.get_by_role("textbox", name="Body").fill(json.dumps({"worker_id": worker, "resource_type": "bash"}))
    expect(send(person)).to_contain_text('"code": 0')
    find(person, "/api/v1/execute runs a tool", "Runs a tool")
    person.get_by_role("textbox", name="Body").fill(json.dumps({"worker_id": worker, "action": "bash:run", "params": {"command": f"echo {word}"}}))
    expect(send(person)).to_contain_text(word)
    for language in LANGUAGES:
        assert word in run(language, code(person, language), typescript), language
    find(person, "worker disconnect", "Ends all sessions of a worker")
    person.get_by_role("textbox", name="Body").fill(json.dumps({"worker_id": worker}))
    person.get_by_role("button", name="Send", exact=True).click()
    answer(person, "Send")
    expect(person.get_by_role("region", name="Answer", exact=True)).to_contain_text('"code": 0')


def test_a_deletion_is_asked_for(server: Server, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
    live = sandbox()
    person.goto(f"{server.url}/api/v2/docs#/arenite/delete_sandbox")
    person.get_by_label("name (required)").fill(live.name)
    person.get_by_role("button", name="Send", exact=True).click()
    person.keyboard.press("Enter")
    expect(person.get_by_role("dialog")).to_have_count(0)
    assert httpx.get(f"{server.url}/api/v2/sandboxes/{live.name}").status_code == 200
    person.get_by_role("button", name="Send", exact=True).click()
    answer(person, "Send")
    expect(person.get_by_role("region", name="Answer", exact=True).get_by_role("status")).to_contain_text("200 OK")
    assert httpx.get(f"{server.url}/api/v2/sandboxes/{live.name}").status_code == 404


def test_a_stream_is_shown_as_it_comes(server: Server, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
    person.goto(f"{server.url}/api/v2/docs#/arenite/list_events")
    person.get_by_label("follow").select_option("true")
    person.get_by_role("button", name="Send", exact=True).click()
    found = person.get_by_role("region", name="Answer", exact=True)
    expect(found.get_by_role("status")).to_contain_text("coming")
    live = sandbox()
    expect(found).to_contain_text(live.name)
    expect(found.get_by_role("status")).to_contain_text("coming")
    person.get_by_role("button", name="Stop").click()
    expect(found.get_by_role("status")).to_contain_text("stopped")


def test_addresses(server: Server, sandbox: Callable[..., LiveSandbox], person: Page) -> None:
    live = sandbox()
    for path, title in (("v1/docs", "AIO API"), ("api/v2/docs", "Arenite API"), ("docs", "AgentFlow API"), ("redoc", "AgentFlow API"), (f"sandbox/{live.name}/v1/docs", "AIO API")):
        person.goto(f"{server.url}/{path}")
        expect(heading(person)).to_have_text(title)
    # As the page before had them.
    person.goto(f"{server.url}/sandbox/{live.name}/v1/docs#exec")
    expect(heading(person)).to_have_text("Runs a command in a fresh process")
    expect(person.get_by_label("Sandbox", exact=True)).to_have_value(live.name)
    # On the sandbox's own host, there is its interface alone.
    person.goto(f"http://{live.id}.localhost:{server.port}/v1/docs#/aio/exec")
    expect(heading(person)).to_have_text("Runs a command in a fresh process")
    expect(person.get_by_role("navigation", name="Interfaces")).to_have_count(0)
    person.get_by_role("textbox", name="Body").fill(json.dumps({"command": "echo own"}))
    expect(send(person)).to_contain_text('"stdout": "own\\n"')
    person.goto(f"{server.url}/")
    navigation(person).get_by_role("link", name="API docs").click()
    expect(heading(person)).to_have_text("Arenite API")


@pytest.mark.parametrize("look", LOOKS)
def test_it_is_accessible(server: Server, sandbox: Callable[..., LiveSandbox], person: Page, look: str) -> None:
    live = sandbox()
    scheme, width, height = LOOKS[look]
    person.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    person.set_viewport_size({"width": width, "height": height})
    wrong: list[Any] = []

    def check(state: str) -> None:
        picture(person, f"docs-{state}-{look}")
        wrong.extend((state, one) for one in violations(person))

    person.goto(f"{server.url}/api/v2/docs")
    expect(person.get_by_role("region", name="quarantine")).to_be_visible()
    check("overview")
    person.get_by_role("combobox", name="Search operations").fill("sandbox")
    expect(person.get_by_role("option").first).to_be_visible()
    check("search")
    person.goto(f"{server.url}/api/v2/docs#/arenite/create_sandbox")
    expect(heading(person)).to_have_text("Creates a sandbox, or several")
    person.get_by_role("region", name="Body", exact=True).locator("summary").first.click()
    check("operation")
    person.get_by_role("textbox", name="Body").fill("{")
    person.get_by_role("button", name="Send", exact=True).click()
    expect(person.locator("[aria-invalid]")).to_be_visible()
    check("wrong")
    person.goto(f"{server.url}/v1/docs#/aio/exec")
    person.get_by_label("Sandbox", exact=True).fill(live.name)
    person.get_by_role("textbox", name="Body").fill('{"command": "seq 300"}')
    expect(send(person)).to_contain_text("299")
    person.get_by_role("region", name="Answer", exact=True).locator("summary").click()
    check("answer")
    person.route("**/openapi.json", lambda route: route.fulfill(status=503, json={"detail": "the server is busy", "hint": "wait a moment", "code": "exhausted"}))
    person.goto("about:blank")
    person.goto(f"{server.url}/docs")
    expect(person.get_by_role("main").get_by_role("alert")).to_contain_text("Wait a moment")
    check("unreadable")
    person.unroute_all(behavior="ignoreErrors")
    person.get_by_role("button", name="Try again").click()
    expect(person.get_by_role("region", name="Execute")).to_be_visible()
    assert not wrong


def test_a_call_that_no_document_has_is_found(server: Server, person: Page) -> None:
    """The check of all tests with pages (`page_calls.py`) itself."""
    person.goto(server.url)
    expect(heading(person)).to_have_text("Sandboxes")
    assert page_calls.take() == []
    for call in ("'api/v2/hidden'", "'api/v2/sandboxes?secret=1'", "'api/v2/volumes', {method: 'POST', body: 'x', headers: {'content-type': 'text/odd'}}"):
        person.evaluate(f"fetch({call})")
    person.evaluate("new Promise(done => { new WebSocket(location.href.replace('http', 'ws') + 'other').onerror = done; })")
    assert page_calls.take() == [
        "/: GET /api/v2/hidden is in no OpenAPI document",
        "/: GET /api/v2/sandboxes has no parameter secret",
        "/: POST /api/v2/volumes takes no text/odd",
        "/: the WebSocket /other is not known",
    ]


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    with Recorder() as recorder:
        yield recorder


@pytest.mark.timeout(600)
def test_the_code_of_every_operation_makes_its_call(server: Server, person: Page, recorder: Recorder, typescript: Path) -> None:
    """All programs of the page, on a server that records requests and answers with examples."""
    (typescript / "file.bin").write_bytes(b"content")
    wanted = operations()
    assert {operation.dialect for operation in wanted} == set(DIALECTS) and len(wanted) > 290
    person.goto(f"{server.url}/v1/docs#/aio/exec")
    person.get_by_label("Sandbox", exact=True).fill("demo")
    shown = [[one.dialect, one.id, one.title, one.path] for one in wanted]
    pages: list[list[str]] = person.evaluate(READ_CODE, [shown, LANGUAGES])
    wrong = []
    for number, language in enumerate(LANGUAGES):
        texts = [page[number].replace(server.url, recorder.url) for page in pages]
        made = recorder.run(language, texts, typescript, CLIENTS / "python/src")
        for operation, text, calls in zip(wanted, texts, made, strict=True):
            if not any(operation.is_made_by(call) for call in calls):
                wrong.append(f"{language}: {operation.method} {operation.path}: {[(call.method, call.path) for call in calls]}\n{text}")
    assert not wrong, f"{len(wrong)} of {3 * len(wanted)}:\n" + "\n\n".join(wrong[:20])
