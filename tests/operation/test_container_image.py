"""The container image: what `cargo xtask container-image` writes, as Docker runs it, and what deploy/image/Dockerfile builds."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from arenite_server import REPOSITORY, Server, binary
from commands import run
from contexts import built, inspect
from dockers import Daemon

NAME = "registry.example/team/arenite:test"
#: The user of the image.
USER = 65532
AUTHORITIES = "etc/ssl/certs/ca-certificates.crt"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tests' own program without symbols, as in packages."""
    file = tmp_path_factory.mktemp("program") / "arenite"
    subprocess.run(["strip", "-o", str(file), str(binary())], check=True, timeout=60)
    return file


@pytest.fixture(scope="module")
def archive(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("container") / "image.tar"
    command = ["cargo", "xtask", "container-image", "--program", str(program), "--name", NAME, "--output", str(file)]
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=600, capture_output=True)
    return file


def test_the_archive_is_an_oci_layout_and_dockers_form(archive: Path, program: Path) -> None:
    with tarfile.open(archive) as opened:
        parts = {member.name: opened.extractfile(member).read() for member in opened.getmembers()}
    assert json.loads(parts["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(parts["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == NAME

    def blob(descriptor: dict[str, Any]) -> bytes:
        digest = descriptor["digest"].removeprefix("sha256:")
        content = parts[f"blobs/sha256/{digest}"]
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (digest, descriptor["size"])
        return content

    manifest = json.loads(blob(entry))
    config = json.loads(blob(manifest["config"]))
    (layer,) = manifest["layers"]
    assert config["rootfs"]["diff_ids"] == [layer["digest"]]
    assert config["config"]["User"] == f"{USER}:{USER}"
    assert (config["config"]["Entrypoint"], config["config"]["Cmd"]) == (["/arenite"], ["serve"])
    (docker,) = json.loads(parts["manifest.json"])
    assert docker["RepoTags"] == [NAME]
    assert [docker["Config"], *docker["Layers"]] == [f"blobs/sha256/{part['digest'][7:]}" for part in (manifest["config"], layer)]

    with tarfile.open(fileobj=io.BytesIO(blob(layer))) as opened:
        members = {member.name: member for member in opened.getmembers()}
        inside = opened.extractfile("arenite")
        assert inside is not None and inside.read() == program.read_bytes()
        authorities = opened.extractfile(AUTHORITIES)
        assert authorities is not None and authorities.read().count(b"BEGIN CERTIFICATE") > 50
    owned = {name: (member.mode, member.uid, member.gid) for name, member in members.items()}
    assert owned["arenite"] == (0o755, 0, 0)
    assert owned["tmp"] == (0o1777, 0, 0)
    assert owned["var/lib/arenite"] == (0o700, USER, USER)
    assert {name for name, (_, uid, _) in owned.items() if uid} == {"var/lib/arenite"}
    assert len({member.mtime for member in members.values()}) == 1


@pytest.fixture
def docker() -> Iterator[Daemon]:
    # Sockets want a short path.
    folder = Path(tempfile.mkdtemp(prefix="arenite-image-"))
    daemon = Daemon(folder / "docker")
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.stop()
        shutil.rmtree(folder, ignore_errors=True)


def test_docker_runs_it_with_a_read_only_root_and_no_rights(docker: Daemon, archive: Path) -> None:
    with archive.open("rb") as content:
        loaded = docker.request("POST", "/images/load", content=content, headers={"content-type": "application/x-tar"})
    assert loaded.status_code == 200 and NAME in loaded.text, loaded.text

    def output(*command: str) -> str:
        host = {"ReadonlyRootfs": True, "CapDrop": ["ALL"], "NetworkMode": "none", "SecurityOpt": ["no-new-privileges"]}
        made = docker.request("POST", "/containers/create", json={"Image": NAME, "Cmd": command, "HostConfig": host})
        assert made.status_code == 201, made.text
        container = made.json()["Id"]
        docker.request("POST", f"/containers/{container}/start").raise_for_status()
        ended = docker.request("POST", f"/containers/{container}/wait").raise_for_status().json()
        # Each piece of output has a header of eight bytes.
        logs = docker.get(f"/containers/{container}/logs?stdout=1&stderr=1").content.decode(errors="replace")
        docker.request("DELETE", f"/containers/{container}").raise_for_status()
        assert ended["StatusCode"] == 0, logs
        return logs

    assert "arenite " in output("--version")
    assert "the configuration is valid" in output("serve", "--validate", "--data-dir", "/tmp/data")


def test_the_dockerfile_builds_the_same(server: Server, tmp_path: Path) -> None:
    """Our builder builds it, with an image of the tests in place of Debian's, which would be pulled."""
    context = tmp_path / "context"
    context.mkdir()
    # Its modes count, not its size: the program would be copied into four layers.
    (context / "arenite").write_text("#!/bin/sh\n")
    name = f"t-container-{os.getpid()}"
    dockerfile = REPOSITORY / "deploy/image/Dockerfile"
    made = built(server, name, "--file", str(dockerfile), "--build-arg", "CERTIFICATES=base", str(context))
    assert made.returncode == 0, made.stderr
    try:
        image = inspect(server, name)
        config = image["config"]
        assert config["user"] == f"{USER}:{USER}"
        assert (config["entrypoint"], config["cmd"]) == (["/arenite"], ["serve"])

        def about(path: str) -> os.stat_result:
            found = [Path(layer["dir"]) / path for layer in image["layers"] if (Path(layer["dir"]) / path).exists()]
            assert found, path
            return found[-1].stat()

        assert stat.S_IMODE(about("arenite").st_mode) == 0o755
        assert about(AUTHORITIES).st_size > 100_000
        assert stat.S_IMODE(about("tmp").st_mode) == 0o1777
        data = about("var/lib/arenite")
        assert (stat.S_IMODE(data.st_mode), data.st_uid, data.st_gid) == (0o700, USER, USER)
        assert not [layer for layer in image["layers"] if (Path(layer["dir"]) / "bin").exists()], "only the last stage is in it"
    finally:
        run(server, "image", "rm", "--force", name)
        run(server, "image", "prune")
