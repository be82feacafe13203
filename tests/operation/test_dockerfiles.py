"""Dockerfiles in the shapes of benchmarks' environments build to the expected files and configuration."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from arenite_server import Server
from commands import run
from contexts import BASE, CASES, NAMES, built, inspect, new_site, prepared


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


@pytest.mark.parametrize("case", NAMES)
def test_a_dockerfile_builds_to_the_expected_tree(server: Server, name: str, tmp_path: Path, case: str) -> None:
    given = prepared(case, tmp_path)
    context, expected = given.context, given.expected
    made = built(server, name, str(context), *given.args, **given.variables)
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


def test_downloads_are_checked_and_cached_by_content(server: Server, name: str, tmp_path: Path) -> None:
    site, other = new_site(), new_site()
    site.moved["/away"] = f"{other.url}/files/tool"

    def add(*words: str, checksum: bytes | None = None) -> subprocess.CompletedProcess[str]:
        flag = f"--checksum=sha256:{hashlib.sha256(checksum).hexdigest()} " if checksum is not None else ""
        (tmp_path / "Dockerfile").write_text(f"FROM {BASE}\nADD {flag}{site.url}{' '.join(words)}\n")
        return built(server, name, str(tmp_path))

    first = add("/files/tool", "/opt/")
    assert first.returncode == 0 and hashlib.sha256(b"tool\n").hexdigest() in first.stderr, first.stderr
    assert "steps carried out: 0" in add("/files/tool", "/opt/").stderr
    site.files["/files/tool"] = b"changed\n"
    changed = add("/files/tool", "/opt/")
    assert "steps carried out: 1" in changed.stderr, changed.stderr
    found = find(inspect(server, name), "/opt/tool")
    assert found is not None and found.read_text() == "changed\n"

    # What is known by its checksum is not downloaded again.
    assert add("/files/tool", "/opt/pinned", checksum=b"changed\n").returncode == 0
    requests = len(site.requests)
    assert "steps carried out: 0" in add("/files/tool", "/opt/pinned", checksum=b"changed\n").stderr
    assert len(site.requests) == requests
    for words, checksum, message in (
        (("/files/tool", "/x"), b"other", "and --checksum wants"),
        (("/files/none", "/x"), None, "answers with 404"),
        (("/away", "/x"), None, "which is not on the public internet"),
        (("/", "/x/"), None, "names no file"),
    ):
        refused = add(*words, checksum=checksum)
        assert refused.returncode != 0 and "line 2: " in refused.stderr and message in refused.stderr, refused.stderr
    assert other.requests == []


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
        ("FROM {base}\nADD https://example.org/x.git /x", "line 2: not supported: ADD of the repository"),
        ("FROM {base}\nADD --checksum=sha256:0 https://example.org/x /x", "line 2: --checksum=sha256:0 is not valid"),
        ("FROM {base}\nADD http://127.0.0.1:1/x /x", "127.0.0.1 can't be reached"),
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
