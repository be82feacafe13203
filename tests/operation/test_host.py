"""Directories and ports of the host in sandboxes: those that the operator opens, and nothing beside them."""

from __future__ import annotations

import os
import socketserver
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from arenite_server import binary
from sandboxes import LiveSandbox
from small import SmallServer, small_server, within


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories for sandboxes, with something beside them that is not."""
    top = tmp_path_factory.mktemp("host")
    top.chmod(0o755)
    for name, mode in (("shared", 0o700), ("library", 0o755), ("other", 0o755)):
        (top / name).mkdir()
        (top / name).chmod(mode)
    (top / "shared/from-host").write_text("from the host")
    (top / "library/book").write_text("a book")
    (top / "other/secret").write_text("a secret")
    (top / "shared/way-out").symlink_to(top / "other")
    (top / "shared/way-up").symlink_to("../other/secret")
    return top


class Greeting(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.wfile.write(f"hello, {self.client_address[0]}\n".encode())


@pytest.fixture(scope="module")
def services() -> Iterator[tuple[int, int]]:
    """The ports of two services on the host's loopback."""
    servers = [socketserver.ThreadingTCPServer(("127.0.0.1", 0), Greeting) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield servers[0].server_address[1], servers[1].server_address[1]
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def small(host: Path, services: tuple[int, int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallServer]:
    declared = ("--volume", f"shared={host}/shared", "--volume", f"library={host}/library:ro", "--host-port", str(services[0]))
    with small_server(tmp_path_factory.mktemp("small"), args=declared) as server:
        yield server


@pytest.fixture
def fresh(small: SmallServer) -> Iterator[SmallServer]:
    small.delete_all_sandboxes()
    yield small


def refused(server: SmallServer, *volumes: dict[str, object]) -> dict[str, str]:
    body = {"name": "refused", "image": "tiny", "volumes": list(volumes)}
    answer = httpx.post(f"{server.url}/api/v2/sandboxes", json=body, timeout=60)
    assert answer.status_code == 400, answer.text
    assert "refused" not in server.states()
    return answer.json()


def test_files_are_shared_both_ways(fresh: SmallServer, host: Path) -> None:
    sandbox = fresh.create("one", volumes=[{"name": "shared", "path": "/root/project"}])
    other = fresh.create("two", volumes=[{"name": "shared", "path": "/mnt/deep/place"}])
    assert sandbox.output("cat /root/project/from-host") == "from the host"
    sandbox.output("echo written > /root/project/new; mkdir /root/project/folder")
    assert (host / "shared/new").read_text() == "written\n"
    assert (host / "shared/new").stat().st_uid == 0, "ids are the same numbers on both sides"
    assert other.output("cat /mnt/deep/place/new") == "written"
    os.chown(host / "shared/new", 1000, 1000)
    assert sandbox.output("stat -c %u:%g /root/project/new") == "1000:1000"
    assert httpx.get(f"{fresh.url}/api/v2/sandboxes/one", timeout=30).json()["spec"]["volumes"] == [
        {"name": "shared", "path": "/root/project", "read_only": False}
    ]
    for made in (sandbox, other):
        assert made.delete().status_code == 200
    assert (host / "shared/new").exists(), "a deleted sandbox leaves the host's files alone"


def test_read_only_is_enforced_and_special_files_do_not_work(fresh: SmallServer, host: Path) -> None:
    volumes = [
        {"name": "library", "path": "/root/library"},
        {"name": "shared", "path": "/root/shared", "read_only": True},
        {"name": "shared", "path": "/root/project"},
    ]
    sandbox = fresh.create("reader", volumes=volumes)
    for path in ("library", "shared"):
        result = sandbox.bash(f"echo x > /root/{path}/new-file")
        assert result.exit_code != 0 and "Read-only file system" in (result.stderr or ""), result
    assert sandbox.output("cat /root/library/book") == "a book"
    assert not (host / "library/new-file").exists() and not (host / "shared/new-file").exists()
    options = [line.split()[5] for line in sandbox.output("cat /proc/self/mountinfo").splitlines() if line.split()[4] == "/root/project"]
    assert len(options) == 1 and {"nosuid", "nodev", "rw"} <= set(options[0].split(",")), options


def test_links_lead_nowhere_else_on_the_host(fresh: SmallServer, host: Path) -> None:
    sandbox = fresh.create("links", volumes=[{"name": "shared", "path": "/root/project"}])
    for path in ("way-out/secret", "way-up", "../other/secret", "../../../../other/secret"):
        assert sandbox.bash(f"cat /root/project/{path}").exit_code != 0, path
    shown = sandbox.output("cat /proc/self/mountinfo")
    assert "a secret" not in shown
    assert (host / "other/secret").read_text() == "a secret"


def test_what_is_not_declared_is_refused_with_what_is(fresh: SmallServer) -> None:
    error = refused(fresh, {"name": "other", "path": "/root/other"})
    assert error["code"] == "invalid_request" and "other" in error["message"] and "library, shared" in error["hint"]
    for path in ("relative", "/", "/root/../etc", "/root/./x", "/root//x", "/proc", "/proc/1", "/sys/x", "/dev/shm", "/etc", "/usr", "/var", "/run/arenite"):
        error = refused(fresh, {"name": "shared", "path": path})
        assert "volumes" in error["message"], path
    assert "overlap" in refused(fresh, {"name": "shared", "path": "/a"}, {"name": "library", "path": "/a/b"})["message"]
    refused(fresh, {"name": "shared", "path": "/a", "host": "/etc"})
    refused(fresh, *[{"name": "shared", "path": f"/v{number}"} for number in range(17)])


def test_they_are_there_again_after_a_start(fresh: SmallServer) -> None:
    sandbox = fresh.create("lasting", volumes=[{"name": "shared", "path": "/root/project"}])
    fresh.restart()
    assert sandbox.output("cat /root/project/from-host") == "from the host"
    pid = (fresh.data_dir / "run" / sandbox.id / "sandbox.json").read_text().split('"pid":', 1)[1].split(",", 1)[0]
    os.kill(int(pid), 9)
    within(10, "it failed", lambda: fresh.states()["lasting"] == "failed")
    httpx.post(f"{fresh.url}/api/v2/sandboxes/lasting/start", timeout=60).raise_for_status()
    assert sandbox.output("cat /root/project/from-host") == "from the host"


def test_the_command_line_names_volumes(fresh: SmallServer) -> None:
    def create(volume: str) -> subprocess.CompletedProcess[str]:
        arguments = ["create", "by-command", "--image", "tiny", "--volume", volume, "--server", fresh.url]
        return subprocess.run([str(binary()), *arguments], capture_output=True, text=True, timeout=60)

    wrong = create("shared")
    assert wrong.returncode == 2 and "NAME[/DIRECTORY]:PATH" in wrong.stderr
    assert create("library:/root/library:ro").returncode == 0
    assert LiveSandbox(fresh.url, "by-command").output("cat /root/library/book") == "a book"


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ("open={top}/open", "chmod 700"),
        ("missing={top}/missing:ro", "No such file"),
        ("own={data}:ro", "data directory"),
        ("file={top}/file:ro", "not a directory"),
        ("Bad Name={top}/open:ro", "no volume"),
        ("relative=open:ro", "no volume"),
    ],
)
def test_what_cannot_be_shared_safely_is_refused_at_the_start(tmp_path: Path, declared: str, reason: str) -> None:
    # Pytest's own directories are closed to other users.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="arenite-volume-") as name:
        top = Path(name)
        top.chmod(0o755)
        (top / "open").mkdir(mode=0o755)
        (top / "file").write_text("")
        data = tmp_path / "data"
        text = declared.format(top=top, data=data)
        command = [str(binary()), "serve", "--listen", "127.0.0.1:0", "--agentflow-listen", "off", "--data-dir", str(data)]
        done = subprocess.run([*command, "--volume", text], capture_output=True, text=True, timeout=60)
        assert done.returncode != 0 and reason in done.stderr, done.stderr


def greeting(sandbox: LiveSandbox, name: str, port: int) -> str:
    return sandbox.output(f"exec 3<>/dev/tcp/{name}/{port} && cat <&3; exit 0")


def test_an_opened_port_is_reached_by_the_hosts_names(fresh: SmallServer, services: tuple[int, int]) -> None:
    opened, closed = services
    sandbox = fresh.create("caller")
    for name in ("host.docker.internal", "host.arenite.internal"):
        answer = greeting(sandbox, name, opened)
        assert answer.startswith("hello, ") and not answer.endswith("127.0.0.1"), answer
        assert "hello" not in greeting(sandbox, name, closed)
        assert "hello" not in greeting(sandbox, name, fresh.port)
    assert "hello" not in greeting(sandbox, "127.0.0.1", opened)
    alone = fresh.create("alone", network="none")
    assert "hello" not in greeting(alone, "host.docker.internal", opened)
    # After a restart too, for sandboxes of before it.
    fresh.restart()
    assert greeting(sandbox, "host.docker.internal", opened).startswith("hello, ")


def test_no_port_of_the_server_itself_can_be_opened(tmp_path: Path) -> None:
    for port in ("8080", "18890", "53", "0"):
        words = [str(binary()), "serve", "--listen", "127.0.0.1:8080", "--data-dir", str(tmp_path), "--host-port", port, "--validate"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30)
        assert done.returncode != 0 and "no port of this server" in done.stderr, (port, done)
