"""`arenite image build NAME --from IMAGE`: the steps of `base` on images of other origins."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import shapes
from arenite_server import Server, binary
from commands import environment, run
from registries import registry
from sandboxes import LiveSandbox

#: A Debian in the shape of one from a registry: another user has the id of `gem`, and it runs as that user.
DEBIAN = """FROM debootstrap:bookworm
RUN useradd --create-home --uid 1000 someone && touch /home/someone/kept && chown someone /home/someone/kept
ENV ORIGIN=elsewhere
USER someone
CMD ["sh"]
"""
#: Without sources, apt knows what is installed alone.
WITHOUT_SOURCES = "FROM debootstrap:bookworm\nRUN rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*\n"


def build(server: Server, *words: str) -> subprocess.CompletedProcess[str]:
    """Without the time limit of other commands: it installs packages."""
    command = [str(binary()), "image", "build", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment(server), stdin=subprocess.DEVNULL)


@pytest.fixture
def made(server: Server) -> Iterator[list[str]]:
    """Names of images that go with the test."""
    names: list[str] = []
    yield names
    for name in names:
        run(server, "image", "rm", "--force", name)


def written(folder: Path, text: str) -> str:
    file = folder / "Dockerfile"
    file.write_text(text)
    return str(file)


@pytest.mark.timeout(1000)
def test_base_on_a_debian_of_a_registry(
    server: Server, made: list[str], tmp_path: Path, sandbox: Callable[..., LiveSandbox]
) -> None:
    with registry(tmp_path) as there:
        reference = f"{there.host}/debian:12"
        made += ["t-other-base", "t-debian", reference]
        debian = build(server, "t-debian", "-f", written(tmp_path, DEBIAN))
        assert debian.returncode == 0, debian.stderr
        pushed = run(server, "image", "push", "t-debian", reference)
        assert pushed.returncode == 0, pushed.stderr
        done = build(server, "t-other-base", "--from", reference)
        assert done.returncode == 0 and f"image {reference} is pulled" in done.stderr, done.stderr
        # It is here now.
        again = build(server, "t-other-base", "--from", reference)
        assert again.returncode == 0 and "pulled" not in again.stderr, again.stderr
    box = sandbox(image="t-other-base")
    assert box.output("id -un; id -u; pwd; echo $ORIGIN; sudo id -un").split() == ["gem", "1000", "/home/gem", "elsewhere", "root"]
    assert box.output("stat -c %U /home/someone/kept") == "gem"
    for program in ("python3", "pip", "node", "npm", "git", "jq", "rg", "curl"):
        box.output(f"{program} --version")


def test_an_image_without_apt_is_refused(server: Server, made: list[str], tmp_path: Path) -> None:
    made.append("t-alpine:1")
    loaded = run(server, "image", "load", str(shapes.alpine(tmp_path, "t-alpine:1")))
    assert loaded.returncode == 0, loaded.stderr
    refused = build(server, "t-none", "--from", "t-alpine:1")
    assert refused.returncode == 1, refused
    for part in ("t-alpine:1 (Alpine Linux)", "no apt-get", "bash, coreutils", "nodejs", "hint:", "--image t-alpine:1"):
        assert part in refused.stderr, refused.stderr
    both = build(server, "t-none", str(tmp_path), "--from", "t-alpine:1")
    assert both.returncode == 2 and "leave --from out" in both.stderr, both.stderr


def test_what_apt_lacks_is_named(server: Server, made: list[str], tmp_path: Path) -> None:
    made += ["t-no-sources", "t-none"]
    plain = build(server, "t-no-sources", "-f", written(tmp_path, WITHOUT_SOURCES))
    assert plain.returncode == 0, plain.stderr
    refused = build(server, "t-none", "--from", "t-no-sources")
    assert refused.returncode == 1, refused
    (line,) = [line for line in refused.stderr.splitlines() if "apt has no packages of these names here" in line]
    missing = line.split(":", 1)[1].split()
    assert {"curl", "git", "nodejs", "npm"} <= set(missing) and "coreutils" not in missing, line
    assert run(server, "image", "inspect", "t-none").returncode == 3
