"""What users install: the Debian package and the tarball, on a Debian without Rust or a compiler."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from arenite_server import REPOSITORY, Server, binary, free_port
from small import tiny_image, within

DATA = "/var/lib/arenite-packages"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tests' own program without its symbols, which take as long to compress as all the rest."""
    stripped = tmp_path_factory.mktemp("program") / "arenite"
    subprocess.run(["strip", "-o", str(stripped), str(binary())], check=True)
    return stripped


def pack(program: Path, output: Path) -> Path:
    command = ["cargo", "xtask", "dist", "--program", str(program), "--output", str(output)]
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=600, capture_output=True)
    return output


@pytest.fixture(scope="module")
def packages(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(program, tmp_path_factory.mktemp("packages") / "dist")


def only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    assert len(found) == 1, (pattern, list(folder.iterdir()))
    return found[0]


def test_two_runs_give_the_same_bytes(program: Path, packages: Path, tmp_path: Path) -> None:
    again = pack(program, tmp_path / "again")
    names = sorted(path.name for path in packages.iterdir())
    assert len(names) == 5 and names == sorted(path.name for path in again.iterdir())
    for name in names:
        assert (packages / name).read_bytes() == (again / name).read_bytes(), name
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=packages, check=True, capture_output=True)


def test_the_bill_of_materials_lists_what_is_linked(packages: Path) -> None:
    bill = json.loads(only(packages, "*.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    listed = {component["name"] for component in bill["components"]}
    assert {"tokio", "hyper", "arenite-guest"} <= listed
    assert not {"cc", "xtask"} & listed
    references = {component["bom-ref"] for component in [*bill["components"], bill["metadata"]["component"]]}
    for entry in bill["dependencies"]:
        assert entry["ref"] in references and set(entry["dependsOn"]) <= references
    assert all("licenses" in component for component in bill["components"])


def test_the_tarball_has_the_program_and_its_documents(packages: Path, tmp_path: Path) -> None:
    with tarfile.open(only(packages, "*.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="tar")
    top = only(tmp_path, "arenite-*")
    shown = subprocess.run([str(top / "arenite"), "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("arenite ")
    assert {"LICENSE", "README.md", "arenite.toml", "man", "completions"} <= {path.name for path in top.iterdir()}
    assert (top / "man/arenite-serve.1").read_text().startswith(".")
    assert "_arenite" in (top / "completions/arenite").read_text()


#: Makes a Debian of a read-only layer the root directory of a mount namespace, with the host's package sources. Sandboxes need
#: a root that is a mount: the kernel gives a process in a chroot no user namespace.
NEW_ROOT = """
set -e
layer=$1 folder=$2 data=$3
mount -t tmpfs tmpfs "$folder/scratch"
mkdir "$folder/scratch/upper" "$folder/scratch/work"
root=$folder/root
mount -t overlay overlay -o "lowerdir=$layer,upperdir=$folder/scratch/upper,workdir=$folder/scratch/work" "$root"
rm -rf "$root/etc/apt"
cp -a /etc/apt "$root/etc/apt"
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
for name in proc sys dev; do mount --rbind "/$name" "$root/$name"; done
# The storage pool is a file on a loop device, and these can't be on an overlay.
mkdir -p "$root$data"
mount --bind "$folder/data" "$root$data"
cd "$root"
mkdir old
pivot_root . old
umount -l old
echo ready
exec sleep infinity
"""


class CleanDebian:
    """A Debian without Rust or a compiler, in a mount namespace of this host."""

    def __init__(self, pid: int):
        self.pid = pid
        self.root = Path(f"/proc/{pid}/root")

    def command(self, *words: str) -> list[str]:
        return ["nsenter", "--target", str(self.pid), "--mount", "--root", "--wd", *words]

    def run(self, *words: str) -> str:
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"}
        environment |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        done = subprocess.run(self.command(*words), capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout


@pytest.fixture
def debian(server: Server) -> Iterator[CleanDebian]:
    manifest = json.loads((server.data_dir / "pool/images/base.json").read_text())
    layer = server.data_dir / "pool/layers" / manifest["layers"][0] / "files"
    folder = Path(tempfile.mkdtemp(prefix="arenite-root-"))
    for name in ("root", "scratch", "data"):
        (folder / name).mkdir()
    command = ["unshare", "--mount", "--propagation", "private", "bash", "-c", NEW_ROOT, "-", str(layer), str(folder), DATA]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "ready\n", "the root directory could not be made"
        yield CleanDebian(holder.pid)
    finally:
        holder.kill()
        holder.wait(10)
        shutil.rmtree(folder)


def test_the_package_installs_on_a_clean_debian_and_serves(packages: Path, debian: CleanDebian) -> None:
    assert not any((debian.root / "usr/bin" / name).exists() for name in ("cc", "gcc", "cargo", "rustc"))
    shutil.copy(only(packages, "*.deb"), debian.root / "root/arenite.deb")
    debian.run("apt-get", "update", "-q")
    debian.run("apt-get", "install", "-q", "-y", "--no-install-recommends", "/root/arenite.deb")
    for path in (
        "usr/bin/arenite",
        "etc/arenite.toml",
        "lib/systemd/system/arenite.socket",
        "usr/share/bash-completion/completions/arenite",
    ):
        assert (debian.root / path).exists(), path
    port = free_port()
    settings = ("--listen", f"127.0.0.1:{port}", "--agentflow-listen", "off", "--data-dir", DATA)
    settings += ("--storage-size", "512MiB", "--disk-reserve", "1MiB", "--prepared-slots", "0", "--default-image", "tiny")
    log = debian.root / "root/server.log"
    with log.open("wb") as stream:
        server = subprocess.Popen(
            debian.command("arenite", "serve", *settings),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        within(60, "the server answers", lambda: is_ready(url))
        tiny_image(debian.root / DATA[1:] / "pool")
        answer = httpx.post(f"{url}/v1/bash/exec", json={"command": "echo installed"}, timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.json()["data"]["stdout"] == "installed\n"
    except BaseException:
        server.terminate()
        print(log.read_text(errors="replace")[-2000:])
        raise
    debian.run("arenite", "reset", "--all", "--force", "--data-dir", DATA)
    assert server.wait(10) == 0
    assert not list((debian.root / DATA[1:]).iterdir()), "the data directory, a mount point, is not empty"
    debian.run("dpkg", "--purge", "arenite")
    assert not (debian.root / "usr/bin/arenite").exists() and not (debian.root / "etc/arenite.toml").exists()


def is_ready(url: str) -> bool:
    try:
        # Without an image it is ready for everything but creates.
        return httpx.get(f"{url}/healthz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_units_are_written_and_removed(tmp_path: Path) -> None:
    def service(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(binary()), "service", *words], capture_output=True, text=True, timeout=60)

    installed = service("install", "--root", str(tmp_path), "--program", "/opt/arenite")
    assert installed.returncode == 0, installed.stderr
    units = tmp_path / "etc/systemd/system"
    assert "ExecStart=/opt/arenite serve\n" in (units / "arenite.service").read_text()
    assert "ListenStream=127.0.0.1:8080\n" in (units / "arenite.socket").read_text()
    odd = service("install", "--root", str(tmp_path), "--program", "/opt/50%/arenite")
    assert odd.returncode == 1 and "unit file" in odd.stderr
    removed = service("uninstall", "--root", str(tmp_path))
    assert removed.returncode == 0 and not list(units.iterdir())
    again = service("uninstall", "--root", str(tmp_path))
    assert again.returncode == 1 and "no units" in again.stderr
