"""What users install: the Debian package and the tarball, on a Debian without Rust or a compiler."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from arenite_server import REPOSITORY, Server, binary, free_port
from small import tiny_image

DATA = "/var/lib/arenite-packages"


def pack(output: Path) -> Path:
    """Packages the tests' own program."""
    command = ["cargo", "xtask", "dist", "--program", str(binary()), "--output", str(output)]
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=600, capture_output=True)
    return output


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("packages") / "dist")


def only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    assert len(found) == 1, (pattern, list(folder.iterdir()))
    return found[0]


def test_two_runs_give_the_same_bytes(packages: Path, tmp_path: Path) -> None:
    again = pack(tmp_path / "again")
    names = sorted(path.name for path in packages.iterdir())
    assert len(names) == 4 and names == sorted(path.name for path in again.iterdir())
    for name in names:
        assert (packages / name).read_bytes() == (again / name).read_bytes(), name
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=packages, check=True, capture_output=True)


def test_the_bill_of_materials_lists_what_is_linked(packages: Path) -> None:
    bill = json.loads(only(packages, "*.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    listed = {component["name"] for component in bill["components"]}
    assert {"tokio", "hyper", "arenite-guest"} <= listed
    assert not {"trycmd", "tempfile-fast", "xtask"} & listed
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


@pytest.fixture
def clean_root(server: Server) -> Iterator[Path]:
    """A Debian in a directory of this host: the first layer of the image `base`, with the host's network and packages."""
    manifest = json.loads((server.data_dir / "pool/images/base.json").read_text())
    first = server.data_dir / "pool/layers" / manifest["layers"][0] / "files"
    folder = Path(tempfile.mkdtemp(prefix="arenite-root-"))
    root, scratch = folder / "root", folder / "scratch"
    for path in (root, scratch, ):
        path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(scratch)], check=True)
    for name in ("upper", "work"):
        (scratch / name).mkdir()
    layers = f"lowerdir={first},upperdir={scratch / 'upper'},workdir={scratch / 'work'}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, str(root)], check=True)
    shutil.rmtree(root / "etc/apt")
    shutil.copytree("/etc/apt", root / "etc/apt", symlinks=True)
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    (root / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
    (root / "usr/sbin/policy-rc.d").chmod(0o755)
    for name in ("proc", "sys", "dev"):
        subprocess.run(["mount", "--rbind", f"/{name}", str(root / name)], check=True)
        subprocess.run(["mount", "--make-rslave", str(root / name)], check=True)
    # An overlay can't hold the directories of other overlays, and the storage pool is a file that a loop device holds.
    (root / DATA[1:]).parent.mkdir(parents=True, exist_ok=True)
    (folder / "data").mkdir()
    (root / DATA[1:]).mkdir()
    subprocess.run(["mount", "--bind", str(folder / "data"), str(root / DATA[1:])], check=True)
    yield root
    for name in (DATA[1:], "dev", "sys", "proc", "."):
        subprocess.run(["umount", "--recursive", "--lazy", str(root / name)], check=True)
    subprocess.run(["umount", "--lazy", str(scratch)], check=True)
    shutil.rmtree(folder)


def inside(root: Path, *command: str, **more: object) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"}
    environment |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    return subprocess.run(
        ["chroot", str(root), *command], capture_output=True, text=True, timeout=300, env=environment, **more
    )


def test_the_package_installs_on_a_clean_debian_and_serves(packages: Path, clean_root: Path) -> None:
    assert not any(shutil.which(name, path=f"{clean_root}/usr/bin") for name in ("cc", "gcc", "cargo", "rustc"))
    package = only(packages, "*.deb")
    shutil.copy(package, clean_root / "root/arenite.deb")
    for command in (
        ("apt-get", "update", "-q"),
        ("apt-get", "install", "-q", "-y", "--no-install-recommends", "/root/arenite.deb"),
    ):
        done = inside(clean_root, *command)
        assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    for path in (
        "usr/bin/arenite",
        "etc/arenite.toml",
        "lib/systemd/system/arenite.socket",
        "usr/share/bash-completion/completions/arenite",
    ):
        assert (clean_root / path).exists(), path
    port = free_port()
    settings = ("--listen", f"127.0.0.1:{port}", "--agentflow-listen", "off", "--data-dir", DATA)
    settings += ("--storage-size", "512MiB", "--disk-reserve", "1MiB", "--prepared-slots", "0", "--default-image", "tiny")
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    log = clean_root / "root/server.log"
    with log.open("wb") as stream:
        server = subprocess.Popen(
            ["chroot", str(clean_root), "arenite", "serve", *settings],
            stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=environment, start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: is_ready(url), lambda: log.read_text(errors="replace")[-2000:])
        # The pool is mounted in the mount namespace of the host too, below the root directory.
        tiny_image(clean_root / DATA[1:] / "pool")
        answer = httpx.post(f"{url}/v1/bash/exec", json={"command": "echo installed"}, timeout=60)
        assert answer.status_code == 200 and answer.json()["data"]["stdout"].strip() == "installed", answer.text
    finally:
        done = inside(clean_root, "arenite", "reset", "--all", "--force", "--data-dir", DATA)
        if server.poll() is None and done.returncode != 0:
            server.send_signal(signal.SIGTERM)
        server.wait(60)
    assert done.returncode == 0, done.stderr
    assert not list((clean_root / DATA[1:]).iterdir()), "the data directory, a mount point, is empty"
    removed = inside(clean_root, "dpkg", "--purge", "arenite")
    assert removed.returncode == 0, removed.stderr
    assert not (clean_root / "usr/bin/arenite").exists() and not (clean_root / "etc/arenite.toml").exists()


def is_ready(url: str) -> bool:
    try:
        # Without an image it is ready for everything but creates.
        return httpx.get(f"{url}/healthz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def wait_until(condition: Callable[[], bool], explain: Callable[[], str], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.1)


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
