"""One server for each engine, without and with gVisor, and the table of what each can do.

An engine that is not here fails its tests: a table with holes says nothing.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import REPOSITORY, Server
from dockers import PROGRAM, Daemon
from sandboxes import LiveSandbox
from small import tiny_image

ENGINES = ("namespace", "gvisor", "docker", "docker + gvisor")
DOCUMENT = REPOSITORY / "docs/ENGINES.md"
BEGIN, END = "<!-- the table of tests/engines -->", "<!-- its end -->"
#: What tests found: by capability, then by engine.
FOUND: dict[str, dict[str, str]] = {}


class EngineServer(Server):
    gives_certificates = False


@dataclass
class Engine:
    name: str
    folder: Path
    server: EngineServer = field(init=False)
    daemon: Daemon | None = None
    made: list[LiveSandbox] = field(default_factory=list)

    @property
    def is_gvisor(self) -> bool:
        return "gvisor" in self.name

    def create(self, name: str, status: int = 201, **spec: Any) -> Any:
        """A sandbox, or the refusal if another status is expected."""
        body = {"name": name, "image": "tiny", **spec}
        answer = httpx.post(f"{self.server.url}/api/v2/sandboxes", json=body, timeout=180)
        assert answer.status_code == status, answer.text
        if status != 201:
            return answer.json()
        live = LiveSandbox(self.server.url, name)
        self.made.append(live)
        return live

    def post(self, path: str) -> httpx.Response:
        return httpx.post(f"{self.server.url}/api/v2/sandboxes/{path}", timeout=120)

    def end(self) -> None:
        """Leaves no process and no mount, whatever state a test left it in."""
        server: EngineServer | None = getattr(self, "server", None)
        try:
            if server is not None:
                if server.process is None:
                    server.start()
                server.delete_all_sandboxes()
                server.stop()
        finally:
            if self.daemon is not None:
                self.daemon.stop()

    def can(self, capability: str, how: str = "yes") -> None:
        """Enters a result into the table."""
        FOUND.setdefault(capability, {})[self.name] = how

    def guest(self, sandbox: LiveSandbox) -> int:
        """The host's process id of the guest."""
        if self.daemon is not None:
            return int(self.daemon.inspect(sandbox.id)["State"]["Pid"])
        record = (self.server.data_dir / "run" / sandbox.id / "sandbox.json").read_text().split("\n", 1)[1]
        return int(json.loads(record)["pid"])

    def group(self, sandbox: LiveSandbox) -> str:
        """A part of the names of its control groups alone."""
        return str(self.daemon.inspect(sandbox.id)["Id"]) if self.daemon is not None else sandbox.id

    def tag(self, sandbox: LiveSandbox) -> str:
        """The server's part of the names of links, tables, and control groups."""
        if self.daemon is not None:
            return str(self.daemon.inspect(sandbox.id)["Config"]["Labels"]["arenite.installation"])
        groups = Path(f"/proc/{self.guest(sandbox)}/cgroup").read_text()
        return re.findall(r"/arenite-([^/-]+)/", groups)[0]


def path_of_runsc() -> str:
    path = os.environ.get("ARENITE_TEST_RUNSC", "")
    if not os.access(path, os.X_OK):
        pytest.fail("gVisor's runsc is not there: `cargo xtask test` builds it, or set ARENITE_TEST_RUNSC to its path")
    return path


def runtime_of_gvisor() -> dict[str, Any]:
    """The entry of daemon.json that the document gives, with the runsc of the tests."""
    entry = json.loads(re.findall(r"```json\n(\{\s*\"runtimes\".*?)```", DOCUMENT.read_text(), re.DOTALL)[0])["runtimes"]["runsc"]
    return {**entry, "path": path_of_runsc()}


def start(engine: Engine) -> None:
    settings = ("--prepared-slots", "0", "--storage-size", "1GiB", "--disk-reserve", "1MiB", "--default-image", "tiny")
    if engine.name == "gvisor":
        settings += ("--tier", "gvisor", "--runsc", path_of_runsc())
    if engine.name.startswith("docker"):
        assert Path(PROGRAM).exists(), f"{PROGRAM} is missing: apt-get install --no-install-recommends docker.io"
        engine.daemon = Daemon(engine.folder / "docker", {"runsc": runtime_of_gvisor()} if engine.is_gvisor else {})
        engine.daemon.start()
        settings += ("--engine", "docker", "--docker-socket", str(engine.daemon.socket))
        if engine.is_gvisor:
            settings += ("--tier", "gvisor")
    engine.server = EngineServer(engine.folder / "data", args=settings)
    engine.server.start()
    pool = engine.server.data_dir / "pool"
    assert (pool / "images").is_dir(), "the storage has no pool here"
    tiny_image(pool, more=["busybox", "id", "env"])


def table() -> str:
    rows = [f"| capability | {' | '.join(ENGINES)} |", f"| --- |{' --- |' * len(ENGINES)}"]
    # In the document's order, whatever the order of the tests; what is new comes last.
    before = [row.split("|")[1].strip() for row in documented().splitlines()]
    for capability in sorted(FOUND, key=lambda name: before.index(name) if name in before else len(before)):
        results = FOUND[capability]
        cells = [results.get(engine, "not tested") for engine in ENGINES]
        rows.append(f"| {capability} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def documented() -> str:
    return DOCUMENT.read_text().split(BEGIN, 1)[1].split(END, 1)[0].strip() + "\n"


def bless() -> None:
    before, rest = DOCUMENT.read_text().split(BEGIN, 1)
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{table()}\n{END}{rest.split(END, 1)[1]}")
