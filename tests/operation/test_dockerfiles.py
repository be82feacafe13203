"""Dockerfiles in the shapes of benchmarks' environments build to the expected files and configuration."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from arenite_server import Server, binary
from commands import environment, run

CASES = Path(__file__).parent.parent / "dockerfiles"
NAMES = sorted(path.parent.name for path in CASES.glob("*/expect.json"))
BASE = "task-base"


def built(server: Server, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(binary()), "image", "build", *words, "--verbose"],
        env={**environment(server), **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def base(server: Server) -> Iterator[str]:
    made = built(server, BASE, str(CASES / "base-image"))
    assert made.returncode == 0, made.stderr
    yield BASE
    run(server, "image", "rm", "--force", BASE)
    run(server, "image", "prune")


@pytest.fixture
def name(server: Server, base: str) -> Iterator[str]:
    name = f"t-dockerfile-{os.getpid()}"
    yield name
    run(server, "image", "rm", "--force", name)


def inspect(server: Server, name: str) -> dict:
    shown = run(server, "image", "inspect", name, "--json")
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)


def find(image: dict, path: str) -> Path | None:
    """The file that a path without links leads to, in the topmost layer that has it."""
    for layer in reversed(image["layers"]):
        at = Path(layer["dir"])
        for part in Path(path).relative_to("/").parts:
            at = at / part
            try:
                found = at.lstat()
            except (FileNotFoundError, NotADirectoryError):
                break
            if stat.S_ISCHR(found.st_mode):
                return None
        else:
            return at
    return None


def archives(context: Path) -> None:
    """A plain and a compressed archive, and a compressed file that is none."""
    content = b"content\n"
    for name, mode in (("data.tar.gz", "w:gz"), ("plain.tar", "w")):
        with tarfile.open(context / name, mode) as archive:
            directory = tarfile.TarInfo("d")
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            file = tarfile.TarInfo("d/file")
            file.size, file.mode, file.uid, file.gid = len(content), 0o640, 1000, 7
            link = tarfile.TarInfo("d/link")
            link.type, link.linkname = tarfile.SYMTYPE, "file"
            archive.addfile(directory)
            archive.addfile(file, io.BytesIO(content))
            archive.addfile(link)
    subprocess.run(["gzip", "-k", str(context / "text")], check=True)
    (context / "text.gz").rename(context / "note.gz")


@pytest.mark.parametrize("case", NAMES)
def test_a_dockerfile_builds_to_the_expected_tree(server: Server, name: str, tmp_path: Path, case: str) -> None:
    context = tmp_path / "context"
    shutil.copytree(CASES / case, context)
    (context / "expect.json").unlink()
    expected = json.loads((CASES / case / "expect.json").read_text())
    for path in context.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    if expected.get("prepare") == "archives":
        archives(context)
    (tmp_path / "secret").write_text("t0p-s3cret")
    args = [word.replace("SECRET", str(tmp_path / "secret")) for word in expected.get("args", [])]
    made = built(server, name, str(context), *args, T_DOCKERFILES_VARIABLE="v4riable")
    assert made.returncode == 0, made.stderr

    image = inspect(server, name)
    for path, wanted in expected.get("files", {}).items():
        found = find(image, path)
        assert found is not None, f"{path} is missing\n{made.stderr}"
        meta = found.lstat()
        if "mode" in wanted:
            assert f"{stat.S_IMODE(meta.st_mode):o}" == wanted["mode"], path
        if "owner" in wanted:
            assert f"{meta.st_uid}:{meta.st_gid}" == wanted["owner"], path
        if "content" in wanted:
            assert found.read_text() == wanted["content"], path
        if "link" in wanted:
            assert os.readlink(found) == wanted["link"], path
    for path in expected.get("missing", []):
        assert find(image, path) is None, f"{path} is there"
    for path in expected.get("context_missing", []):
        assert not (context / path).exists(), f"the build wrote {path} into its context"
    config = image["config"]
    for key, wanted in expected.get("config", {}).items():
        if isinstance(wanted, dict) and key in ("env", "labels"):
            assert wanted.items() <= config[key].items(), config[key]
        else:
            assert config[key] == wanted, key
    for key in expected.get("absent_config", []):
        assert key not in config, config
    for key in expected.get("absent_env", []):
        assert key not in config["env"], config
    for secret in expected.get("secrets", []):
        for layer in image["layers"][1:]:
            leaked = subprocess.run(["grep", "-rlaF", secret, layer["dir"]], capture_output=True, text=True, timeout=60)
            assert leaked.stdout == "", leaked.stdout
        assert secret not in json.dumps(image)
        assert secret not in made.stderr


def test_a_second_build_takes_everything_from_the_first_one(server: Server, name: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("f")
    (tmp_path / "Dockerfile").write_text(
        f"FROM {BASE} AS one\nARG A=1\nRUN --mount=type=bind,target=/c cat /c/f >/f && date +%N >/now\n"
        f"FROM {BASE}\nCOPY --from=one /f /now /\n"
    )
    assert built(server, name, str(tmp_path)).returncode == 0
    first = inspect(server, name)["digest"]
    again = built(server, "--tag", name, str(tmp_path))
    assert again.returncode == 0 and "steps carried out: 0" in again.stderr, again.stderr
    assert inspect(server, name)["digest"] == first
    other = built(server, name, str(tmp_path), "--build-arg", "A=2")
    assert "steps carried out: 2" in other.stderr, other.stderr
    (tmp_path / "f").write_text("g")
    changed = built(server, name, str(tmp_path))
    assert "steps carried out: 2" in changed.stderr, changed.stderr


def test_a_cache_stays_for_the_next_build(server: Server, name: str, tmp_path: Path) -> None:
    mount = f"--mount=type=cache,id=t-{os.getpid()},target=/c"
    (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nRUN {mount} echo x >>/c/runs && wc -l </c/runs >/runs\n")
    for count in ("1\n", "2\n"):
        made = built(server, name, str(tmp_path), "--no-cache")
        assert made.returncode == 0, made.stderr
        found = find(inspect(server, name), "/runs")
        assert found is not None and found.read_text() == count


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM {base}\nONBUILD RUN x", "line 2: not supported: ONBUILD"),
        ("FROM {base}\nADD https://example.org/x /x", "line 2: not supported: ADD of the address"),
        ("FROM {base}\nCOPY --from=nope-{base} / /x", 'image "nope-task-base" is not built here'),
        ("FROM {base}\nRUN --mount=type=secret,id=t,required true", "line 2: the secret"),
        ("FROM {base}\nRUN --mount=type=bind,source=../..,target=/x true", "line 2: "),
        ("FROM {base}\nCOPY ../../etc/passwd /x", "line 2: "),
        ("FROM {base}\nRUN --mount=type=tmpfs,target=/proc/1 true", "line 2: a mount's target can't be"),
        ("FROM --platform=linux/s390x {base}", "line 1: not supported: the platform"),
        ("FROM {base}\nRUN exit 7", "line 2: the command ended with exit code 7"),
    ],
)
def test_what_can_not_be_built_is_refused_with_its_line(server: Server, name: str, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "Dockerfile").write_text(text.format(base=BASE))
    refused = built(server, name, str(tmp_path))
    assert refused.returncode != 0
    assert message in refused.stderr, refused.stderr
