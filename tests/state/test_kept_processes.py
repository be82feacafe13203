"""Processes in states: a checkpoint under gVisor brings them back, also in forks and in other sandboxes, and nothing else does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import leaks
import loads
import pytest
from arenite_server import Server
from commands import run
from engine_servers import path_of_runsc
from sandboxes import LiveSandbox
from small import MIB, SmallServer, small_server, within

API = "/api/v2/sandboxes"
SNAPSHOTS = "/api/v2/snapshots"
# What the kernel has in memory, and how to recognize it.
FILL = "import hashlib, random; data = [random.randbytes(1 << 20) for _ in range(50)]; print(hashlib.sha256(b''.join(data)).hexdigest())"
SUM = "print(hashlib.sha256(b''.join(data)).hexdigest())"
FORKS = loads.size(2, 8)


def call(server: Server, method: str, path: str, status: int = 200, **body: Any) -> Any:
    answer = httpx.request(method, f"{server.url}{path}", json=None if method == "GET" else body, timeout=180)
    assert answer.status_code == status, answer.text
    return answer.json()


def images(server: Server) -> set[str]:
    """The images of processes on disk."""
    folder = server.data_dir / "pool" / "processes"
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


class Kernel:
    """Python with state, in a Jupyter session."""

    def __init__(self, box: LiveSandbox, session: str | None = None) -> None:
        self.box, self.session = box, session

    def run(self, code: str) -> str:
        body = {"code": code, "timeout": 60} | ({"session_id": self.session} if self.session else {})
        answer = self.box.http.post("/v1/jupyter/execute", json=body, timeout=120).json()
        assert answer["success"], answer
        self.session = answer["data"]["session_id"]
        return "".join(output.get("text") or "" for output in answer["data"]["outputs"]).strip()


def shell(box: LiveSandbox, command: str, **more: Any) -> Any:
    """A command in a terminal with a lasting bash."""
    answer = box.client.shell.exec_command(command=command, **more)
    assert answer.success is True, answer
    return answer.data


class Work:
    """A sandbox with a kernel of 50 MB, a shell with a job and variables, and an open file."""

    def __init__(self, box: LiveSandbox) -> None:
        self.box = box
        self.kernel = Kernel(box)
        self.sum = self.kernel.run(FILL)
        self.kernel.run("open_file = open('/home/gem/notes', 'w+'); open_file.write('half a '); open_file.flush()")
        self.kernel.run("gone = open('/home/gem/gone', 'w+'); gone.write('deleted'); gone.flush(); import os; os.remove('/home/gem/gone')")
        begun = shell(box, "VALUE=kept; cd /tmp; (while :; do date +%s%N > /home/gem/ticks; sleep 0.05; done) & echo job $!")
        self.session, self.job = begun.session_id, begun.output.split("job ")[1].strip()
        within(20, "the job runs", lambda: box.output("cat /home/gem/ticks 2>/dev/null || true"))

    def check(self, box: LiveSandbox) -> None:
        """All of it goes on in this sandbox."""
        kernel = Kernel(box, self.kernel.session)
        assert kernel.run(SUM) == self.sum
        write = "open_file.seek(7); open_file.write('sentence'); open_file.flush(); print(open('/home/gem/notes').read())"
        assert kernel.run(write) == "half a sentence"
        assert kernel.run("gone.seek(0); print(gone.read())") == "deleted"
        assert shell(box, "echo $VALUE; pwd; jobs -pr", id=self.session).output.split() == ["kept", "/tmp", self.job]
        before = box.output("cat /home/gem/ticks")
        within(20, "the job goes on", lambda: box.output("cat /home/gem/ticks") not in ("", before))


def names_of(box: LiveSandbox) -> tuple[str, ...]:
    """What a sandbox is for itself: host name, files with it, id and address."""
    hello = box.http.get("/v1/sandbox").json()["detail"]
    hostname, file, address = box.output("hostname; cat /etc/hostname; hostname -I 2>/dev/null || ip -4 -o addr | grep -v ' lo '").split("\n")[:3]
    assert box.name in box.output("cat /etc/hosts")
    return hostname, file, address, str(hello.get("name", ""))


@pytest.fixture(scope="module")
def runsc() -> str:
    return path_of_runsc()


@pytest.fixture
def gvisor(server: Server, runsc: str) -> Iterator[Callable[..., LiveSandbox]]:
    made: list[str] = []

    def create(name: str, **more: Any) -> LiveSandbox:
        call(server, "POST", API, 201, name=name, image="code", tier="gvisor", **more)
        made.append(name)
        return LiveSandbox(server.url, name, 180)

    create.adopt = made.append  # type: ignore[attr-defined]
    yield create
    for name in made:
        httpx.delete(f"{server.url}{API}/{name}", timeout=60)
    for snapshot in call(server, "GET", SNAPSHOTS)["snapshots"]:
        call(server, "DELETE", f"{SNAPSHOTS}/{snapshot['name']}")


@pytest.mark.timeout(600)
class TestKept:
    def test_a_rollback_brings_them_back(self, server: Server, gvisor: Callable[..., LiveSandbox]) -> None:
        box = gvisor("kept")
        work = Work(box)
        sealed = call(server, "POST", f"{API}/kept/checkpoints", 201, keep_processes=True)
        assert sealed["processes"] == "kept" and sealed["memory_bytes"] > 50 << 20 and sealed["frozen_ms"] > 0
        assert images(server) == {sealed["id"]}
        # The sandbox goes on meanwhile, and afterwards.
        work.check(box)
        Kernel(box, work.kernel.session).run("data = None")
        box.output("rm /home/gem/notes")
        for _ in range(2):
            back = call(server, "POST", f"{API}/kept/rollback", to=1)
            assert back["processes"] == "kept"
            work.check(box)
        # The other ways to return to the same state.
        back = call(server, "POST", f"{API}/kept/rollback", to=1, processes="restart")
        assert back["processes"] == "restarted" and box.output("pgrep -c ipykernel || true") == "0"
        assert box.output("cat /home/gem/notes") == "half a "
        assert call(server, "POST", f"{API}/kept/rollback", to=1, processes="end")["processes"] == "ended"
        assert call(server, "POST", f"{API}/kept/rollback", to=1, processes="keep")["processes"] == "kept"
        work.check(box)
        # Those that go on can be sealed again.
        again = call(server, "POST", f"{API}/kept/checkpoints", 201, keep_processes=True)
        assert (again["number"], again["parent"]) == (2, sealed["id"])
        assert call(server, "POST", f"{API}/kept/rollback", to=2)["processes"] == "kept"
        work.check(box)
        for number in (1, 2):
            call(server, "DELETE", f"{API}/kept/checkpoints/{number}")
        assert images(server) == set()

    def test_another_sandbox_continues_what_was_deleted(self, server: Server, gvisor: Callable[..., LiveSandbox]) -> None:
        box = gvisor("first")
        work = Work(box)
        before = names_of(box)
        made = call(server, "POST", SNAPSHOTS, 201, name="frozen-work", sandbox="first", keep_processes=True)
        assert made["memory_bytes"] > 50 << 20
        box.delete()
        second = call(server, "POST", API, 201, name="second", snapshot="frozen-work", env={"OWN": "second"})
        gvisor.adopt("second")  # type: ignore[attr-defined]
        assert second["processes"] == "kept"
        box = LiveSandbox(server.url, "second", 180)
        work.check(box)
        after = names_of(box)
        assert after[:2] == ("second", "second") and after[2] != before[2]
        assert box.output("echo $OWN") == "second"
        refused = call(server, "POST", API, 400, name="third", snapshot="frozen-work", args=["sleep", "1000"])
        assert "args" in refused["message"], refused
        third = call(server, "POST", API, 201, name="third", snapshot="frozen-work", restart_processes=True)
        gvisor.adopt("third")  # type: ignore[attr-defined]
        assert third["processes"] == "restarted"
        assert LiveSandbox(server.url, "third", 180).output("pgrep -c ipykernel || true") == "0"
        # It stays on disk while sandboxes begin with it.
        call(server, "DELETE", f"{SNAPSHOTS}/frozen-work")
        assert images(server) == {made["state"]}
        for name in ("second", "third"):
            call(server, "DELETE", f"{API}/{name}")
        within(30, "the image is removed", lambda: not images(server))

    def test_forks_continue_them_under_their_own_names(self, server: Server, gvisor: Callable[..., LiveSandbox]) -> None:
        box = gvisor("parent")
        work = Work(box)
        begun = time.monotonic()
        answer = call(server, "POST", f"{API}/parent/fork", 201, count=FORKS, name="child", keep_processes=True, env={"OWN": "fork"})
        print(f"{FORKS} forks: {time.monotonic() - begun:.2f} s")
        forks = [LiveSandbox(server.url, one["name"], 180) for one in answer["sandboxes"]]
        for fork in forks:
            gvisor.adopt(fork.name)  # type: ignore[attr-defined]
        assert len(forks) == FORKS and {one["processes"] for one in answer["sandboxes"]} == {"kept"}
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work.check, [box, *forks]))
            names = list(pool.map(names_of, [box, *forks]))
        assert [name[0] for name in names] == ["parent", *(fork.name for fork in forks)]
        assert len({name[2] for name in names}) == FORKS + 1
        assert [fork.output("echo $OWN") for fork in forks] == ["fork"] * FORKS
        # Each is a sandbox as any other: its own memory, steps, and life.
        for number, fork in enumerate(forks):
            Kernel(fork, work.kernel.session).run(f"own = {number}")
        assert [Kernel(fork, work.kernel.session).run("print(own)") for fork in forks] == [str(n) for n in range(FORKS)]
        assert len({fork.details()["id"] for fork in forks}) == FORKS
        forks[0].delete()
        work.check(forks[-1])

    def test_servers_inside_go_on(self, server: Server, gvisor: Callable[..., LiveSandbox]) -> None:
        box = gvisor("serving")
        box.output("mkdir -p ~/site && echo seen > ~/site/index.html")
        box.bash("cd ~/site && exec python3 -m http.server 3000 --bind 127.0.0.1", async_mode=True)
        within(30, "it serves", lambda: httpx.get(f"{box.url}/proxy/3000/", timeout=20).text.strip() == "seen")
        call(server, "POST", f"{API}/serving/checkpoints", 201, keep_processes=True)
        assert httpx.get(f"{box.url}/proxy/3000/", timeout=20).text.strip() == "seen"
        call(server, "POST", f"{API}/serving/rollback", to=1)
        within(30, "it serves again", lambda: httpx.get(f"{box.url}/proxy/3000/", timeout=20).text.strip() == "seen")

    def test_a_call_in_progress_breaks_off_and_its_command_goes_on(self, server: Server, gvisor: Callable[..., LiveSandbox]) -> None:
        box = gvisor("busy")
        # It waits for a file and not for a time: that has passed for restored processes.
        command = "touch ~/begun; until [ -e ~/go ]; do sleep 0.1; done; echo done > ~/done"
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(box.http.post, "/v1/bash/exec", json={"command": command})
            within(30, "it runs", lambda: box.output("ls ~").split() == ["begun"])
            call(server, "POST", f"{API}/busy/checkpoints", 201, keep_processes=True)
            assert waiting.result().status_code == 502
        for _ in range(2):
            assert "done" not in box.output("ls ~; touch ~/go")
            within(30, "the command has ended", lambda: "done" in box.output("ls ~"))
            call(server, "POST", f"{API}/busy/rollback", to=1)

    @pytest.mark.soak
    def test_what_was_used_before_is_not_idle_afterwards(self, server: Server, gvisor: Callable[..., LiveSandbox]) -> None:
        box = gvisor("long-ago")
        session = {"session_id": "brief", "max_idle_time": 60}
        box.http.post("/v1/nodejs/sessions", json=session).raise_for_status()
        run_js = {"session_id": "brief", "code": "globalThis.seen = 41"}
        assert box.http.post("/v1/nodejs/execute", json=run_js, timeout=60).json()["success"]
        call(server, "POST", f"{API}/long-ago/checkpoints", 201, keep_processes=True)
        sessions = "/v1/nodejs/sessions"
        within(90, "it ends, as nobody uses it", lambda: "brief" not in str(box.http.get(sessions).json()["data"]))
        call(server, "POST", f"{API}/long-ago/rollback", to=1)
        answer = box.http.post("/v1/nodejs/execute", json={"session_id": "brief", "code": "console.log(seen + 1)"}, timeout=60).json()
        assert "42" in str(answer["data"]), answer

    def test_open_files_of_volumes(self, server: Server, gvisor: Callable[..., LiveSandbox]) -> None:
        call(server, "POST", "/api/v2/volumes", 201, name="kept-volume")
        box = gvisor("with-volume", volumes=[{"name": "kept-volume", "path": "/data"}])
        kernel = Kernel(box)
        kernel.run("file = open('/data/file', 'w+'); file.write('one'); file.flush()")
        call(server, "POST", f"{API}/with-volume/checkpoints", 201, keep_processes=True)
        kernel.run("file.write(' two'); file.flush()")
        call(server, "POST", f"{API}/with-volume/rollback", to=1)
        kernel = Kernel(box, kernel.session)
        # The volume is not part of the state, and the file's position is.
        assert kernel.run("print(open('/data/file').read(), file.tell())") == "one two 3"
        box.output("rm /data/file")
        failed = httpx.post(f"{server.url}{API}/with-volume/rollback", json={"to": 1}, timeout=120)
        assert failed.status_code >= 500
        box.delete()
        call(server, "DELETE", "/api/v2/volumes/kept-volume")

    def test_the_command_line(self, server: Server, gvisor: Callable[..., LiveSandbox]) -> None:
        gvisor("lined").bash("sleep 1000 & disown")
        sealed = run(server, "checkpoint", "lined", "--keep-processes")
        assert sealed.stdout.strip() == "1" and "with its processes (" in sealed.stderr, sealed
        assert "MEMORY" in run(server, "history", "lined").stdout
        back = run(server, "rollback", "lined", "1")
        assert "its processes: kept" in back.stderr, back
        assert LiveSandbox(server.url, "lined").output("pgrep -c sleep") == "1"
        back = run(server, "rollback", "lined", "1", "--restart")
        assert "its processes: restarted" in back.stderr, back


@pytest.mark.timeout(300)
class TestRefused:
    def test_other_tiers_and_states_without_them(self, server: Server, sandbox: Callable[..., LiveSandbox]) -> None:
        box = sandbox()
        for method, path, body in (
            ("POST", f"{API}/{box.name}/checkpoints", {}),
            ("POST", f"{API}/{box.name}/fork", {}),
            ("POST", SNAPSHOTS, {"name": "none", "sandbox": box.name}),
        ):
            refused = call(server, method, path, 409, keep_processes=True, **body)
            assert "only the tiers gvisor and machine" in refused["message"], refused
        assert call(server, "GET", f"{API}/{box.name}/history")["checkpoints"] == []
        sealed = call(server, "POST", f"{API}/{box.name}/checkpoints", 201)
        assert (sealed["processes"], sealed["memory_bytes"]) == ("ended", None)
        box.bash("sleep 1000 & disown")
        refused = call(server, "POST", f"{API}/{box.name}/rollback", 409, to=1, processes="keep")
        assert "has none" in refused["message"]
        assert box.output("pgrep -c sleep") == "1", "nothing has changed"

    def test_a_sandbox_that_does_not_run(self, server: Server, gvisor: Callable[..., LiveSandbox]) -> None:
        gvisor("paused")
        for kind in ("freeze", "disk"):
            call(server, "POST", f"{API}/paused/pause", kind=kind)
            call(server, "POST", f"{API}/paused/checkpoints", 409, keep_processes=True)
        call(server, "POST", f"{API}/paused/checkpoints", 201)

    def test_a_guest_that_does_not_answer(self, server: Server, gvisor: Callable[..., LiveSandbox]) -> None:
        box = gvisor("stopped")
        box.bash("sudo sh -c '(sleep 13; kill -CONT 1) & kill -STOP 1'", async_mode=True)
        time.sleep(1)
        failed = httpx.post(f"{server.url}{API}/stopped/checkpoints", json={"keep_processes": True}, timeout=60)
        assert failed.status_code == 502 and "did not close its connections" in failed.json()["message"], failed.text
        assert images(server) == set()
        # It goes on, and its late answer does no harm.
        within(30, "it answers again", lambda: box.http.get("/v1/sandbox", timeout=20).status_code == 200)
        time.sleep(1)
        call(server, "POST", f"{API}/stopped/checkpoints", 201, keep_processes=True)
        assert call(server, "POST", f"{API}/stopped/rollback", to=1)["processes"] == "kept"

    def test_a_damaged_image(self, server: Server, gvisor: Callable[..., LiveSandbox]) -> None:
        before = leaks.steady(server)
        box = gvisor("damaged")
        box.bash("sleep 1000 & disown")
        sealed = call(server, "POST", f"{API}/damaged/checkpoints", 201, keep_processes=True)
        folder = server.data_dir / "pool" / "processes" / sealed["id"]
        for path in sorted(folder.iterdir()):
            whole = path.read_bytes()
            # Cut short, it is refused before anything ends.
            path.write_bytes(whole[: len(whole) // 2])
            refused = call(server, "POST", f"{API}/damaged/rollback", 409, to=1)
            assert "damaged" in refused["message"]
            assert box.output("pgrep -c sleep") == "1"
            path.write_bytes(whole)
        # With the right size, runsc refuses it, and the sandbox is on the disk that it returned to.
        state = folder / "checkpoint.img"
        whole = state.read_bytes()
        state.write_bytes(os.urandom(len(whole)))
        failed = httpx.post(f"{server.url}{API}/damaged/rollback", json={"to": 1}, timeout=120)
        assert failed.status_code >= 500, failed.text
        within(30, "it has failed", lambda: box.details()["state"] == "failed")
        state.write_bytes(whole)
        call(server, "POST", f"{API}/damaged/rollback", to=1)
        assert box.output("pgrep -c sleep") == "1"
        # A create fails as a whole.
        made = call(server, "POST", SNAPSHOTS, 201, name="damaged-work", sandbox="damaged", keep_processes=True)
        (server.data_dir / "pool" / "processes" / made["state"] / "pages_meta.img").write_bytes(b"")
        refused = call(server, "POST", API, 409, name="never", snapshot="damaged-work")
        assert "damaged" in refused["detail"]
        call(server, "DELETE", f"{SNAPSHOTS}/damaged-work")
        box.delete()
        leaks.settle(before, server)
        assert images(server) == set()

    def test_a_fork_that_is_too_small(self, server: Server, gvisor: Callable[..., LiveSandbox]) -> None:
        before = leaks.steady(server)
        box = gvisor("large")
        kernel = Kernel(box)
        kernel.run("data = b'x' * (400 << 20)")
        for resources in ({"memory_bytes": 256 << 20}, {"shm_bytes": 32 << 20}):
            body = {"name": "small", "keep_processes": True, "resources": resources}
            failed = httpx.post(f"{server.url}{API}/large/fork", json=body, timeout=120)
            assert failed.status_code >= 500, failed.text
        assert kernel.run("print(len(data) >> 20)") == "400", "its parent goes on"
        box.delete()
        leaks.settle(before, server)
        assert images(server) == set()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, runsc: str) -> Iterator[SmallServer]:
    with small_server(tmp_path_factory.mktemp("full"), args=("--runsc", runsc)) as server:
        yield server


@pytest.mark.timeout(300)
def test_a_full_disk(small: SmallServer) -> None:
    box = small.create("full", tier="gvisor")
    box.bash("sleep 1000 & disown; echo one > /root/file")
    small.fill(leave=24 * MIB)
    refused = httpx.post(f"{small.url}{API}/full/checkpoints", json={"keep_processes": True}, timeout=120)
    assert refused.status_code >= 500, refused.text
    assert not list((small.in_pool() / "processes").glob("*")) and box.output("cat /root/file") == "one"
    small.empty()
    within(60, "the storage takes writes again", lambda: httpx.get(f"{small.url}/ready").status_code == 200)
    call(small, "POST", f"{API}/full/checkpoints", 201, keep_processes=True)
    assert call(small, "POST", f"{API}/full/rollback", to=1)["processes"] == "kept"
    assert box.output("cat /root/file") == "one"
    box.delete()
    assert not list((small.in_pool() / "processes").glob("*"))


def test_an_archive_has_the_disk_and_not_the_processes(server: Server, gvisor: Callable[..., LiveSandbox]) -> None:
    # A small image: all of it is in the archive.
    call(server, "POST", API, 201, name="packed", image="base", tier="gvisor")
    gvisor.adopt("packed")  # type: ignore[attr-defined]
    live = LiveSandbox(server.url, "packed", 180)
    live.output("echo on disk > /home/gem/note; nohup sleep 4242 >/dev/null 2>&1 & sleep 0.1")
    sealed = call(server, "POST", SNAPSHOTS, 201, name="packed", sandbox="packed", keep_processes=True)
    assert sealed["memory_bytes"] > 0
    try:
        exported = httpx.get(f"{server.url}{SNAPSHOTS}/packed/archive", timeout=300)
        assert exported.status_code == 200 and exported.headers["x-arenite-processes"] == "ended"
        listed = httpx.get(f"{server.url}{SNAPSHOTS}/packed/content", params={"path": "home/gem/note"}, timeout=60)
        assert listed.text == "on disk\n"
        imported = httpx.post(f"{server.url}{SNAPSHOTS}/import", params={"name": "unpacked"}, content=exported.content, timeout=300)
        assert imported.status_code == 201, imported.text
        assert (imported.json()["memory_bytes"], imported.json()["tier"]) == (None, "gvisor")
        call(server, "POST", API, 201, name="unpacked", snapshot="unpacked")
        gvisor.adopt("unpacked")  # type: ignore[attr-defined]
        copy = LiveSandbox(server.url, "unpacked", 180)
        assert copy.output("cat /home/gem/note; pgrep -f 'sleep 424[2]' || echo none") == "on disk\nnone"
    finally:
        for name in ("packed", "unpacked"):
            httpx.delete(f"{server.url}{SNAPSHOTS}/{name}", timeout=60)
