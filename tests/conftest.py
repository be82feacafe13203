"""Fixtures: the real server, the real SDK, real sandboxes.

`ARENITE_TEST_URL` points the AIO tests at a server that runs already (also a guest on its own, without a sandbox
around it); tests that need sandboxes of their own, or the server's process, are skipped then.
`ARENITE_TEST_RUNSC` names gVisor's runsc, which `cargo xtask test` builds; the tests of that tier fail without it.
`ARENITE_TEST_VERSITYGW` names the server of buckets in the same way.
`ARENITE_TEST_DATA` names the data directory; the default is target/test-data, so that the image is built once.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import ssl
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import certifi
import httpx
import page_calls
import pytest
import sdk_calls
from agent_sandbox import Sandbox as Client
from arenite_server import REPOSITORY, Server, ensure_image
from playwright.sync_api import Browser, Page, Playwright, sync_playwright
from sandboxes import LiveSandbox

pytest_plugins = ["second_tries"]

ENVIRONMENTS = """[
  {"name": "plain", "image": "base", "description": "The base image, under a second name"},
  {"name": "full", "image": "aio", "description": "With browser and desktop"}
]"""


def pytest_configure() -> None:
    sdk_calls.watch()
    keep_authorities()
    # A shell's job in the background ignores Ctrl-C, and so would all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def keep_authorities() -> None:
    """Reads the certificates of public authorities once: each client of httpx reads them, which takes longer than most calls."""
    read = ssl.create_default_context
    kept = functools.cache(read)
    public = {certifi.where(), os.environ.get("SSL_CERT_FILE")}

    def create(*args: Any, **kwargs: Any) -> ssl.SSLContext:
        only_file = not args and kwargs.keys() == {"cafile"} and kwargs["cafile"] in public
        return (kept if only_file else read)(*args, **kwargs)

    ssl.create_default_context = create


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "soak" not in (config.getoption("markexpr") or ""):
        for item in items:
            if item.get_closest_marker("soak"):
                item.add_marker(pytest.mark.skip(reason="a long load; run by `cargo xtask soak`"))
    # What sums up the calls of its folder's tests needs all of these. A part of them leaves it out.
    part = config.option.keyword or not all((config.invocation_params.dir / arg).is_dir() for arg in config.args)
    summing = [item for item in items if item.get_closest_marker("last")]
    if part and summing:
        items[:] = [item for item in items if item not in summing]
        config.hook.pytest_deselected(items=summing)
    # Tests that kill and restart the server come after those, so that a failure there can't spoil the others.
    items.sort(key=lambda item: ("crash" in item.nodeid or "soak" in item.nodeid, item in summing))


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    if os.environ.get("ARENITE_TEST_URL"):
        pytest.skip("ARENITE_TEST_URL is set: the server's process is not ours")
    if os.geteuid() != 0:
        pytest.fail("run as root: sandboxes need namespaces, mounts and cgroups")
    data_dir = Path(os.environ.get("ARENITE_TEST_DATA", REPOSITORY / "target/test-data")).resolve()
    data_dir.mkdir(parents=True, exist_ok=True)
    ensure_image(data_dir)
    ensure_image(data_dir, "code")
    ensure_image(data_dir, "browser")
    ensure_image(data_dir, "aio")
    environments = data_dir.parent / f"{data_dir.name}.environments.json"
    environments.write_text(ENVIRONMENTS)
    args = ("--environments-file", str(environments))
    if runsc := os.environ.get("ARENITE_TEST_RUNSC"):
        args += ("--runsc", runsc)
    server = Server(data_dir, args=args)
    server.start()
    server.delete_all_sandboxes()
    # An earlier run's groups have leases from the start of the server on.
    with server.api() as api:
        for group in api.get("/api/v2/groups").raise_for_status().json()["groups"]:
            api.delete(f"/api/v2/groups/{group['name']}").raise_for_status()
    yield server
    if server.process is not None:
        server.delete_all_sandboxes()
        server.stop()


@pytest.fixture(scope="session")
def base_url(request: pytest.FixtureRequest) -> str:
    """What an AIO client is pointed at: the bare port, which means the sandbox `default`."""
    if url := os.environ.get("ARENITE_TEST_URL"):
        return url.rstrip("/")
    return request.getfixturevalue("server").url


@pytest.fixture(scope="session")
def client(base_url: str) -> Client:
    return Client(base_url=base_url, timeout=60)


@pytest.fixture(scope="session")
def http(base_url: str) -> Iterator[httpx.Client]:
    """JSON by hand, for what the SDK can't send."""
    with httpx.Client(base_url=base_url, timeout=60) as http:
        yield http


@pytest.fixture
def folder(client: Client) -> Iterator[str]:
    """A new directory inside the sandbox."""
    path = client.bash.exec(command="mktemp -d").data.stdout.strip()
    yield path
    client.bash.exec(command='chmod -R u+rwx "$F"; rm -rf "$F"', env={"F": path})


@pytest.fixture
def shell_id(client: Client) -> Iterator[str]:
    """A shell session of one test's own."""
    session = client.shell.create_session().data.session_id
    yield session
    client.shell.cleanup_all_sessions()


@pytest.fixture
def api(server: Server) -> Iterator[httpx.Client]:
    with server.api(timeout=120) as api:
        yield api


@pytest.fixture
def sandbox(server: Server) -> Iterator[Callable[..., LiveSandbox]]:
    """Makes sandboxes by Agent-Sandbox's route, or by `/api/v2` when `resources` or `network` are given."""
    made: list[LiveSandbox] = []

    def make(name: str | None = None, *, patience: float = 60, **spec: Any) -> LiveSandbox:
        name = name or f"t-{uuid.uuid4().hex[:10]}"
        own = {"resources", "network", "hostname", "labels", "template", "tier", "checkpoint"} & spec.keys()
        path = "/api/v2/sandboxes" if own else "/api/v1/sandbox"
        answer = httpx.post(f"{server.url}{path}", json={"name": name, **spec}, timeout=120)
        assert answer.status_code in (200, 201), answer.text
        live = LiveSandbox(server.url, name, patience)
        made.append(live)
        return live

    yield make
    if server.process is not None:
        for live in made:
            live.delete()


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    """A real one."""
    chromium = os.environ.get("ARENITE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not chromium:
        pytest.fail("no chromium found; install it (apt-get install chromium) or set ARENITE_CHROMIUM")
    browser = playwright.chromium.launch(
        executable_path=chromium,
        args=[
            "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync",
        ],
    )
    page_calls.watch(browser)
    yield browser
    browser.close()


@pytest.fixture(autouse=True)
def documented_calls(request: pytest.FixtureRequest) -> Iterator[None]:
    """Pages call only what the OpenAPI documents have."""
    yield from page_calls.checked(request.node.get_closest_marker("scripted") is not None)


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()
