"""Ways out of a sandbox, tried on every engine and under gVisor: files, /proc and /sys, system calls, devices, processes.

`isolation/test_escape.py` has more cases, in an image with more programs. They share their lists.
"""

from __future__ import annotations

import errno
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from arenite_server import binary
from engine_servers import Engine
from isolation.test_escape import READABLE, SECRET, SYSCALLS, WRITABLE, every_file_route
from sandboxes import LiveSandbox

Box = Callable[..., LiveSandbox]
#: Calls one system call. An argument is a number, or a text after "=".
CALLER = r"""
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words) {
    long given[7] = {0};
    for (int n = 1; n < count && n < 8; n++)
        given[n - 1] = words[n][0] == '=' ? (long) (words[n] + 1) : strtol(words[n], NULL, 10);
    long got = syscall(given[0], given[1], given[2], given[3], given[4], given[5], given[6]);
    printf("%ld %d\n", got, got == -1 ? errno : 0);
    return 0;
}
"""
REFUSALS = (errno.EPERM, errno.ENOSYS, errno.EACCES)
#: What gVisor's kernel answers, too, and calls that change that kernel alone.
REFUSALS_OF_GVISOR = (errno.EINVAL, errno.ENODEV, errno.EBADF, errno.EOPNOTSUPP)
GVISORS_OWN = ("unshare(CLONE_NEWUSER)", "keyctl", "add_key")


@pytest.fixture
def secret(engine: Engine) -> Iterator[Path]:
    """A file of the host, readable to all of the host's users."""
    path = engine.folder / f"of-the-host-{uuid.uuid4().hex}.txt"
    path.write_text(SECRET)
    path.chmod(0o644)
    yield path
    path.unlink()


def test_no_route_and_no_command_reaches_a_file_of_the_host(engine: Engine, box: Box, secret: Path) -> None:
    made = box("files-of-the-host")
    up = "../" * 40
    made.output(f"cd /root; busybox ln -s {secret} absolute; busybox ln -s {up}{secret} relative; busybox ln -s /proc/1/root init")
    paths = (str(secret), f"/proc/1/root{secret}", f"/proc/self/root/{up}{secret}", "/root/absolute", "/root/relative", f"/root/init{secret}")
    for path in paths:
        for route, answer in every_file_route(made, path):
            assert answer.status_code < 500, (route, path, answer.text)
            assert SECRET not in answer.text, (route, path)
        assert SECRET not in (made.bash(f"cat {path}").stdout or ""), path
    assert secret.read_text() == SECRET
    engine.can("no way to files of the host")


def test_nothing_of_the_hosts_kernel_to_read(engine: Engine, box: Box) -> None:
    made = box("kernel-read")
    for path in READABLE:
        result = made.bash(f"if [ -d {path} ]; then ls -A {path} | busybox head -c 100; else busybox timeout 5 busybox head -c 100 {path}; fi")
        assert not result.stdout, (path, result)


def test_nothing_of_the_hosts_kernel_to_write(engine: Engine, box: Box) -> None:
    made = box("kernel-write")
    for path, value in WRITABLE:
        before = host_value(path)
        written = made.bash(f"printf %s '{value}' > {path}").exit_code == 0
        answer = made.http.post("/v1/file/write", json={"file": path, "content": value})
        assert host_value(path) == before, path
        if (written or answer.json()["success"]) and not engine.is_gvisor:
            # Where nothing of the kernel's is mounted, the name is the sandbox's own to use.
            assert made.output(f"stat -f -c %T {path}") == "overlayfs", (path, answer.text)
    engine.can("no way to the host's kernel by `/proc` and `/sys`")


def host_value(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except OSError:
        return None


def test_system_calls(engine: Engine, box: Box, tmp_path: Path) -> None:
    source, program = tmp_path / "caller.c", tmp_path / "caller"
    source.write_text(CALLER)
    subprocess.run(["musl-gcc", "-static", "-O1", "-o", str(program), str(source)], check=True)
    made = box("calls-of-root")
    with program.open("rb") as file:
        sent = made.http.post("/v1/file/upload", files={"file": ("caller", file)}, data={"path": "/root/caller"})
    assert sent.json()["success"], sent.text
    made.output("busybox chmod 755 /root/caller")
    refusals = REFUSALS + (REFUSALS_OF_GVISOR if engine.is_gvisor else ())
    for name, (number, *arguments) in SYSCALLS.items():
        if engine.is_gvisor and name in GVISORS_OWN:
            continue
        words = " ".join(f"'={word.decode()}'" if isinstance(word, bytes) else str(word) for word in arguments)
        got, code = made.output(f"/root/caller {number} {words}").split()
        assert got == "-1" and int(code) in refusals, (name, got, errno.errorcode.get(int(code)))
    engine.can("no system call that changes the host")


def test_devices(engine: Engine, box: Box) -> None:
    made = box("devices")
    for kind in ("b 8 0", "b 7 0", "c 1 1", "c 10 232"):
        assert made.bash(f"busybox mknod /tmp/device {kind} && busybox head -c 1 /tmp/device").exit_code != 0, kind
        made.bash("rm -f /tmp/device")
    usual = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "stdin", "stdout", "stderr", "core", "mqueue", "console"}
    # gVisor's kernel has FUSE, and lists devices by number.
    assert set(made.output("ls /dev").split()) - usual <= ({"char", "fuse"} if engine.is_gvisor else set())
    engine.can("no devices of the host")


def test_processes_and_the_program_of_the_host(engine: Engine, box: Box) -> None:
    made = box("processes-of-the-host")
    assert made.output("cat /proc/1/comm") != Path("/proc/1/comm").read_text().strip()
    assert made.bash(f"kill -0 {engine.server.pid}").exit_code != 0
    before = binary().read_bytes()
    paths = ["/proc/1/exe", "/proc/$PPID/exe", "/.arenite/arenite", "/run/.arenite-guest", "/usr/local/bin/aio"]
    # gVisor lets programs that run be overwritten, so that would be the end of the sandbox's own bash.
    for path in paths if engine.is_gvisor else [*paths, "/proc/self/exe"]:
        made.bash(f"busybox chmod 777 {path}; echo overwritten > {path}; busybox cp /usr/bin/true {path}")
    assert binary().read_bytes() == before
    assert made.output("echo alive") == "alive"
    words = made.output("cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | busybox tr '\\0' ' '")
    assert str(engine.server.data_dir) not in words and str(binary().parent) not in words
    engine.can("no way to the host's processes and the server's program")
