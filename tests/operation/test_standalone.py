"""Images with the guest as entry point: they run in Docker without a server, and AIO Sandbox's SDK drives them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import shapes
from agent_sandbox import Sandbox as Client
from agent_sandbox.core.api_error import ApiError
from arenite_server import Server
from commands import run
from dockers import Daemon, in_memory
from registries import registry

KEY = "k-0123456789"
#: What a careful operator gives to a container.
HARDENED = ("--user", "1000", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
#: The host's end of a container's link, and the container's.
OURS, THEIRS = "198.51.100.1", "198.51.100.2"


@dataclass
class Box:
    docker: Daemon
    name: str
    url: str = f"http://{THEIRS}:8080"

    def http(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    def client(self, **headers: str) -> Client:
        return Client(base_url=self.url, httpx_client=self.http(**headers))

    def inspect(self) -> dict[str, Any]:
        return self.docker.get(f"/containers/{self.name}/json").raise_for_status().json()

    def log(self) -> str:
        """Both streams, with the frames that Docker puts around them."""
        return self.docker.get(f"/containers/{self.name}/logs?stdout=1&stderr=1").content.decode(errors="replace")

    def connect(self) -> None:
        """A link between this host and the container: the daemon of the tests makes no networks."""
        process, link = str(self.inspect()["State"]["Pid"]), f"arst{os.getpid()}"[:15]

        def ip(*words: str, inside: bool = False) -> None:
            enter = ("nsenter", "--net", "--target", process) if inside else ()
            subprocess.run([*enter, "ip", *words], check=True)

        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", process)
        ip("addr", "add", f"{OURS}/30", "dev", link)
        ip("link", "set", link, "up")
        ip("addr", "add", f"{THEIRS}/30", "dev", "eth0", inside=True)
        ip("link", "set", "eth0", "up", inside=True)

    def wait(self) -> None:
        deadline = time.monotonic() + 60
        with self.http() as http:
            while True:
                try:
                    # Probes need no key.
                    if http.get("/v1/ping", timeout=5).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                assert time.monotonic() < deadline and self.inspect()["State"]["Running"], self.log()
                time.sleep(0.05)


@pytest.fixture(scope="module")
def docker(server: Server) -> Iterator[Daemon]:
    with in_memory() as daemon:
        file = daemon.folder / "box.tar"
        saved = run(server, "image", "save", "base", "--with-guest", "-o", str(file))
        assert saved.returncode == 0, saved.stderr
        daemon.command("load", "-i", str(file))
        file.unlink()
        yield daemon


@pytest.fixture
def box(docker: Daemon) -> Iterator[Any]:
    with ExitStack() as made:

        def start(*options: str, image: str = "base", args: tuple[str, ...] = ()) -> Box:
            name = docker.command("run", "--detach", "--network", "none", *options, image, *args)
            made.callback(docker.request, "DELETE", f"/containers/{name}?force=1")
            started = Box(docker, name)
            started.connect()
            started.wait()
            return started

        yield start


def output(client: Client, command: str) -> str:
    answer = client.bash.exec(command=command).data
    assert answer.exit_code == 0, answer
    return answer.stdout or ""


@pytest.mark.parametrize("options", [(), HARDENED, ("--user", "0")], ids=["images-user", "hardened", "root"])
def test_the_sdk_drives_a_container(box: Any, options: tuple[str, ...]) -> None:
    one = box("--env", f"ARENITE_GUEST_KEY={KEY}", "--env", "COLOUR=green", *options)
    client = one.client(**{"X-API-Key": KEY})
    assert output(client, "id -un; pwd; echo $COLOUR") == "gem\n/home/gem\ngreen\n"
    session = client.shell.create_session().data.session_id
    client.shell.exec_command(id=session, command="cd /tmp; X=7")
    assert "7 /tmp" in client.shell.exec_command(id=session, command='echo "$X $PWD"').data.output
    client.file.write_file(file="/home/gem/a/b.txt", content="in a container\n")
    assert client.file.read_file(file="/home/gem/a/b.txt").data.content == "in a container\n"
    assert output(client, "stat -c '%U' /home/gem/a/b.txt") == "gem\n"
    assert [entry.name for entry in client.file.list_path(path="/home/gem/a").data.files] == ["b.txt"]
    # The guest reaps what is left of a command, as the first process.
    output(client, "(sleep 0.1 & disown); sleep 0.5")
    assert "defunct" not in output(client, "ps -A")


def test_only_the_key_opens_it(box: Any) -> None:
    one = box("--env", f"ARENITE_GUEST_KEY={KEY}", *HARDENED)
    for headers in ({"X-API-Key": KEY}, {"X-AIO-API-Key": KEY}, {"Authorization": f"Bearer {KEY}"}):
        assert one.client(**headers).bash.exec(command="true").success
    for headers in ({}, {"X-API-Key": "wrong"}, {"X-API-Key": KEY + "9"}, {"Authorization": f"Basic {KEY}"}):
        with pytest.raises(ApiError) as refused:
            one.client(**headers).bash.exec(command="true")
        assert refused.value.status_code == 401
        assert refused.value.body["success"] is False and refused.value.body["message"] == "Unauthorized"
    with one.http() as http:
        assert http.post(f"/v1/bash/exec?api_key={KEY}", json={"command": "true"}).status_code == 200
        for path in ("/v1/sandbox", "/mcp", "/internal/hello", "/v1/openapi.json", "/nothing"):
            assert http.get(path).status_code == 401, path
    with one.http(**{"X-API-Key": KEY}) as http:
        # These are for a server.
        for path in ("hello", "inside-steps", "ports/8080", "activity"):
            assert http.get(f"/internal/{path}").status_code == 404, path
        assert "/v1/bash/exec" in http.get("/v1/openapi.json").json()["paths"]
    client = one.client(**{"X-API-Key": KEY})
    # No command finds the key, and none needs it.
    search = "env; cat /proc/self/environ; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'; cat /proc/1/environ; true"
    found = client.bash.exec(command=search).data
    assert KEY not in (found.stdout or "") and "COLOUR" not in (found.stdout or "")
    assert "Permission denied" in (found.stderr or "")
    assert output(client, "curl -sf http://127.0.0.1:8080/v1/sandbox | jq .success") == "true\n"
    assert "gem" in output(client, "aio sandbox get-context")
    printed = one.docker.command("exec", one.name, "/.arenite/aio", "bash", "exec", "echo $((6 * 7))")
    assert json.loads(printed)["data"]["stdout"] == "42\n"
    assert "ARENITE_GUEST_KEY is not set" not in one.log()


def test_root_does_not_find_the_key(box: Any) -> None:
    one = box("--env", f"ARENITE_GUEST_KEY={KEY}", "--user", "0")
    client = one.client(**{"X-API-Key": KEY})
    found = client.bash.exec(command="id -un; sudo cat /proc/1/environ; sudo id -un").data
    assert (found.stdout or "").split() == ["gem", "root"] and KEY not in (found.stderr or ""), found


def test_mcp_of_a_container(box: Any) -> None:
    one = box("--env", f"SANDBOX_API_KEY={KEY}")
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "sandbox_execute_bash", "arguments": {"cmd": "id -un"}}}
    accept = {"accept": "application/json, text/event-stream", "Authorization": f"Bearer {KEY}"}
    with one.http(**accept) as http:
        answer = http.post("/mcp", json=call)
        assert answer.status_code == 200 and "gem" in answer.text, answer.text


def test_without_a_key_it_warns_and_refuses_pages(box: Any) -> None:
    one = box("--env", "RUN_HOOK_SHUTDOWN=echo bye > /proc/1/fd/2", args=("sh", "-c", "echo the main command of $(id -un)"))
    with one.http() as http:
        assert http.get("/v1/sandbox").status_code == 200
        for headers in ({"host": "evil.example:8080"}, {"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
            assert http.get("/v1/sandbox", headers=headers).status_code == 403, headers
        assert http.get("/v1/sandbox", headers={"host": "box:8080"}).status_code == 200
    log = one.log()
    assert "ARENITE_GUEST_KEY is not set" in log and "the main command of gem" in log, log
    # Docker waits for 10 s and then kills it: the guest ends on its signal.
    begun = time.monotonic()
    one.docker.command("stop", one.name)
    state = one.inspect()["State"]
    assert (state["Running"], state["ExitCode"]) == (False, 0) and time.monotonic() - begun < 8, state


def test_an_empty_key_is_refused(docker: Daemon) -> None:
    name = docker.command("run", "--detach", "--network", "none", "--env", "ARENITE_GUEST_KEY=", "base")
    try:
        docker.request("POST", f"/containers/{name}/wait")
        one = Box(docker, name)
        assert one.inspect()["State"]["ExitCode"] == 1 and "ARENITE_GUEST_KEY is empty" in one.log()
    finally:
        docker.request("DELETE", f"/containers/{name}?force=1")


def test_an_image_without_a_directory_is_pushed(server: Server, box: Any, docker: Daemon, tmp_path: Path) -> None:
    """`scratch` with one program, by way of a registry, as a user that it does not know and on a read-only root."""
    made = run(server, "image", "load", str(shapes.scratch(tmp_path, "t-box:1")))
    assert made.returncode == 0, made.stderr
    try:
        with registry(tmp_path) as there:
            reference = f"{there.host}/box:1"
            pushed = [run(server, "image", "push", "t-box:1", reference, "--with-guest") for _ in range(2)]
            assert all(done.returncode == 0 for done in pushed), pushed
            assert pushed[0].stdout == pushed[1].stdout, "the same image and program are the same digest"
            assert pushed[1].stderr.count("was there") == 2, pushed[1].stderr
            docker.command("pull", reference)
            config = docker.get(f"/images/{reference}/json").json()["Config"]
            assert config["Entrypoint"] == ["/.arenite/arenite", "guest", "standalone"] and "8080/tcp" in config["ExposedPorts"]
            more = ("--read-only", "--tmpfs", "/tmp:mode=1777", "--user", "4321:4321", "--cap-drop", "ALL")
            one = box("--env", f"ARENITE_GUEST_KEY={KEY}", *more, image=reference, args=("/serve", "8000"))
            client = one.client(**{"X-API-Key": KEY})
            client.file.write_file(file="/tmp/x", content="y")
            assert client.file.read_file(file="/tmp/x").data.content == "y"
            with pytest.raises(ApiError) as refused:
                client.bash.exec(command="true")
            assert refused.value.status_code == 424, refused.value.body
            # The arguments of the container are its main command.
            assert httpx.get(f"http://{THEIRS}:8000/", trust_env=False).text == "hello\n"
    finally:
        run(server, "image", "rm", "--force", "t-box:1")
