"""The container images: what `cargo xtask container-image` writes, as Docker runs it, and what deploy/image/Dockerfile builds.

The node's image runs as deploy/compose.yaml says, and its sandboxes outlive the container.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from arenite_server import REPOSITORY, Server, binary
from commands import run
from contexts import built, inspect
from dockers import Daemon
from pod_servers import TINY, tiny_archive
from postgres import Postgres
from small import within

NAME = "registry.example/team/arenite:test"
NODE = "registry.example/team/arenite-node:test"
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
def image(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def write(name: str, *options: str) -> Path:
        file = tmp_path_factory.mktemp("container") / "image.tar"
        command = ["cargo", "xtask", "container-image", *options, "--program", str(program), "--name", name, "--output", str(file)]
        subprocess.run(command, cwd=REPOSITORY, check=True, timeout=600, capture_output=True)
        return file

    return write


@pytest.fixture(scope="module")
def archive(image: Callable[..., Path]) -> Path:
    return image(NAME)


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


def load(docker: Daemon, archive: Path, name: str) -> None:
    with archive.open("rb") as content:
        loaded = docker.request("POST", "/images/load", content=content, headers={"content-type": "application/x-tar"})
    assert loaded.status_code == 200 and name in loaded.text, loaded.text


def test_docker_runs_it_with_a_read_only_root_and_no_rights(docker: Daemon, archive: Path) -> None:
    load(docker, archive, NAME)

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


def composed(**variables: str) -> dict[str, Any]:
    """The service of deploy/compose.yaml, with these variables."""

    def value(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        return variables.get(name, default or "")

    text = re.sub(r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)\}", value, (REPOSITORY / "deploy/compose.yaml").read_text())
    return yaml.safe_load(text)["services"]["arenite"]


def privileges() -> list[str]:
    """`--privileged`. On a host that lacks a capability itself, Docker can't do that: then what it consists of."""
    (bound,) = re.findall(r"^CapBnd:\s+(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    names = re.findall(r"^#define CAP_(\w+)\s+(\d+)$", Path("/usr/include/linux/capability.h").read_text(), re.MULTILINE)
    lacking = [name for name, number in names if not int(bound, 16) >> int(number) & 1]
    if not lacking:
        return ["--privileged"]
    options = ["--cap-add=ALL", *(f"--cap-drop={name}" for name in lacking), "--device-cgroup-rule=a *:* rwm"]
    return options + [f"--security-opt={name}=unconfined" for name in ("seccomp", "apparmor", "systempaths")]


class NodeContainer:
    """The container of deploy/compose.yaml. It has no network but its sandboxes', since the tests' Docker makes none."""

    def __init__(self, docker: Daemon, data: Path, postgres: Postgres):
        self.docker, self.data = docker, data
        service = composed(ARENITE_API_KEY="a-key-of-sixteen-letters", ARENITE_DATA=str(data), ARENITE_IMAGE=NODE)
        assert service["image"] == NODE
        options = [f"--pid={service['pid']}", f"--cgroupns={service['cgroup']}", "--network=none"]
        options += [f"--volume={postgres.dir}:{postgres.dir}"]
        assert service["privileged"] is True
        options += privileges() + ["--read-only"] * service["read_only"]
        options += [f"--tmpfs={path}" for path in service["tmpfs"]] + [f"--volume={volume}" for volume in service["volumes"]]
        environment = service["environment"] | {"ARENITE_STORE": postgres.url, "ARENITE_DEFAULT_IMAGE": "tiny"}
        options += [f"--env={name}={value}" for name, value in environment.items()]
        self.command = ["run", "--detach", "--name", "node", *options, NODE, *service["command"]]
        self.health = service["healthcheck"]["test"]

    def start(self) -> None:
        self.docker.command(*self.command)
        kind, *words = self.health
        assert kind == "CMD"
        within(60, "the server in the container answers", lambda: self.succeeds(*words))

    def succeeds(self, *words: str) -> bool:
        try:
            return self.docker.command("exec", "node", *words) is not None
        except AssertionError:
            state = self.docker.command("inspect", "--format", "{{.State.Status}}", "node")
            assert state == "running", self.docker.command("logs", "node")
            return False

    def run(self, *words: str) -> str:
        return self.docker.command("exec", "node", "/arenite", *words)

    def inside(self, line: str) -> str:
        return self.run("exec", "demo", "--", "bash", "-c", line)

    def kill(self) -> None:
        self.docker.command("rm", "--force", "node")


@pytest.fixture
def node(docker: Daemon, image: Callable[..., Path]) -> Iterator[NodeContainer]:
    load(docker, image(NODE, "--node"), NODE)
    postgres = Postgres()
    data = Path(tempfile.mkdtemp(prefix="arenite-node-"))
    node = NodeContainer(docker, data, postgres)
    try:
        node.start()
        yield node
        node.run("rm", "--all", "--force")
        node.docker.command("stop", "node")
    finally:
        # A test that failed may have left none.
        with contextlib.suppress(AssertionError):
            node.kill()
        subprocess.run([str(binary()), "reset", "--all", "--force", "--data-dir", str(data)], check=True, timeout=120)
        shutil.rmtree(data, ignore_errors=True)
        postgres.remove()


def test_sandboxes_outlive_the_container_of_their_node(node: NodeContainer, tmp_path: Path) -> None:
    checks = node.run("doctor", "--data-dir", str(node.data))
    assert "missing" not in checks and "btrfs in a file" in checks, checks
    shutil.move(tiny_archive(tmp_path), node.data / "tiny.tar")
    node.run("image", "load", str(node.data / "tiny.tar"))
    (node.data / "tiny.tar").unlink()
    node.run("create", "demo", "--image", TINY)
    node.inside("echo kept > /tmp/file")
    # The sandbox reaches the forwarder of names at its gateway.
    reach = "read -r _ gateway < /etc/resolv.conf; exec 3<>/dev/tcp/$gateway/53 && echo open"
    assert node.inside(reach) == "open"

    def process() -> int:
        (record,) = node.data.glob("run/s*/sandbox.json")
        return json.loads(record.read_text().splitlines()[1])["pid"]

    pid = process()
    for _ in range(2):
        # Its network namespace, its mounts and all that is in its cgroup end with it.
        node.kill()
        assert Path(f"/proc/{pid}").is_dir()
        node.start()
        assert (process(), node.inside("cat /tmp/file")) == (pid, "kept")
        assert node.inside(reach) == "open"


@pytest.mark.parametrize(("target", "user"), [(None, USER), ("node", 0)])
def test_the_dockerfile_builds_the_same(server: Server, tmp_path: Path, target: str | None, user: int) -> None:
    """Our builder builds it, with an image of the tests in place of Debian's, which would be pulled."""
    context = tmp_path / "context"
    context.mkdir()
    # Its modes count, not its size: the program would be copied into four layers.
    (context / "arenite").write_text("#!/bin/sh\n")
    name = f"t-container-{os.getpid()}"
    dockerfile = REPOSITORY / "deploy/image/Dockerfile"
    options = ["--target", target] if target else []
    made = built(server, name, "--file", str(dockerfile), "--build-arg", "CERTIFICATES=base", *options, str(context))
    assert made.returncode == 0, made.stderr
    try:
        image = inspect(server, name)
        config = image["config"]
        assert config["user"] == (f"{user}:{user}" if user else None)
        assert (config["entrypoint"], config["cmd"]) == (["/arenite"], ["serve"])

        def about(path: str) -> os.stat_result:
            found = [Path(layer["dir"]) / path for layer in image["layers"] if (Path(layer["dir"]) / path).exists()]
            assert found, path
            return found[-1].stat()

        assert stat.S_IMODE(about("arenite").st_mode) == 0o755
        assert about(AUTHORITIES).st_size > 100_000
        assert stat.S_IMODE(about("tmp").st_mode) == 0o1777
        data = about("var/lib/arenite")
        assert (stat.S_IMODE(data.st_mode), data.st_uid, data.st_gid) == (0o700, user, user)
        programs = [layer["dir"] for layer in image["layers"] if (Path(layer["dir"]) / "usr/sbin/mkfs.btrfs").exists()]
        assert bool(programs) == (target == "node")
        for program in ["nft", "mkfs.btrfs"] if programs else []:
            subprocess.run(["chroot", programs[-1], f"/usr/sbin/{program}", "--version"], check=True, capture_output=True)
        assert not [layer for layer in image["layers"] if (Path(layer["dir"]) / "bin").exists()], "only the last stage is in it"
    finally:
        run(server, "image", "rm", "--force", name)
        run(server, "image", "prune")
