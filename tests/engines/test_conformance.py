"""What every engine does for every sandbox, and what differs under gVisor: the same cases on each, and the table of the results."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from engine_servers import Engine
from sandboxes import LiveSandbox
from waiting import until
from websockets.sync.client import connect

Box = Callable[..., LiveSandbox]
MIB = 1 << 20
#: What a process in a sandbox has at most, as in `/proc/self/status`: see crates/isolation/src/capabilities.rs.
CAPABILITIES = 0xA80C25FB | 1 << 19
NET_RAW = 1 << 13
#: Refused by the seccomp filters, as programs of busybox.
REFUSED = {
    "a new namespace": "busybox unshare -m true",
    "a user namespace": "busybox unshare -U true",
    "a mount": "busybox mount -t tmpfs none /tmp",
    "a host name": "busybox hostname other",
    "the kernel's log": "busybox dmesg",
}
WORLD = "arenite-engines"


def state(box: LiveSandbox) -> str:
    return str(box.details()["state"])


class TestLife:
    def test_create(self, engine: Engine, box: Box) -> None:
        made = box("life", hostname="own-name", env={"GREETING": "hello"}, workdir="/var/made")
        assert state(made) == "running"
        assert made.output("cat /proc/sys/kernel/hostname; echo $GREETING; pwd") == "own-name\nhello\n/var/made"
        assert "own-name" in made.output("cat /etc/hosts")
        assert made.output("id -u") == "0", "the image's user"
        refused = engine.create("life", status=409)
        assert refused["code"] == "already_exists", refused
        engine.can("create, environment, host name, directory")

    def test_the_reported_tier_is_what_a_probe_finds(self, engine: Engine, box: Box) -> None:
        made = box("tier")
        is_hosts = made.output("cat /proc/version") == Path("/proc/version").read_text().strip()
        is_gvisor = "gvisor" in made.output("busybox dmesg 2>/dev/null || true").lower()
        assert is_hosts != is_gvisor
        tier = made.details()["tier"]
        assert tier == ("gvisor" if is_gvisor else "namespace")
        engine.can("tier, as a probe inside finds it", f"`{tier}`")

    def test_many_creates_at_once(self, engine: Engine, box: Box) -> None:
        with ThreadPoolExecutor(6) as pool:
            made = list(pool.map(box, [f"burst-{n}" for n in range(6)]))
        assert len({live.output("cat /proc/sys/kernel/hostname") for live in made}) == 6
        engine.can("creates at once")

    def test_an_image_that_is_not_there(self, engine: Engine) -> None:
        answer = engine.create("none", status=404, image="not-there")
        assert "arenite image" in answer["hint"], answer

    def test_the_main_command(self, engine: Engine, box: Box) -> None:
        made = box("main", args=["/usr/bin/bash", "-c", "echo begun > /tmp/main; exec sleep 1000"])
        until(lambda: made.bash("cat /tmp/main").stdout == "begun\n")
        engine.can("main command")

    def test_delete(self, engine: Engine, box: Box) -> None:
        made = box("deleted")
        made.bash("sleep 1000", async_mode=True)
        identity, guest = made.id, engine.guest(made)
        assert Path(f"/proc/{guest}").exists()
        assert made.delete().status_code == 200
        until(lambda: not Path(f"/proc/{guest}").exists())
        assert not list(engine.server.data_dir.glob(f"*/{identity}*")), "files of it are left"
        if engine.daemon is not None:
            assert engine.daemon.containers() == []
        engine.can("delete leaves nothing")


class TestCalls:
    def test_commands(self, engine: Engine, box: Box) -> None:
        made = box("commands")
        result = made.bash("echo out; echo err >&2; exit 3")
        assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
        assert made.output("kill -0 1 && echo lives") == "lives"
        killed = made.bash("kill -9 $$")
        assert killed.exit_code == 137
        # The process that starts commands is replaced.
        made.bash('for d in /proc/[2-9]*; do test "$(cat $d/comm)" = arenite && kill -9 ${d#/proc/}; done; true')
        until(lambda: made.http.post("/v1/bash/exec", json={"command": "echo still"}).json()["success"])
        assert made.output("echo again") == "again"
        engine.can("commands")

    def test_files(self, engine: Engine, box: Box) -> None:
        made = box("files")
        written = made.http.post("/v1/file/write", json={"file": "/tmp/a/b.txt", "content": "one\ntwo\n"})
        assert written.json()["success"], written.text
        read = made.http.post("/v1/file/read", json={"file": "/tmp/a/b.txt"}).json()
        assert read["data"]["content"] == "one\ntwo\n"
        assert made.output("cat /tmp/a/b.txt") == "one\ntwo"
        listed = made.http.post("/v1/file/list", json={"path": "/tmp/a"}).json()
        assert [file["name"] for file in listed["data"]["files"]] == ["b.txt"]
        engine.can("files")

    def test_streams(self, engine: Engine, box: Box) -> None:
        made = box("streams")
        result = made.client.bash.exec(command="for n in 1 2 3; do echo $n; sleep 0.3; done", async_mode=True).data
        output = made.client.bash.output(session_id=result.session_id, command_id=result.command_id, wait=True).data
        assert (output.stdout or "").startswith("1\n")
        until(lambda: made.client.bash.output(session_id=result.session_id).data.stdout == "1\n2\n3\n")
        with connect(f"{made.url.replace('http', 'ws', 1)}/v1/shell/ws", open_timeout=30) as terminal:
            while "ready" not in str(terminal.recv(timeout=20)):
                pass
            terminal.send(json.dumps({"type": "input", "data": "echo $((40 + 2))\n"}))
            seen = ""
            deadline = time.monotonic() + 20
            while "42" not in seen:
                assert time.monotonic() < deadline, seen
                seen += str(terminal.recv(timeout=20))
        engine.can("streams and terminals")

    def test_previews(self, engine: Engine, box: Box) -> None:
        made = box("previews")
        made.output("mkdir -p /tmp/site; echo hello > /tmp/site/index.html")
        made.bash("busybox httpd -f -p 127.0.0.1:8000 -h /tmp/site", async_mode=True)
        host = f"8000-{made.id}.localhost:{engine.server.port}"
        until(lambda: httpx.get(f"{engine.server.url}/", headers={"host": host}, timeout=30).text == "hello\n")
        engine.can("previews of ports")

    def test_the_command_aio(self, engine: Engine, box: Box) -> None:
        assert "Usage" in box("aio").output("/usr/local/bin/aio --help")
        engine.can("the command `aio` inside")


class TestStates:
    def test_pause(self, engine: Engine, box: Box) -> None:
        made = box("paused")
        made.bash("while :; do echo x >> /tmp/count; sleep 0.02; done", async_mode=True)
        until(lambda: made.bash("test -s /tmp/count").exit_code == 0)
        assert engine.post("paused/pause").status_code == 200
        assert state(made) == "paused"
        guest = engine.guest(made)
        before = cpu_time(guest)
        time.sleep(1)
        assert cpu_time(guest) == before, "frozen processes use no time"
        assert engine.post("paused/resume").status_code == 200
        assert made.output("echo awake") == "awake"
        assert engine.post("paused/pause").status_code == 200
        # A call wakes it.
        assert made.output("echo woken") == "woken"
        engine.can("pause and resume")

    def test_pause_to_disk(self, engine: Engine, box: Box) -> None:
        made = box("on-disk")
        made.output("echo kept > /root/file; sleep 600 &")
        paused = httpx.post(f"{engine.server.url}/api/v2/sandboxes/on-disk/pause", json={"kind": "disk"}, timeout=60)
        if engine.daemon is not None:
            assert paused.status_code == 501 and "can't pause a sandbox to its disk" in paused.json()["message"], paused.text
            assert state(made) == "running" and made.output("cat /root/file") == "kept"
            assert engine.create("refused", status=501, idle_policy="disk")["code"] == "unsupported"
            assert engine.create("refused", status=501, disk_after_seconds=60)["code"] == "unsupported"
            engine.can("pause to disk", "refused")
            return
        assert paused.status_code == 200 and paused.json()["processes"] == "ended", paused.text
        assert state(made) == "paused"
        assert made.output("cat /root/file") == "kept" and state(made) == "running"
        engine.can("pause to disk")

    def test_a_guest_that_is_killed_and_started_again(self, engine: Engine, box: Box) -> None:
        made = box("killed")
        made.output("echo kept > /root/file")
        os.kill(engine.guest(made), signal.SIGKILL)
        until(lambda: state(made) == "failed")
        assert made.details()["died"]["reason"] == "killed", made.details()
        assert engine.post("killed/start").status_code == 200
        assert made.output("cat /root/file") == "kept"
        assert made.output("cat /proc/sys/kernel/hostname") == "killed"
        engine.can("start again on the same disk")

    def test_adoption(self, engine: Engine, box: Box) -> None:
        running, paused = box("adopted"), box("adopted-paused")
        made = running.client.bash.exec(command="read -r line; echo got $line", async_mode=True).data
        paused.output("echo frozen > /tmp/file")
        assert engine.post("adopted-paused/pause").status_code == 200
        guests = [engine.guest(running), engine.guest(paused)]
        engine.server.kill()
        os.kill(guests[0], 0)
        engine.server.start()
        assert (state(running), state(paused)) == ("running", "paused")
        assert [engine.guest(running), engine.guest(paused)] == guests
        running.client.bash.write(session_id=made.session_id, command_id=made.command_id, input="it\n")
        until(lambda: running.client.bash.output(session_id=made.session_id).data.stdout == "got it\n")
        assert paused.output("cat /tmp/file") == "frozen"
        # An end after the adoption is noticed, too.
        os.kill(guests[1], signal.SIGKILL)
        until(lambda: state(paused) == "failed")
        engine.can("adoption after `kill -9` of the server")

    def test_what_ended_without_a_server(self, engine: Engine, box: Box) -> None:
        made = box("unseen")
        made.output("echo kept > /root/file")
        guest = engine.guest(made)
        engine.server.kill()
        os.kill(guest, signal.SIGKILL)
        engine.server.start()
        assert state(made) == "lost"
        assert engine.post("unseen/start").status_code == 200
        assert made.output("cat /root/file") == "kept"


class TestLimits:
    def test_memory(self, engine: Engine, box: Box) -> None:
        made = box("memory", resources={"memory_bytes": 160 * MIB, "shm_bytes": 400 * MIB})
        if engine.is_gvisor:
            made.http.post("/v1/bash/exec", json={"command": "busybox tail /dev/zero", "hard_timeout": 60}, timeout=90)
            ends_as_a_whole(engine, made, "oom")
            engine.can("memory limit, which the guest outlives", "the sandbox fails, and starts again on its disk")
            return
        result = made.bash("dd if=/dev/zero of=/dev/shm/x bs=1M count=300")
        assert result.exit_code != 0
        made.bash("rm -f /dev/shm/x")
        result = made.bash("busybox tail /dev/zero")
        assert result.exit_code == 137, result
        assert made.output("echo alive") == "alive", "the guest outlives it"
        engine.can("memory limit, which the guest outlives")

    def test_processes(self, engine: Engine, box: Box) -> None:
        made = box("pids", resources={"pids": 80})
        many = "for n in $(busybox seq 200); do sleep 2 & done 2>/dev/null; wait"
        if engine.is_gvisor:
            # gVisor needs threads of the host for them, and ends without.
            made.http.post("/v1/bash/exec", json={"command": many, "hard_timeout": 60}, timeout=90)
            ends_as_a_whole(engine, made)
            engine.can("limit of processes", "the sandbox fails, and starts again on its disk")
            return
        made.bash(many, timeout=30)
        used = engine_usage(engine, "pids")
        assert used["pids"] <= 80, used
        until(lambda: made.bash("true").exit_code == 0, patience=60)
        engine.can("limit of processes")

    def test_cpu(self, engine: Engine, box: Box) -> None:
        made = box("cpu", resources={"cpu_millis": 200})
        made.bash("for n in 1 2; do (while :; do :; done) & done; sleep 600", async_mode=True)
        time.sleep(1)
        before, begun = engine_usage(engine, "cpu")["cpu_nanoseconds"], time.monotonic()
        time.sleep(3)
        share = (engine_usage(engine, "cpu")["cpu_nanoseconds"] - before) / 1e9 / (time.monotonic() - begun)
        assert share < 0.3, share
        engine.can("CPU limit")

    def test_disk(self, engine: Engine, box: Box) -> None:
        isolation = box("disk-default").details()["isolation"]
        if "disk limit" not in isolation:
            refused = engine.create("disk", status=501, resources={"disk_bytes": 64 * MIB})
            assert refused["code"] == "unsupported" and "Docker" in refused["message"], refused
            engine.can("disk limit", "refused, unless Docker's storage driver has it")
            return
        made = box("disk", resources={"disk_bytes": 64 * MIB})
        assert made.bash("dd if=/dev/zero of=/root/x bs=1M count=200").exit_code != 0
        engine.can("disk limit")

    def test_shared_memory(self, engine: Engine, box: Box) -> None:
        made = box("shm", resources={"shm_bytes": 8 * MIB})
        assert made.bash("dd if=/dev/zero of=/dev/shm/x bs=1M count=16").exit_code != 0
        assert int(made.output("stat -c %s /dev/shm/x")) <= 8 * MIB
        engine.can("size of `/dev/shm`")

    def test_usage(self, engine: Engine, box: Box) -> None:
        box("usage")
        used = engine_usage(engine, "usage")
        assert used["memory_bytes"] > MIB // 8 and used["cpu_nanoseconds"] > 0 and used["pids"] >= 2, used
        has = {"disk_bytes": "disk", "oom_kills": "OOM kills"}
        also = [name for field, name in has.items() if used.get(field) is not None]
        engine.can("usage", ", ".join(["memory, CPU, processes", *also]))


def ends_as_a_whole(engine: Engine, box: LiveSandbox, reason: str | None = None) -> None:
    """It fails, and starts again with its files."""
    until(lambda: state(box) == "failed", patience=60)
    assert reason in (None, box.details()["died"]["reason"]), box.details()
    assert engine.post(f"{box.name}/start").status_code == 200
    assert box.output("echo back") == "back"


@pytest.fixture(scope="module")
def world(engine: Engine) -> Iterator[str]:
    """A public address beyond the host, behind its forwarding, and a private one beside it."""

    def ip(words: str, check: bool = True) -> None:
        subprocess.run(["ip", *words.split()], check=check, capture_output=True)

    ip(f"netns del {WORLD}", check=False)
    ip("link del ar-engines0", check=False)
    ip(f"netns add {WORLD}")
    server = None
    try:
        ip(f"link add ar-engines0 type veth peer name ar-engines1 netns {WORLD}")
        ip("addr add 11.204.0.1/24 dev ar-engines0")
        ip("link set ar-engines0 up")
        ip(f"-n {WORLD} link set lo up")
        ip(f"-n {WORLD} addr add 11.204.0.2/24 dev ar-engines1")
        ip(f"-n {WORLD} addr add 192.168.204.2/32 dev lo")
        ip(f"-n {WORLD} link set ar-engines1 up")
        ip(f"-n {WORLD} route add default via 11.204.0.1")
        ip("route add 192.168.204.2/32 via 11.204.0.2")
        server = subprocess.Popen(
            ["ip", "netns", "exec", WORLD, "busybox", "httpd", "-f", "-p", "0.0.0.0:8123", "-h", "/usr/share/common-licenses"]
        )
        yield "11.204.0.2"
    finally:
        if server:
            server.terminate()
            server.wait()
        ip("link del ar-engines0", check=False)
        ip(f"netns del {WORLD}", check=False)


def reaches(box: LiveSandbox, address: str, port: int) -> bool:
    command = f"busybox timeout 4 bash -c 'exec 3<>/dev/tcp/{address}/{port}' 2>/dev/null && echo connected"
    return "connected" in (box.bash(command).stdout or "")


class TestNetwork:
    def test_open(self, engine: Engine, box: Box, world: str) -> None:
        made, other = box("open"), box("other")
        until(lambda: reaches(made, world, 8123))
        assert not reaches(made, "192.168.204.2", 8123), "a private range"
        assert not reaches(made, "169.254.169.254", 80), "metadata"
        gateway = made.output("cat /etc/resolv.conf | busybox awk '/^nameserver/ {print $2}'")
        listening = http.server.ThreadingHTTPServer(("0.0.0.0", 0), http.server.BaseHTTPRequestHandler)
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        try:
            for address in (gateway, "11.204.0.1"):
                assert not reaches(made, address, listening.server_port), "the host"
                assert not reaches(made, address, engine.server.port), "the server"
        finally:
            listening.shutdown()
            listening.server_close()
        address = other.output("busybox ip -4 addr show eth0 | busybox awk '/inet / {print $2}' | busybox cut -d/ -f1")
        other.bash("busybox httpd -f -p 0.0.0.0:8124 -h /tmp", async_mode=True)
        until(lambda: reaches(other, address, 8124))
        assert not reaches(made, address, 8124), "another sandbox"
        engine.can("network `open`: the internet, and neither the host nor private ranges nor other sandboxes")

    def test_none(self, engine: Engine, box: Box, world: str) -> None:
        made = box("closed", network="none")
        assert not reaches(made, world, 8123)
        assert made.output("cat /proc/net/dev | busybox tail -n +3 | busybox awk '{print $1}'") == "lo:"
        resolvers = [line.split()[1] for line in made.output("cat /etc/resolv.conf").splitlines() if line.startswith("nameserver")]
        assert resolvers in ([], ["127.0.0.1"]), "the host's resolvers"
        made.bash("busybox httpd -f -p 127.0.0.1:80 -h /tmp", async_mode=True)
        until(lambda: reaches(made, "127.0.0.1", 80))
        engine.can("network `none`")

    def test_it_outlives_the_server(self, engine: Engine, box: Box, world: str) -> None:
        made = box("network-kept")
        engine.server.kill()
        engine.server.start()
        until(lambda: reaches(made, world, 8123))
        # Its address is not given to another.
        other = box("network-new")
        show = "busybox ip -4 addr show eth0 | busybox awk '/inet / {print $2}'"
        assert made.output(show) != other.output(show)
        until(lambda: reaches(other, world, 8123))

    def test_ssh_keys(self, engine: Engine, box: Box, tmp_path: Path) -> None:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
        secret = {"value": (tmp_path / "key").read_text(), "hosts": ["git.example.com"], "places": ["ssh"]}
        url = f"{engine.server.url}/api/v2/secrets/deploy"
        assert httpx.put(url, json=secret, timeout=60).status_code == 200
        try:
            if "docker" in engine.name:
                refused = engine.create("ssh", status=501, secrets=["deploy"])
                assert refused["code"] == "unsupported" and "egress proxy" in refused["message"], refused
                engine.can("SSH keys", "refused")
            else:
                assert box("ssh", secrets=["deploy"]).output("test -S $SSH_AUTH_SOCK && echo there") == "there"
                engine.can("SSH keys")
        finally:
            httpx.delete(url, timeout=60)

    def test_its_root_changes_nothing(self, engine: Engine, box: Box) -> None:
        made = box("network-root")
        assert made.bash("busybox ip addr add 10.1.2.3/8 dev eth0").exit_code != 0
        assert made.bash("busybox ip link set eth0 down").exit_code != 0
        engine.can("root inside can't change its network")


class TestIsolation:
    def test_calls_are_refused(self, engine: Engine, box: Box) -> None:
        made = box("calls")
        if engine.is_gvisor:
            # What programs inside call is gVisor's kernel. That is what the host filters.
            filtered = [read(path) for path in processes_of(engine, made) if "exe" in read(path.parent / "comm")]
            assert filtered and all("Seccomp:\t2" in status for status in filtered), filtered
            engine.can("seccomp filter of the project", "gVisor's own, on gVisor")
            return
        assert "Seccomp:\t2" in made.output("cat /proc/self/status")
        for what, command in REFUSED.items():
            assert made.bash(command).exit_code != 0, what
        engine.can("seccomp filter of the project")

    def test_rights(self, engine: Engine, box: Box) -> None:
        text = box("rights").output("cat /proc/self/status")
        bounds = int(text.split("CapBnd:", 1)[1].split()[0], 16)
        # Docker's containers own their network, so raw sockets are refused there.
        assert bounds & ~CAPABILITIES == 0, f"{bounds:x}"
        assert bounds | NET_RAW == CAPABILITIES | NET_RAW, f"{bounds:x}"
        engine.can("capabilities", "14 of 41" if not bounds & NET_RAW else "15 of 41")

    def test_root_is_not_the_hosts(self, engine: Engine, box: Box) -> None:
        made = box("root")
        status = Path(f"/proc/{engine.guest(made)}/status").read_text()
        uid = int(status.split("Uid:", 1)[1].split()[0])
        mapped = uid != 0
        engine.can("root inside is nobody on the host", "yes" if mapped else "no, unless Docker has `userns-remap`")
        if engine.daemon is None:
            assert mapped

    def test_the_host_is_not_seen(self, engine: Engine, box: Box) -> None:
        made = box("host")
        if engine.is_gvisor:
            assert "gvisor" in made.output("cat /proc/cmdline"), "gVisor's own"
            assert made.output("ls /sys/block") == ""
        else:
            assert made.output("cat /proc/cmdline") == ""
            assert made.output("ls /sys") == ""
        assert made.bash("cat /proc/kcore").stdout is None
        assert made.bash("echo 1 > /proc/sys/kernel/panic").exit_code != 0
        assert made.bash("echo b > /proc/sysrq-trigger").exit_code != 0
        own = str(engine.folder)
        assert own not in made.output("cat /proc/self/environ"), "paths of the host"
        assert made.bash("ls -d /var/run/docker.sock /run/docker.sock").exit_code != 0
        assert made.bash("touch /.arenite/x").exit_code != 0
        pids = made.output("ls -d /proc/[0-9]* | busybox wc -l")
        assert int(pids) < 12, "processes of others"
        engine.can("nothing of the host's processes, devices and settings is seen")


def test_nothing_is_left(engine: Engine, box: Box) -> None:
    """The last case: a server that has deleted all leaves nothing on the host, in Docker neither."""
    box("last").output("true")
    data_dir = engine.server.data_dir
    engine.server.delete_all_sandboxes()
    engine.made.clear()
    assert engine.server.stop() == 0
    assert str(data_dir) not in Path("/proc/self/mounts").read_text()
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
    engine.server.start()
    tag = engine.tag(engine.create("found"))
    assert f"ar{tag}-" in " ".join(added(links)), "its links have this name"
    assert f"ar{tag}-" not in links and tag not in tables
    engine.server.delete_all_sandboxes()
    engine.made.clear()
    processes = [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(data_dir) in read(p)]
    assert [int(p.parent.name) for p in processes] == [engine.server.pid], "only the server"
    if engine.daemon is not None:
        assert engine.daemon.containers() == []
        assert [network["Name"] for network in engine.daemon.get("/networks").json() if network["Name"].startswith("arenite")] == []
        assert not (engine.daemon.get("/volumes").json()["Volumes"] or [])
        assert list((data_dir / "docker").iterdir()) == []
    engine.can("nothing is left on the host")


def added(before: str) -> list[str]:
    """Links that are there now and were not before."""
    now = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    names = [line.split(": ")[1].split("@")[0] for line in now.splitlines()]
    return [name for name in names if name not in before]


def read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


def processes_of(engine: Engine, box: LiveSandbox) -> list[Path]:
    """The host's status files of a sandbox's processes."""
    group = engine.group(box)
    return [path.parent / "status" for path in Path("/proc").glob("[0-9]*/cgroup") if f"/{group}" in read(path)]


def cpu_time(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def engine_usage(engine: Engine, name: str) -> dict[str, int]:
    with engine.server.api() as api:
        return dict(api.get(f"/api/v2/sandboxes/{name}/usage").raise_for_status().json())
