"""Beside Debian's Docker: Dockerfiles build to the same tree and configuration from the same base, and images go both ways."""

from __future__ import annotations

import fnmatch
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import shapes
import trees
from arenite_server import Server
from commands import run
from sandboxes import LiveSandbox
from contexts import BASE, CASES, NAMES, Case, built, inspect, prepared
from dockers import Daemon, in_memory

#: The client of the same package: another Docker may be earlier on the PATH.
CLIENT = "/usr/bin/docker"

#: What the builder of Docker 20.10 can't do without a newer front end from its registry, or without a network, and what it says.
#: test_dockerfiles.py compares these cases with their `expect.json` alone.
LACKS = {
    "heredocs": ("here-documents (front end 1.4)", "unknown instruction"),
    "link": ("`COPY --link` (1.4)", "Unknown flag: link"),
    "own-dockerignore": ("`COPY --exclude` (1.7)", "Unknown flag: exclude"),
    "secrets": ("`RUN --mount=type=secret,env=` (1.10)", "unexpected key 'env'"),
    "tmpfs-offline": ("`RUN --network` (1.3)", "Unknown flag: network"),
    "packages": ("the network, which the test's daemon does not have", ""),
}

#: Differences that are meant, each also in docs/IMAGES.md: case, path or key of the configuration, what, and why.
MEANT = [
    ("*-mount", "/ctx", "existence", "mount points are removed after the step; Docker does so since BuildKit 0.11"),
    ("*-mount", "/mnt/wheels", "existence", "the same"),
    ("*-mount", "/elsewhere", "existence", "the same"),
    ("*-mount", "/var/cache/tool", "existence", "the same"),
    ("*-mount", "/mnt", "names", "the same"),
    ("*-mount", "/var/cache", "names", "the same"),
    ("*-mount", "/.", "names", "the same"),
    ("addresses", "/opt/made/named", "mode", "`--chmod` of `ADD` also counts for addresses; Docker 20.10 does without it"),
    ("*", "/run", "names", "`/run` is in memory: what a step writes there ends with it"),
    ("*", "/run/*", "existence", "the same"),
    ("*", "*/.git/index", "content", "git keeps times and inodes of files in it"),
    ("*", "User", "config", "an id that has a name in the image is recorded as the name"),
    ("scratch-binary", "WorkingDir", "config", "without a WORKDIR, nothing is recorded, which means `/`"),
    ("*", "WorkingDir", "config", "paths are recorded without a slash at the end"),
    ("configuration", "Volumes", "config", "the same"),
]

COMPARED = [name for name in NAMES if name not in LACKS]


@dataclass
class Docker:
    daemon: Daemon
    folder: Path

    def environment(self) -> dict[str, str]:
        own = {"DOCKER_HOST": f"unix://{self.daemon.socket}", "DOCKER_CONFIG": str(self.folder), "DOCKER_BUILDKIT": "1"}
        return {**os.environ, **own}

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment(), **variables}
        return subprocess.run([CLIENT, *words], env=environment, capture_output=True, text=True, timeout=300)

    def build(self, name: str, case: Case) -> subprocess.CompletedProcess[str]:
        """Without a network: neither steps nor a front end get one."""
        for file in case.context.glob("Dockerfile"):
            lines = file.read_text().splitlines(keepends=True)
            file.write_text("".join(line for line in lines if not line.startswith("# syntax=")))
        return self.run("build", "--network", "none", "--tag", name, *case.args, str(case.context), **case.variables)

    def image(self, name: str) -> dict:
        return self.daemon.get(f"/images/{name}/json").raise_for_status().json()

    def layers(self, name: str) -> list[Path]:
        """The directories of an image's layers, lowest first."""
        data = self.image(name)["GraphDriver"]["Data"]
        lower = data.get("LowerDir", "").split(":")
        return [Path(path) for path in reversed([data["UpperDir"], *lower]) if path]


@pytest.fixture(scope="module")
def docker() -> Iterator[Docker]:
    with in_memory() as daemon:
        yield Docker(daemon, daemon.folder.parent)


@pytest.fixture(scope="module")
def base(server: Server, docker: Docker) -> Iterator[str]:
    """The base here, and the same in Docker."""
    made = built(server, BASE, str(CASES / "base-image"))
    assert made.returncode == 0, made.stderr
    file = docker.folder / "base.tar"
    saved = run(server, "image", "save", BASE, "-o", str(file))
    assert saved.returncode == 0, saved.stderr
    loaded = docker.run("load", "-i", str(file))
    assert loaded.returncode == 0, loaded.stderr
    file.unlink()
    yield BASE
    # test_dockerfiles.py builds the same after this, and removes the layers.
    run(server, "image", "rm", "--force", BASE)


@pytest.fixture
def name(server: Server, base: str) -> Iterator[str]:
    name = f"t-docker-{os.getpid()}"
    yield name
    run(server, "image", "rm", "--force", name)


def layers(server: Server, name: str) -> list[Path]:
    return [Path(layer["dir"]) for layer in inspect(server, name)["layers"]]


def configuration(image: dict) -> dict[str, object]:
    """Ours, in Docker's terms."""
    config = image["config"]
    check = config.get("healthcheck")
    return {
        "Env": config.get("env", {}),
        "Cmd": config.get("cmd", []),
        "Entrypoint": config.get("entrypoint", []),
        "WorkingDir": config.get("workdir") or "",
        "User": config.get("user") or "",
        "Labels": config.get("labels", {}),
        "ExposedPorts": sorted(config.get("exposed_ports", [])),
        "Volumes": sorted(config.get("volumes", [])),
        "Healthcheck": {key.lower(): value for key, value in (check or {}).items() if value},
        "StopSignal": config.get("stop_signal") or "",
        "Shell": config.get("shell", []),
    }


def dockers(config: dict) -> dict[str, object]:
    return {
        "Env": dict(pair.split("=", 1) for pair in config["Env"] or []),
        "Cmd": config["Cmd"] or [],
        "Entrypoint": config["Entrypoint"] or [],
        "WorkingDir": config["WorkingDir"],
        "User": config["User"],
        "Labels": config["Labels"] or {},
        "ExposedPorts": sorted(config.get("ExposedPorts") or []),
        "Volumes": sorted(config.get("Volumes") or []),
        "Healthcheck": {key.lower(): value for key, value in (config.get("Healthcheck") or {}).items() if value},
        "StopSignal": config.get("StopSignal", ""),
        "Shell": config.get("Shell") or [],
    }


def meant(case: str, path: str, what: str) -> bool:
    return any(
        fnmatch.fnmatch(case, of) and fnmatch.fnmatch(path, where) and what == kind for of, where, kind, _ in MEANT
    )


def test_docker_has_the_same_base(server: Server, docker: Docker, base: str, tmp_path: Path) -> None:
    """What `arenite image save` writes and `docker load` reads has every file as it was."""
    ours, theirs = layers(server, base), docker.layers(base)
    with (
        trees.merged(ours, tmp_path / "ours", "userxattr") as here,
        trees.merged(theirs, tmp_path / "theirs") as there,
    ):
        every = trees.paths(here) | trees.paths(there)
        assert len(every) > 5000
        assert list(trees.differences(here, there, every)) == []
    assert configuration(inspect(server, base)) == dockers(docker.image(base)["Config"])


@pytest.mark.parametrize("case", COMPARED)
def test_a_dockerfile_builds_to_dockers_tree(server: Server, docker: Docker, name: str, tmp_path: Path, case: str) -> None:
    given = prepared(case, tmp_path)
    made = built(server, name, str(given.context), *given.args, **given.variables)
    assert made.returncode == 0, made.stderr
    there = docker.build(name, given)
    assert there.returncode == 0, there.stderr

    ours, theirs = layers(server, name), docker.layers(name)
    # The base's files are the same: only what was put on it is read.
    above = [layer for layer in ours if layer not in layers(server, BASE)]
    above += [layer for layer in theirs if layer not in docker.layers(BASE)]
    where = set().union(*(trees.paths(layer) for layer in above)) | {"."}
    with trees.merged(ours, tmp_path / "ours", "userxattr") as mine, trees.merged(theirs, tmp_path / "theirs") as its:
        found = [
            f"/{path}: {what} is {here!r}, and {other!r} in Docker"
            for path, what, here, other in trees.differences(mine, its, where)
            if not meant(case, f"/{path}", what)
        ]
    here_config, its_config = configuration(inspect(server, name)), dockers(docker.image(name)["Config"])
    found += [
        f"{key} is {here_config[key]!r}, and {its_config[key]!r} in Docker"
        for key in here_config
        if here_config[key] != its_config[key] and not meant(case, key, "config")
    ]
    assert found == [], "\n".join(found)


def test_enough_cases_are_compared() -> None:
    assert len(COMPARED) >= 20, COMPARED


@pytest.mark.parametrize("case", [name for name, (_, message) in LACKS.items() if message])
def test_what_dockers_builder_lacks_it_still_lacks(docker: Docker, base: str, tmp_path: Path, case: str) -> None:
    """A case that it can build by now has to be compared."""
    what, message = LACKS[case]
    refused = docker.build("lacking", prepared(case, tmp_path))
    assert refused.returncode != 0 and message in refused.stderr, refused.stderr
    print(f"{case}: not compared, because Docker's builder lacks {what}")


def test_what_docker_saves_runs_here(
    server: Server, docker: Docker, name: str, tmp_path: Path, sandbox: Callable[..., LiveSandbox]
) -> None:
    """Two tags in one file, with a layer that removes files of another."""
    case = prepared("task-files", tmp_path)
    assert docker.build(f"{name}:1", case).returncode == 0
    assert docker.run("tag", f"{name}:1", f"example.org/{name}:two").returncode == 0
    file = tmp_path / "saved.tar"
    saved = docker.run("save", "-o", str(file), f"{name}:1", f"example.org/{name}:two")
    assert saved.returncode == 0, saved.stderr
    loaded = run(server, "image", "load", str(file))
    assert loaded.returncode == 0 and set(loaded.stdout.split()) == {f"{name}:1", f"example.org/{name}:two"}, loaded
    try:
        ours, theirs = layers(server, f"{name}:1"), docker.layers(f"{name}:1")
        with trees.merged(ours, tmp_path / "ours", "userxattr") as here, trees.merged(theirs, tmp_path / "theirs") as there:
            where = {path for path in trees.paths(here) | trees.paths(there) if path.startswith(("app", "etc", "."))}
            assert list(trees.differences(here, there, where)) == []
        box = sandbox(image=f"example.org/{name}:two")
        command = "cat /app/replaced; ls /app/logs/old; stat -c '%a %U' /app/tool /app/data/deep/x; ls /app/data"
        done = box.http.post("/v1/bash/exec", json={"command": command}).raise_for_status().json()["data"]
        assert done["stdout"] == "a file\n3.log\n4755 root\n644 nobody\ndeep\n", done
    finally:
        file.unlink()
        for tag in (f"{name}:1", f"example.org/{name}:two"):
            run(server, "image", "rm", "--force", tag)


def test_what_is_saved_here_runs_in_docker(server: Server, docker: Docker, base: str, tmp_path: Path) -> None:
    """The base ran there already, for builds; here it runs with its own user and directory. The other has busybox alone."""
    made = run(server, "image", "load", str(shapes.busybox(tmp_path, "t-beside:1")))
    assert made.returncode == 0, made.stderr
    try:
        file = tmp_path / "saved.tar"
        assert run(server, "image", "save", "t-beside:1", "-o", str(file)).returncode == 0
        loaded = docker.run("load", "-i", str(file))
        assert loaded.returncode == 0 and "t-beside:1" in loaded.stdout, loaded
        # Its own command is a shell.
        started = subprocess.run(
            [CLIENT, "run", "--rm", "-i", "--network", "none", "t-beside:1"],
            input="echo $((6 * 7)) in $PATH\n", env=docker.environment(), capture_output=True, text=True, timeout=60,
        )
        assert (started.returncode, started.stdout) == (0, "42 in /bin\n"), started
        python = docker.run("run", "--rm", "--network", "none", base, "python3", "-c", "import os; print(os.getcwd(), os.getuid())")
        assert python.stdout == "/ 0\n", python
    finally:
        run(server, "image", "rm", "--force", "t-beside:1")
