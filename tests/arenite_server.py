"""The real server as a process of the test run: started, killed, started again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import ClassVar

import httpx

REPOSITORY = Path(__file__).resolve().parent.parent


def binary() -> Path:
    """`ARENITE_BIN`, else the newest release build."""
    if named := os.environ.get("ARENITE_BIN"):
        return Path(named).resolve()
    target = Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target"))
    found = [
        path
        for path in (target / "x86_64-unknown-linux-gnu/release/arenite", target / "release/arenite")
        if path.is_file()
    ]
    if not found:
        raise RuntimeError("no arenite binary found; build one (cargo xtask up) or set ARENITE_BIN")
    return max(found, key=lambda path: path.stat().st_mtime)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """One data directory and the server process that currently serves it."""

    #: Whether its sandboxes trust the certificates that this host's registries need. Not every engine can give them.
    gives_certificates = True
    #: Of all servers that were started.
    ports: ClassVar[set[int]] = set()

    def __init__(self, data_dir: Path, port: int | None = None, args: tuple[str, ...] = ()):
        self.data_dir = data_dir
        self.port = port or int(os.environ.get("ARENITE_TEST_PORT", 0)) or free_port()
        self.args = args
        self.scheme = "http"
        self.process: subprocess.Popen[bytes] | None = None
        #: Where AgentFlow's clients look by themselves.
        self.agentflow = "off"
        #: See `leaks.mark`.
        self.mark: str | None = None
        #: Where it runs, and what it finds in its environment besides ours.
        self.cwd: Path | None = None
        self.environment: dict[str, str] = {}
        #: Another build than `binary()`.
        self.program: Path | None = None
        #: Descriptors that it inherits.
        self.pass_fds: tuple[int, ...] = ()
        self.log_path = data_dir.parent / f"{data_dir.name}.server.log"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None, "the server is not running"
        return self.process.pid

    def launcher(self) -> int | None:
        """Its child that shows itself as `arenite launcher`."""
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                if b"launcher" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        return None

    def command_line(self, extra: tuple[str, ...] = ()) -> list[str]:
        command = [str(self.program or binary()), "serve", "--listen", f"127.0.0.1:{self.port}"]
        command += ["--agentflow-listen", self.agentflow, "--data-dir", str(self.data_dir)]
        ca = os.environ.get("ARENITE_TEST_EXTRA_CA") or os.environ.get("SSL_CERT_FILE")
        if self.gives_certificates and ca and Path(ca).is_file():
            command += ["--extra-ca", ca]
        return [*command, *self.args, *extra]

    def start(self, extra: tuple[str, ...] = (), wait: float = 90, ready: bool = True) -> None:
        """Returns when it is ready; with `ready` false, when it answers whether it is."""
        assert self.process is None, "the server is already running"
        self.ports.add(self.port)
        # ARENITE_* of the caller would reach the server as settings.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ARENITE_")} | self.environment
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command_line(extra),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.cwd,
                start_new_session=True,
                pass_fds=self.pass_fds,
            )
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline:
            if (status := self.process.poll()) is not None:
                self.process = None
                tail = self.log_tail()
                raise RuntimeError(f"the server ended with status {status}: {tail.strip().rpartition(chr(10))[2]}\n{tail}")
            try:
                answer = httpx.get(f"{self.url}/ready", timeout=5)
                if answer.status_code == 200 or (answer.status_code == 503 and not ready):
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        raise RuntimeError(f"the server was not ready within {wait} s:\n{self.log_tail()}")

    def log_tail(self, size: int = 4000) -> str:
        if not self.log_path.exists():
            return ""
        return self.log_path.read_bytes()[-size:].decode(errors="replace")

    def kill(self) -> None:
        """kill -9: nothing of the server gets to run any more."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            stacks = [f"{task.name} {(task / 'comm').read_text()}{(task / 'stack').read_text()}" for task in Path(f"/proc/{self.process.pid}/task").iterdir()]
            raise RuntimeError("the kernel does not end it:\n" + "\n".join(stacks)) from None
        self.process = None

    def stop(self, wait: float = 60) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(wait)
        self.process = None
        return status

    def restart(self, extra: tuple[str, ...] = ()) -> None:
        self.stop()
        self.start(extra)

    def api(self, timeout: float = 60, headers: dict[str, str] | None = None) -> httpx.Client:
        limits = httpx.Limits(max_connections=200)
        return httpx.Client(base_url=self.url, timeout=timeout, limits=limits, headers=headers)

    def delete_all_sandboxes(self) -> None:
        with self.api() as api:
            for sandbox in api.get("/api/v2/sandboxes").raise_for_status().json()["sandboxes"]:
                api.delete(f"/api/v2/sandboxes/{sandbox['name']}")


def ensure_image(data_dir: Path, name: str = "base") -> None:
    """Builds the image when the data directory has none of that name."""
    arguments = [name, "--data-dir", str(data_dir)]
    inspected = subprocess.run([str(binary()), "image", "inspect", *arguments, "--json"], capture_output=True, timeout=120)
    if inspected.returncode == 0:
        return
    file = REPOSITORY / "images" / f"{name}.Imagefile"
    built = subprocess.run([str(binary()), "image", "build", *arguments, "--file", str(file)], timeout=1500, cwd=REPOSITORY)
    if built.returncode != 0:
        raise RuntimeError(f"could not build the image {name!r} (exit status {built.returncode})")


def ensure_vm(data_dir: Path, name: str) -> None:
    """Builds the VM that comes with Arenite when the data directory has no image of that name."""
    arguments = [name, "--data-dir", str(data_dir)]
    inspected = subprocess.run([str(binary()), "image", "inspect", *arguments, "--json"], capture_output=True, timeout=120)
    if inspected.returncode != 0:
        subprocess.run([str(binary()), "vm", "build", *arguments], check=True, timeout=1500)
