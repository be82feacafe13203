"""Ways out of a sandbox: files, /proc and /sys, system calls, inherited descriptors, other sandboxes."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server, binary
from sandboxes import LiveSandbox

SECRET = f"host-secret-{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def secret(server: Server) -> Iterator[Path]:
    """A file of the host, readable to all of the host's users."""
    path = server.data_dir.parent / f"of-the-host-{uuid.uuid4().hex}.txt"
    path.write_text(SECRET)
    path.chmod(0o644)
    yield path
    path.unlink()


@pytest.fixture(scope="module")
def box(server: Server) -> Iterator[LiveSandbox]:
    httpx.post(f"{server.url}/api/v1/sandbox", json={"name": "escape"}, timeout=120).raise_for_status()
    live = LiveSandbox(server.url, "escape")
    yield live
    live.delete()


def every_file_route(box: LiveSandbox, path: str) -> Iterator[tuple[str, httpx.Response]]:
    """The answers of all file routes to one path, the writing ones last."""
    post = box.http.post
    name, folder = os.path.basename(path) or "x", os.path.dirname(path) or "/"
    for sudo in (False, True):
        yield "read", post("/v1/file/read", json={"file": path, "sudo": sudo})
        yield "search", post("/v1/file/search", json={"file": path, "regex": "host-secret.*", "sudo": sudo})
    yield "find", post("/v1/file/find", json={"path": folder, "glob": name})
    yield "list", post("/v1/file/list", json={"path": folder})
    yield "view", post("/v1/file/str_replace_editor", json={"command": "view", "path": path})
    yield "download", box.http.get("/v1/file/download", params={"path": path})
    for sudo in (False, True):
        yield "replace", post("/v1/file/replace", json={"file": path, "old_str": "host", "new_str": "gone", "sudo": sudo})
        yield "write", post("/v1/file/write", json={"file": path, "content": "overwritten", "sudo": sudo})
    edit = {"command": "str_replace", "path": path, "old_str": "host", "new_str": "gone"}
    yield "edit", post("/v1/file/str_replace_editor", json=edit)
    yield "upload", post("/v1/file/upload", files={"file": ("f", b"overwritten")}, data={"path": path})


class TestFiles:
    def ways(self, box: LiveSandbox, secret: Path) -> list[str]:
        up = "../" * 40
        box.output(
            f"rm -rf ~/ways; mkdir -p ~/ways; cd ~/ways; ln -s {secret} absolute; ln -s {up}{secret} relative;"
            f" ln -s / root; ln -s {up} up; ln -s /proc/1/root init; ln -s /proc/self/root self; ln -s /proc/1/cwd cwd"
        )
        home = "/home/gem/ways"
        return [
            str(secret),
            f"{home}/{up}{secret}",
            f"/{up}{secret}",
            f"/proc/1/root{secret}",
            f"/proc/self/root{secret}",
            f"/proc/thread-self/root/{up}{secret}",
            f"{home}/absolute",
            f"{home}/relative",
            f"{home}/root{secret}",
            f"{home}/up{secret}",
            f"{home}/init{secret}",
            f"{home}/self{secret}",
            f"{home}/cwd/{up}{secret}",
        ]

    def test_no_route_and_no_way_reaches_a_file_of_the_host(self, box: LiveSandbox, secret: Path) -> None:
        for path in self.ways(box, secret):
            for route, answer in every_file_route(box, path):
                assert answer.status_code < 500, (route, path, answer.text)
                assert SECRET not in answer.text, (route, path, answer.text)
            assert secret.read_text() == SECRET

    def test_nor_does_a_command(self, box: LiveSandbox, server: Server, secret: Path) -> None:
        box.output(f"sudo rm -rf {server.data_dir.parent}")
        for path in (str(secret), str(server.data_dir)):
            for prefix in ("", "/proc/1/root", "/proc/self/root", "/proc/1/cwd/../../../.."):
                assert box.bash(f"sudo ls -d {prefix}{path}").exit_code != 0
        # Nothing of the host shows in the mount table either.
        assert str(server.data_dir) not in box.output("sudo cat /proc/self/mountinfo /proc/1/mountinfo /proc/mounts")

    def test_a_link_raced_against_the_file_routes(self, box: LiveSandbox, secret: Path) -> None:
        box.output("mkdir -p ~/race/real; echo inside > ~/race/real/f; ln -sfn real ~/race/now")
        swap = f"cd ~/race; while :; do ln -sfn /proc/1/root{secret.parent} t; mv -T t now; ln -sfn real t; mv -T t now; done"
        running = box.bash(swap, async_mode=True)
        for _ in range(300):
            answer = box.http.post("/v1/file/read", json={"file": "/home/gem/race/now/f", "sudo": True})
            assert answer.status_code == 200
            assert SECRET not in answer.text
        box.client.bash.kill(session_id=running.session_id, signal="SIGKILL")


#: What must show nothing of the host's kernel.
READABLE = [
    "/proc/kcore",
    "/proc/keys",
    "/proc/sysrq-trigger",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware/acpi/tables",
    "/sys/kernel/debug",
    "/sys/kernel/security",
    "/dev/mem",
    "/dev/kmsg",
    "/dev/sda",
    "/dev/vda",
    "/dev/loop0",
    "/dev/loop-control",
    "/dev/fuse",
    "/dev/kvm",
    "/dev/btrfs-control",
    "/dev/mapper/control",
]
#: What changes the host's kernel, with a value.
WRITABLE = [
    ("/proc/sys/kernel/core_pattern", "|/tmp/x"),
    ("/proc/sys/kernel/modprobe", "/tmp/x"),
    ("/proc/sys/vm/overcommit_memory", "1"),
    ("/proc/sys/fs/binfmt_misc/register", ":x:M::x::/tmp/x:"),
    ("/proc/sysrq-trigger", "h"),
    ("/proc/self/uid_map", "0 0 1"),
    ("/proc/irq/default_smp_affinity", "1"),
    ("/sys/fs/cgroup/cgroup.procs", "1"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "-1"),
    ("/sys/fs/cgroup/pids/pids.max", "max"),
    ("/sys/fs/cgroup/devices/devices.allow", "a"),
    ("/sys/kernel/uevent_helper", "/tmp/x"),
    ("/sys/power/state", "mem"),
    ("/sys/module/printk/parameters/time", "N"),
]


class TestProcAndSys:
    @pytest.mark.parametrize("path", READABLE)
    def test_nothing_to_read(self, box: LiveSandbox, path: str) -> None:
        result = box.bash(f"sudo sh -c 'if [ -d {path} ]; then ls -A {path} | head -c 100; else timeout 5 head -c 100 {path}; fi'")
        assert not result.stdout, result

    @pytest.mark.parametrize(("path", "value"), WRITABLE)
    def test_nothing_to_write(self, box: LiveSandbox, path: str, value: str) -> None:
        written = box.bash(f"sudo sh -c 'printf %s \"{value}\" > {path}'").exit_code == 0
        answer = box.http.post("/v1/file/write", json={"file": path, "content": value, "sudo": True})
        if written or answer.json()["success"]:
            # Where nothing of the kernel's is mounted, the name is the sandbox's own to use.
            assert box.output(f"stat -f -c %T {path}") == "overlayfs", answer.text

    def test_limits_can_not_be_lifted_from_inside(self, box: LiveSandbox) -> None:
        if box.output("stat -f -c %T /sys/fs/cgroup 2>/dev/null || echo none") in ("overlayfs", "none"):
            return  # No control group is mounted at all.
        found = box.output("sudo find /sys/fs/cgroup -writable -type f 2>/dev/null | head")
        for path in found.splitlines():
            result = box.bash(f"sudo sh -c 'echo max > {path} || echo -1 > {path}'")
            assert result.exit_code != 0, path


#: System calls by number (x86-64) with harmless arguments that a sandbox's root must not succeed with.
SYSCALLS = {
    "unshare(CLONE_NEWUSER)": (272, 0x10000000),
    "unshare(CLONE_NEWNS)": (272, 0x00020000),
    "mount": (165, b"none", b"/mnt", b"tmpfs", 0, 0),
    "umount2(/proc)": (166, b"/proc", 2),
    "pivot_root": (155, b"/mnt", b"/mnt"),
    "fsopen": (430, b"tmpfs", 0),
    "open_tree": (428, -100, b"/", 1),
    "bpf": (321, 0, 0, 0),
    "perf_event_open": (298, 0, 0, -1, -1, 0),
    "keyctl": (250, 0, -3, 0),
    "add_key": (248, b"user", b"k", b"v", 1, -3),
    "io_uring_setup": (425, 1, 0),
    "userfaultfd": (323, 0),
    "kexec_load": (246, 0, 0, 0, 0),
    "init_module": (175, 0, 0, b""),
    "finit_module": (313, 0, b"", 0),
    "swapon": (167, b"/x", 0),
    "reboot": (169, 0xFEE1DEAD, 672274793, 0),
    "settimeofday": (164, 0, 0),
    "open_by_handle_at": (304, 3, 0, 0),
    "quotactl": (179, 0, b"/", 0, 0),
    "acct": (163, b"/x"),
    "iopl": (172, 3),
    "not a system call": (1000, 0),
}


class TestSystemCalls:
    @pytest.mark.parametrize("name", SYSCALLS)
    def test_refused_to_the_sandboxes_root(self, box: LiveSandbox, name: str) -> None:
        number, *arguments = SYSCALLS[name]
        program = (
            "import ctypes, errno, sys\n"
            "libc = ctypes.CDLL(None, use_errno=True)\n"
            f"got = libc.syscall({number}, *{arguments!r})\n"
            "print(got, errno.errorcode.get(ctypes.get_errno()))\n"
        )
        program = program.replace("'", '"')
        result = box.bash(f"sudo python3 -c '{program}'")
        code, error = result.stdout.split()
        assert code == "-1", result
        assert error in ("EPERM", "ENOSYS", "EACCES"), result

    def test_a_nested_user_namespace_by_clone(self, box: LiveSandbox) -> None:
        for user in ("", "sudo "):
            assert box.bash(f"{user}unshare --user true").exit_code != 0
            assert box.bash(f"{user}unshare --mount true").exit_code != 0
            assert box.bash(f"{user}unshare --net true").exit_code != 0

    def test_device_nodes(self, box: LiveSandbox) -> None:
        result = box.bash("sudo mknod /tmp/disk b 8 0 && sudo head -c 1 /tmp/disk")
        assert result.exit_code != 0
        assert box.bash("sudo mknod /tmp/mem c 1 1 && sudo head -c 1 /tmp/mem").exit_code != 0

    def test_a_filter_is_on_everything(self, box: LiveSandbox) -> None:
        assert box.output("awk '/^Seccomp:/{print $2}' /proc/self/status") == "2"
        assert box.output("sudo awk '/^Seccomp:/{print $2}' /proc/self/status") == "2"
        assert box.output("sudo awk '/^Seccomp:/{print $2}' /proc/1/status") == "2"

    def test_x32_calls(self, box: LiveSandbox) -> None:
        program = "import ctypes; l = ctypes.CDLL(None, use_errno=True); print(l.syscall(0x40000000 + 39))"
        result = box.bash(f"python3 -c '{program}'")
        assert result.exit_code != 0 or result.stdout.strip() == "-1"


class TestSurroundings:
    def test_sudo_works_and_is_root_of_the_sandbox_alone(self, box: LiveSandbox) -> None:
        assert box.output("id -un; sudo id -u") == "gem\n0"
        assert box.output("sudo sh -c 'echo x > /etc/by-root; stat -c %u /etc/by-root'") == "0"
        assert box.output("sudo awk '{print $2}' /proc/self/uid_map") != "0"

    def test_no_inherited_descriptors(self, box: LiveSandbox) -> None:
        links = box.output("ls -l /proc/self/fd").splitlines()[1:]
        targets = [line.split(" -> ")[1] for line in links]
        assert all(t.startswith(("/dev/null", "pipe:", "socket:", "/proc/", "/dev/pts")) for t in targets), targets
        assert len(targets) <= 4

    def test_the_environment_tells_nothing_of_the_host(self, box: LiveSandbox, server: Server) -> None:
        environment = box.output("env; sudo cat /proc/1/environ | tr '\\0' '\\n'")
        assert str(server.data_dir) not in environment
        words = box.output("sudo cat /proc/[0-9]*/cmdline | tr '\\0' ' '; sudo ls -l /proc/1/exe /proc/1/cwd")
        assert str(binary().parent) not in words
        for name in ("PWD", "HOME"):
            assert f"{name}={os.environ.get(name, 'unset')}\n" not in environment + "\n" or os.environ.get(name) in ("/", "/home/gem")

    def test_the_program_behind_the_guest_can_not_be_changed(self, box: LiveSandbox) -> None:
        before = binary().read_bytes()
        for path in ("/proc/1/exe", "/proc/self/exe"):
            box.bash(f"sudo sh -c 'chmod 777 {path}; echo overwritten > {path}; cp /bin/true {path}'")
        for number in box.output("sudo sh -c 'cd /proc && ls -d [0-9]*'").split():
            box.bash(f"sudo sh -c 'exec 9<>/proc/{number}/exe && echo overwritten >&9'")
        assert binary().read_bytes() == before
        assert box.output("echo alive") == "alive"

    def test_processes_of_the_host_are_not_there(self, box: LiveSandbox, server: Server) -> None:
        assert box.output("cat /proc/1/comm") != Path("/proc/1/comm").read_text().strip()
        assert box.bash(f"sudo kill -0 {server.pid}").exit_code != 0

    def test_devices_are_the_usual_few(self, box: LiveSandbox) -> None:
        found = set(box.output("ls /dev").split())
        assert {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm"} <= found
        assert found <= {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "stdin", "stdout", "stderr", "core", "mqueue", "console"}

    def test_killing_everything_it_can(self, sandbox: Callable[..., LiveSandbox]) -> None:
        live, bystander = sandbox(), sandbox()
        for _ in range(3):
            live.http.post("/v1/bash/exec", json={"command": "sudo kill -9 -1", "hard_timeout": 10}, timeout=60)
            # What it killed is restarted within the workload's limits and not the guest's.
            assert live.output("echo alive") == "alive"
            assert live.output("grep -E ':pids|^0:' /proc/self/cgroup | head -n 1").endswith("/work")
        assert bystander.output("echo well") == "well"
        assert live.delete().status_code == 200

    def test_filling_every_descriptor(self, sandbox: Callable[..., LiveSandbox]) -> None:
        live = sandbox()
        program = "import os\nfds=[]\ntry:\n  while True: fds.append(os.open('/dev/null', 0))\nexcept OSError as e: print(len(fds), e.errno)"
        count, errno = live.output(f'python3 -c "{program}"').split()
        assert errno == "24"
        assert live.output("echo alive") == "alive"

    def test_names_of_sandboxes_can_not_be_paths(self, api: httpx.Client) -> None:
        for path in ("/sandbox/../api/v2/sandboxes", "/sandbox/%2e%2e/api", "/sandbox/a%2fb/v1/sandbox", "/sandbox//v1/sandbox"):
            answer = api.get(path)
            assert answer.status_code in (200, 400, 404), answer.text
            assert "root:" not in answer.text


def test_usage_is_measured(box: LiveSandbox, api: httpx.Client) -> None:
    usage: dict[str, Any] = api.get(f"/api/v2/sandboxes/{box.name}/usage").json()
    assert usage["memory_bytes"] > 0
    assert usage["cpu_nanoseconds"] > 0
    assert usage["pids"] >= 1
