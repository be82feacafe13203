"""The guest in images of any shape: each service works, or says in a sentence what the image lacks. docs/TOOLS_BY_IMAGE.md is
generated from the results: `ARENITE_BLESS=1` writes it."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import shapes
from arenite_server import REPOSITORY, Server
from commands import run
from registries import docker_archive, layer
from sandboxes import LiveSandbox
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from workers import Worker

DOCUMENT = REPOSITORY / "docs/TOOLS_BY_IMAGE.md"
#: Arenite's own, for comparison: in `aio`, everything has to work.
OWN = ("base", "aio")
SHAPES = ("slim", *shapes.ARCHIVES)
PORT = 8000


class Lacks(Exception):
    """A service lacks a program of the image."""


class Box(LiveSandbox):
    """A sandbox of one shape."""

    def __init__(self, server: Server, shape: str, image: str):
        super().__init__(server.url, f"any-{shape}-{uuid.uuid4().hex[:6]}", 120)
        self.shape, self.image = shape, image
        serve = shapes.ARCHIVES.get(shape, (None, ""))[1]
        args = [serve, str(PORT)] if serve else ["python3", "-m", "http.server", str(PORT)]
        spec = {"name": self.name, "image": image, "args": args, "resources": {"memory_bytes": 2 << 30}}
        made = httpx.post(f"{server.url}/api/v2/sandboxes", json=spec, timeout=120)
        assert made.status_code == 201, made.text

    def read(self, answer: httpx.Response) -> Any:
        """The data of an answer. Whatever fails must say why, and not be a fault of the server."""
        assert answer.status_code < 500, answer.text
        body = answer.json()
        if body.get("code") == "missing_program":
            assert answer.status_code == 424 and body["success"] is False and body["hint"], body
            raise Lacks(f"{body['message']}; {body['hint']}")
        assert answer.status_code == 200 and body.get("success", True), body
        return body.get("data", body)

    def post(self, path: str, /, **body: Any) -> Any:
        return self.read(self.http.post(f"/v1/{path}", json=body))

    def get(self, path: str, /) -> Any:
        return self.read(self.http.get(f"/v1/{path}"))

    def detail(self) -> dict[str, Any]:
        answer = self.http.get("/v1/sandbox")
        self.read(answer)
        return answer.json()["detail"]

    def bytes(self, path: str) -> bytes:
        answer = self.http.get(path, headers={"accept": "application/json, */*;q=0.5"}, follow_redirects=True)
        if answer.status_code != 200:
            self.read(answer)
        return answer.content

    def tool(self, name: str, /, **arguments: Any) -> Any:
        result = self.post(f"mcp/hub/tools/{name}", **arguments)
        if result.get("isError"):
            assert result["structuredContent"] == {"code": "missing_program"}, result
            raise Lacks(result["content"][0]["text"].replace("\nHint: ", "; "))
        return result

    def socket(self, path: str) -> Any:
        try:
            return connect(f"{self.url.replace('http', 'ws', 1)}{path}", open_timeout=120)
        except InvalidStatus as refused:
            answer = refused.response
            assert answer.status_code == 424, answer
            body = json.loads(answer.body)
            raise Lacks(f"{body['message']}; {body['hint']}") from refused


def context(box: Box) -> None:
    assert {"shell", "file", "browser"} <= {service["name"] for service in box.detail()["services"]}


def shell(box: Box) -> None:
    done = box.post("shell/exec", command="echo hi; false")
    assert (done["output"], done["exit_code"], done["status"]) == ("hi", 1, "completed")


def session(box: Box) -> None:
    """State, awkward commands, `$?`, and a stop."""
    box.post("shell/sessions/create", id="kept", exec_dir="/")

    def said(command: str, **more: Any) -> tuple[str, int | None]:
        done = box.post("shell/exec", id="kept", command=command, **more)
        return done["output"], done["exit_code"]

    assert said("x=41; f() { echo f:$1; }; cd /tmp; (exit 7)") == ("", 7)
    assert said("echo $? $PWD; f $((x + 1))") == ("7 /tmp\nf:42", 0)
    assert said("cat <<'END'\nit's $HOME\nEND") == ("it's $HOME", 0)
    assert said("if then")[1] == 2 and said("echo 'open")[1] in (1, 2)
    assert said("PS1=mine; set -x; set +x")[1] == 0
    assert said("pwd", exec_dir="/dev") == ("/dev", 0)
    assert "started" in said("sleep 60 & echo started")[0]
    assert said(f"y={'0123456789' * 20000}; echo ${{#y}}") == ("200000", 0)
    running = box.post("shell/exec", id="kept", command="sleep 60; echo late", timeout=0.5)
    assert running["status"] == "running"
    assert box.post("shell/kill", id="kept")["status"] == "terminated"
    assert said("echo still $x") == ("still 41", 0)
    box.post("shell/write", id="kept", input="z=typed", press_enter=True)
    deadline = time.monotonic() + 30
    while not any(record["command"] == "z=typed" for record in box.post("shell/view", id="kept")["console"]):
        assert time.monotonic() < deadline, "the typed line was not noticed"
    assert said("echo $z") == ("typed", 0)
    assert said("exit 5")[1] == 5 and said("echo back") == ("back", 0)


def terminal(box: Box) -> None:
    with box.socket("/v1/shell/ws") as socket:
        socket.send(json.dumps({"type": "input", "data": "echo $((6 * 7))x\r"}))
        until(socket, "42x")


def until(socket: Any, text: str) -> None:
    shown, deadline = "", time.monotonic() + 60
    while text not in shown:
        frame = json.loads(socket.recv(timeout=deadline - time.monotonic()))
        if frame["type"] == "output":
            shown += frame["data"]


def once(box: Box) -> None:
    with box.socket("/v1/shell/ws?once=true&command=echo%20hi;exit%203") as socket:
        frames = []
        try:
            while True:
                frames.append(json.loads(socket.recv(timeout=60)))
        except ConnectionClosed:
            pass
    assert "".join(f["data"] for f in frames if f["type"] == "output").strip() == "hi"
    assert frames[-1] == {"type": "exit", "data": {"code": 3}}


def bash(box: Box) -> None:
    done = box.post("bash/exec", command="echo out; echo err >&2; exit 3")
    assert (done["stdout"], done["stderr"], done["exit_code"]) == ("out\n", "err\n", 3)
    long = box.post("bash/exec", command=f"x={'0123456789' * 6000}; echo ${{#x}}")
    assert long["stdout"] == "60000\n", long
    fed = box.post("bash/exec", command="read line; echo got $line", async_mode=True)
    box.post("bash/write", session_id=fed["session_id"], input="it\n")
    ended = box.post("bash/output", session_id=fed["session_id"], command_id=fed["command_id"], wait=True)
    assert ended["stdout"] == "got it\n", ended


def own_command(box: Box) -> None:
    done = box.post("bash/exec", command="/usr/local/bin/aio bash exec 'echo deep'")
    assert "deep" in done["stdout"], done


def files(box: Box) -> None:
    box.post("file/write", file="~/notes/a.txt", content="one\ntwo\n")
    assert box.post("file/read", file="~/notes/a.txt")["content"] == "one\ntwo\n"
    box.post("file/replace", file="~/notes/a.txt", old_str="two", new_str="three")
    assert [entry["name"] for entry in box.post("file/list", path="~/notes")["files"]] == ["a.txt"]
    assert box.post("file/search", file="~/notes/a.txt", regex="th.*")["matches"] == ["three"]
    assert box.post("file/find", path="~/notes", glob="*.txt")["files"]
    sent = box.http.post("/v1/file/upload", files={"file": ("b.bin", b"\0\1")}, data={"path": "/tmp/b.bin"})
    assert box.read(sent)["success"]
    assert box.bytes("/v1/file/download?path=/tmp/b.bin") == b"\0\1"


def grep(box: Box) -> None:
    box.post("file/write", file="/tmp/searched/a.txt", content="needle here\n")
    assert box.post("file/grep", path="/tmp/searched", pattern="needle")["matches"]
    assert box.post("file/glob", path="/tmp/searched", pattern="**/*.txt")["files"]


def watch(box: Box) -> None:
    box.post("file/write", file="/tmp/watched/a", content="x")
    watcher = box.post("file/watch", path="/tmp/watched", debounce=50)["watcher_id"]
    box.post("file/write", file="/tmp/watched/b", content="x")
    assert box.post(f"file/watch/{watcher}/poll", timeout=30)["events"][0]["relative_path"] == "b"


def code(language: str, text: str) -> Callable[[Box], None]:
    def execute(box: Box) -> None:
        done = box.post("code/execute", language=language, code=text)
        assert (done["stdout"], done["exit_code"]) == ("42\n", 0), done

    return execute


def jupyter(box: Box) -> None:
    outputs = box.post("jupyter/execute", code="print(6 * 7)")["outputs"]
    assert outputs[0]["text"] == "42\n"


def nodejs(box: Box) -> None:
    assert box.post("nodejs/execute", code="console.log(6 * 7)")["stdout"] == "42\n"


def browser(box: Box) -> None:
    assert box.get("browser/info")["cdp_url"]
    assert box.bytes("/v1/browser/screenshot").startswith(b"\x89PNG")


def page(box: Box) -> None:
    box.tool("browser_navigate", url="data:text/html,<title>T</title><h1>Head</h1>")
    assert "Head" in json.dumps(box.tool("browser_get_text"))


def screen(box: Box) -> None:
    assert box.bytes("/v1/display/screenshot").startswith(b"\x89PNG")


def vnc(box: Box) -> None:
    with box.socket("/websockify") as socket:
        assert socket.recv(timeout=60).startswith(b"RFB ")


def recording(box: Box) -> None:
    box.post("display/record", action="start")
    assert box.post("display/record", action="stop")["save_path"]


def page_of(path: str) -> Callable[[Box], None]:
    def load(box: Box) -> None:
        assert b"<html" in box.bytes(path).lower()

    return load


def mcp_shell(box: Box) -> None:
    assert box.tool("sandbox_execute_bash", cmd="echo hi")["structuredContent"]["output"] == "hi"


def mcp_code(box: Box) -> None:
    assert "42" in json.dumps(box.tool("sandbox_execute_code", code="print(6 * 7)"))


def mcp_files(box: Box) -> None:
    box.tool("sandbox_file_operations", action="write", path="/tmp/of-mcp", content="text")
    assert "text" in json.dumps(box.tool("sandbox_file_operations", action="read", path="/tmp/of-mcp"))


def preview(box: Box) -> None:
    deadline = time.monotonic() + 60
    while (answer := box.http.get(f"/proxy/{PORT}/")).status_code != 200:
        assert time.monotonic() < deadline and answer.status_code in (404, 502), answer.text
        time.sleep(0.1)


def skills(box: Box) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("made/SKILL.md", "---\nname: made\ndescription: What for\n---\n\nSteps.\n")
    sent = box.http.post("/v1/skills/register", files={"file": ("skills.zip", packed.getvalue(), "application/zip")})
    box.read(sent)
    assert "made" in json.dumps(box.get("skills/metadatas"))


def convert(box: Box) -> None:
    assert "## Head" in json.dumps(box.post("util/convert_to_markdown", uri="data:text/html,<h2>Head</h2>"))


def hooks(box: Box) -> None:
    box.post("sandbox/hooks", name="last", command="true")
    assert "last" in json.dumps(box.get("sandbox/hooks"))


def observe(box: Box) -> None:
    box.get("sandbox/observe/status")


def proxy(box: Box) -> None:
    box.get("proxy/mappings")


def packages(box: Box) -> None:
    assert isinstance(box.get("sandbox/packages/python"), list)


def agentflow(resource: str, action: str, **params: Any) -> Callable[[Box], None]:
    def call(box: Box) -> None:
        worker = Worker(box.base_url, f"any-{uuid.uuid4().hex[:8]}")
        try:
            worker.create(resource, session_config={"image": box.image})
            answer = worker.call(action, **params)
            if answer["code"] != 0:
                assert answer["data"]["error_code"] == "missing_program", answer
                raise Lacks(answer["message"])
            assert "42" in json.dumps(answer["data"]["stdout"]), answer
            if resource == "bash":
                worker.ok("bash:run", command="kept=\"it's kept\"; cd /tmp")
                assert worker.ok("bash:run", command="echo $kept in $PWD")["stdout"] == "it's kept in /tmp\n"
        finally:
            worker.leave()

    return call


def pause(box: Box) -> None:
    for what, state in (("pause", "paused"), ("resume", "running")):
        answer = httpx.post(f"{box.base_url}/api/v2/sandboxes/{box.name}/{what}", timeout=60)
        assert answer.status_code == 200 and answer.json()["state"] == state, answer.text
    box.get("ping")


#: The name of each operation, the service that `/v1/sandbox` reports for it, and what it does.
OPERATIONS: list[tuple[str, str | None, Callable[[Box], None]]] = [
    ("description (`/v1/sandbox`)", "sandbox", context),
    ("shell", "shell", shell),
    ("shell session", "shell", session),
    ("terminal", "shell", terminal),
    ("`arenite exec`", "shell", once),
    ("bash", "bash", bash),
    ("command `aio`", "shell", own_command),
    ("files", "file", files),
    ("search in files", "file", grep),
    ("watch", "file", watch),
    ("code in Python", "jupyter", code("python", "print(6 * 7)")),
    ("code in JavaScript", "nodejs", code("javascript", "console.log(6 * 7)")),
    ("Jupyter", "jupyter", jupyter),
    ("Node.js", "nodejs", nodejs),
    ("browser", None, browser),
    ("browser page by MCP", None, page),
    ("desktop", "display", screen),
    ("VNC", "display", vnc),
    ("recording", None, recording),
    ("VS Code", "code-server", page_of("/code-server/")),
    ("JupyterLab", "jupyter-lab", page_of("/jupyter/lab")),
    ("MCP: shell", "shell", mcp_shell),
    ("MCP: code", "jupyter", mcp_code),
    ("MCP: files", "file", mcp_files),
    ("previews", None, preview),
    ("skills", "skills", skills),
    ("documents to Markdown", "util", convert),
    ("hooks", "hooks", hooks),
    ("observations", "observe", observe),
    ("forward proxy", "proxy", proxy),
    ("list of packages", "sandbox", packages),
    ("AgentFlow: bash", "bash", agentflow("bash", "bash:run", command="echo $((6 * 7))")),
    ("AgentFlow: code", "jupyter", agentflow("code", "code:execute", code="print(6 * 7)")),
    ("pause and resume", None, pause),
]


def load(server: Server, file: Path) -> str:
    loaded = run(server, "image", "load", str(file))
    assert loaded.returncode == 0, loaded.stderr
    return loaded.stdout.strip()


@pytest.fixture(scope="module")
def images(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("shapes")
    made = {shape: load(server, make(folder, f"any-{shape}:1")) for shape, (make, _) in shapes.ARCHIVES.items()}
    (folder / "Dockerfile").write_text(shapes.SLIM)
    built = run(server, "image", "build", "any-slim", str(folder), "-f", str(folder / "Dockerfile"))
    assert built.returncode == 0, built.stderr
    made["slim"] = "any-slim"
    yield made | {name: name for name in OWN}
    for image in made.values():
        run(server, "image", "rm", "--force", image)
    run(server, "image", "prune")


@pytest.fixture(scope="module")
def results(server: Server, images: dict[str, str]) -> dict[str, dict[str, str]]:
    """The result of each operation, by shape: empty for one that works, else what is missing."""
    found: dict[str, dict[str, str]] = {}
    failed = []
    for shape in (*OWN, *SHAPES):
        box = Box(server, shape, images[shape])
        started = box.details()["started_at"] if "started_at" in box.details() else None
        try:
            for name, service, operation in OPERATIONS:
                try:
                    operation(box)
                    found.setdefault(name, {})[shape] = ""
                except Lacks as lacks:
                    found.setdefault(name, {})[shape] = str(lacks)
                except Exception as error:
                    failed.append(f"{shape}: {name}: {type(error).__name__}: {error}")
            services = {service["name"]: service for service in box.detail()["services"]}
            for name, service, _ in OPERATIONS:
                told = found.get(name, {}).get(shape)
                if service is not None and told is not None:
                    reported = services[service]
                    said = "" if reported["available"] else f"{reported['missing']}; {reported['hint']}"
                    if said != told:
                        failed.append(f"{shape}: {name}: {told!r}, and /v1/sandbox says {said!r}")
            # The guest was never replaced.
            assert box.details().get("started_at") == started and box.details()["state"] == "running"
        finally:
            gone = box.delete()
            assert gone.status_code in (200, 204), gone.text
    assert not failed, "\n".join(failed)
    return found


def document(results: dict[str, dict[str, str]]) -> str:
    notes: list[str] = []
    rows = []
    for name, by_shape in results.items():
        cells = []
        for told in by_shape.values():
            if told and told not in notes:
                notes.append(told)
            cells.append(f"[{notes.index(told) + 1}]" if told else "yes")
        rows.append(f"| {name} | {' | '.join(cells)} |")
    heads = list(next(iter(results.values())))
    lines = [
        "# Tools by image",
        "",
        "What works in a sandbox depends on the programs of its image. This table is generated by",
        "`tests/operation/test_any_image.py`: it calls one operation or more of each service in sandboxes of these images, and",
        "`ARENITE_BLESS=1` writes the results here. `/v1/sandbox` reports the services of one sandbox in `detail.services`.",
        "",
        "`base` and `aio` are [Arenite's images](../README.md#images). The others have the shapes of images from elsewhere:",
        "",
        "| image | what it has |",
        "| --- | --- |",
        "| `slim` | as `python:3.12-slim`: Debian with Python and bash, root alone, no sudo |",
        "| `alpine` | musl, busybox and a few users; `sh` instead of bash |",
        "| `busybox` | busybox alone: no users, no directories besides `/bin` |",
        "| `distroless` | glibc, certificates and the user 65532; no shell |",
        "| `scratch` | one static binary |",
        "",
        f"| operation | {' | '.join(f'`{head}`' for head in heads)} |",
        f"| --- |{' --- |' * len(heads)}",
        *rows,
        "",
        "A number stands for the answer of the call. Its status is 424, and its code `missing_program`:",
        "",
    ]
    for number, note in enumerate(notes, 1):
        lines += folded(f"{number}. {note}")
    return "\n".join(lines) + "\n"


def folded(text: str) -> list[str]:
    """Lines of at most 120 characters."""
    lines = [""]
    for word in re.split(r" (?=(?:[^`]*`[^`]*`)*[^`]*$)", text):
        if len(lines[-1]) + len(word) >= 120:
            lines.append(" " * text.index(" "))
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def test_each_service_works_or_says_what_is_missing(results: dict[str, dict[str, str]]) -> None:
    assert not any(by_shape["aio"] for by_shape in results.values())
    made = document(results)
    if os.environ.get("ARENITE_BLESS"):
        DOCUMENT.write_text(made)
    assert DOCUMENT.read_text() == made, "run the test with ARENITE_BLESS=1, and read what changed"


@pytest.mark.parametrize(
    ("shape", "user", "home"),
    [("slim", "root", "/root"), ("alpine", "root", "/root"), ("busybox", "root", "/root"), ("scratch", "root", "/root"),
     ("distroless", "nonroot", "/home/nonroot")],
)
def test_users_have_a_home_that_they_can_write_to(
    server: Server, images: dict[str, str], shape: str, user: str, home: str
) -> None:
    box = Box(server, shape, images[shape])
    try:
        system = box.detail()["system"]
        assert (system["user"], system["home_dir"]) == (user, home)
        box.post("file/write", file=f"{home}/mine", content="x")
        box.post("file/write", file="/tmp/mine", content="x")
        assert "nameserver" in box.post("file/read", file="/etc/resolv.conf")["content"]
        assert box.name in box.post("file/read", file="/etc/hostname")["content"]
        assert box.name in box.post("file/read", file="/etc/hosts")["content"]
    finally:
        box.delete()


def test_a_user_by_number_without_a_passwd_file(server: Server, tmp_path: Path) -> None:
    files = {"bin": None, "bin/busybox": Path("/bin/busybox").read_bytes(), **shapes.busybox_links()}
    file = docker_archive(tmp_path / "image.tar", "any-numbered:1", [layer(files, ("bin/busybox",))], {"User": "1000"})
    image = load(server, file)
    live = LiveSandbox(server.url, f"any-{uuid.uuid4().hex[:6]}")
    try:
        httpx.post(f"{server.url}/api/v2/sandboxes", json={"name": live.name, "image": image}, timeout=60).raise_for_status()
        done = live.output("id -u; pwd; echo $HOME $USER; touch ~/a /tmp/b && stat -c '%u %a' ~ /tmp; cat /etc/passwd 2>/dev/null || echo none")
        assert done == "1000\n/home/1000\n/home/1000 1000\n1000 755\n0 1777\nnone"
    finally:
        live.delete()
        run(server, "image", "rm", "--force", image)


def test_links_of_an_image_lead_nowhere_on_the_host(server: Server, tmp_path: Path) -> None:
    """Every place that the server or the guest writes to is a link out of the root, by a relative and by an absolute path."""
    canary = tmp_path / "canary"
    canary.mkdir()
    before = sorted(str(path) for path in tmp_path.iterdir())
    for number, target in enumerate((str(canary), "../../../../../../../../../.." + str(canary))):
        program = {"busybox": Path("/bin/busybox").read_bytes()}
        places = ("etc", "proc", "sys", "dev", "tmp", "run", "root", "home", "usr", "var")
        bad = {**program, **dict.fromkeys(places, target)}
        etc = {**program, "etc": None, **{f"etc/{name}": f"{target}/{name}" for name in ("hosts", "hostname", "resolv.conf", "ssl")}}
        files_for_places = {**program, "proc": b"", "dev": b"", "sys": b"", "tmp": b"", "run": b""}
        for kind, files_ in (("places", bad), ("etc", etc), ("files", files_for_places)):
            name = f"any-hostile-{kind}-{number}:1"
            image = load(server, docker_archive(tmp_path / "image.tar", name, [layer(files_, ("busybox",))], {"User": "1000"}))
            live = LiveSandbox(server.url, f"any-{uuid.uuid4().hex[:6]}")
            try:
                spec = {"name": live.name, "image": image, "args": ["/busybox", "sleep", "600"]}
                made = httpx.post(f"{server.url}/api/v2/sandboxes", json=spec, timeout=60)
                assert made.status_code == 201, made.text
                read = live.http.post("/v1/file/read", json={"file": "/etc/hostname"}).json()
                assert read["success"] and live.name in read["data"]["content"], read
                own = live.http.post("/v1/file/read", json={"file": "/proc/self/status"}).json()
                assert own["success"] and "arenite" in own["data"]["content"], own
                assert live.http.get("/v1/sandbox").status_code == 200
                lacks = live.http.post("/v1/bash/exec", json={"command": "true"})
                assert lacks.status_code == 424 and lacks.json()["code"] == "missing_program", lacks.text
            finally:
                live.delete()
                run(server, "image", "rm", "--force", image)
    (tmp_path / "image.tar").unlink()
    assert sorted(str(path) for path in tmp_path.iterdir()) == before and list(canary.iterdir()) == []
    assert subprocess.run(["findmnt", "-rn", "-o", "TARGET"], capture_output=True, text=True).stdout.count(str(canary)) == 0
