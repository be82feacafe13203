"""Images of other tools: what `docker save` writes, and registries. The registry is Debian's docker-registry."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from arenite_server import Server, binary
from commands import environment, run
from registries import Registry, Relay, digest, docker_archive, docker_config, layer, registry


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Registry]:
    with registry(tmp_path) as running:
        yield running


@pytest.fixture
def empty(own_server: Callable[..., Server]) -> Server:
    """A server without an image."""
    server = own_server(args=("--default-image", "base"))
    # For a layer of base and what is unpacked of it.
    server.args = tuple("1GiB" if word == "512MiB" else word for word in server.args)
    server.start()
    return server


def inspected(server: Server, name: str) -> dict:
    shown = run(server, "image", "inspect", name, "--json")
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)


def names(server: Server) -> list[str]:
    return [image["name"] for image in json.loads(run(server, "image", "ls", "--json").stdout)["images"]]


def in_sandbox(server: Server, image: str, command: str) -> str:
    with httpx.Client(base_url=server.url, timeout=120) as api:
        api.post("/api/v2/sandboxes", json={"name": "pulled", "image": image}).raise_for_status()
        answer = api.post("/sandbox/pulled/v1/bash/exec", json={"command": command}).raise_for_status().json()
        api.delete("/api/v2/sandboxes/pulled").raise_for_status()
    return answer["data"]["stdout"]


def test_an_image_goes_through_a_registry_and_runs(server: Server, empty: Server, plain: Registry) -> None:
    reference = f"{plain.host}/team/slim:1.0"
    pushed = run(server, "image", "push", "base", reference)
    assert pushed.returncode == 0, pushed.stderr
    again = run(server, "image", "push", "base", reference)
    assert again.stdout == pushed.stdout and "was there" in again.stderr and "] sent" not in again.stderr, again.stderr

    pulled = run(empty, "image", "pull", reference)
    assert (pulled.returncode, pulled.stdout) == (0, f"{reference}\n"), pulled.stderr
    image = inspected(empty, reference)
    assert image["source"] == f"{plain.host}/team/slim@{pushed.stdout.strip()}"
    assert image["config"] == inspected(server, "base")["config"]
    history = run(empty, "image", "history", reference)
    assert history.stdout.count("\n") == len(image["layers"]) + 1, history.stdout

    # By its digest, it is the same image: nothing is downloaded.
    by_digest = run(empty, "image", "pull", image["source"], "slim")
    assert by_digest.returncode == 0 and " 0 to download" in by_digest.stderr, by_digest.stderr
    command = "id -un; python3 -c 'print(6 * 7)'; sudo id -un; stat -c '%U %a' /usr/bin/sudo ~"
    for name in (reference, "slim"):
        assert in_sandbox(empty, name, command) == "gem\n42\nroot\nroot 4755\ngem 755\n"


def test_a_layer_of_others_changes_what_the_sandbox_sees(server: Server, empty: Server, tmp_path: Path) -> None:
    """A saved base, with a foreign layer on it: whiteouts, an opaque directory, and a user by number."""
    assert run(server, "image", "save", "base", "-o", str(tmp_path / "base.tar")).returncode == 0
    subprocess.run(["tar", "-xf", "base.tar", "--one-top-level=base"], cwd=tmp_path, check=True)
    manifest = json.loads((tmp_path / "base/manifest.json").read_text())[0]
    config = json.loads((tmp_path / "base" / manifest["Config"]).read_text())
    top = layer({
        "etc/.wh.hostname": b"",
        "etc/.wh.debian_version": b"",
        "opt/.wh..wh..opq": b"",
        "opt/own": b"above",
        "usr/share/.wh.doc": b"",
        "usr/share/doc": None,
        "usr/share/doc/only": b"this",
    })
    stored = tmp_path / "base/blobs/sha256" / digest(top)
    stored.write_bytes(top)
    config["rootfs"]["diff_ids"].append(f"sha256:{digest(top)}")
    config["config"] |= {"User": "1000:1000", "WorkingDir": "/opt", "Entrypoint": ["/bin/app"], "Labels": None}
    text = json.dumps(config).encode()
    (tmp_path / "base/blobs/sha256" / digest(text)).write_bytes(text)
    manifest |= {"Config": f"blobs/sha256/{digest(text)}", "RepoTags": ["docker.io/library/changed:latest"]}
    manifest["Layers"].append(f"blobs/sha256/{digest(top)}")
    (tmp_path / "base/manifest.json").write_text(json.dumps([manifest]))
    loaded = run(empty, "image", "load", str(tmp_path / "base"))
    assert (loaded.returncode, loaded.stdout) == (0, "changed\n"), loaded.stderr
    assert inspected(empty, "changed")["config"]["entrypoint"] == ["/bin/app"]
    command = "id -u; id -un; pwd; cat own; ls /etc/debian_version; ls /usr/share/doc; ls /opt"
    assert in_sandbox(empty, "changed:latest", command) == "1000\ngem\n/opt\naboveonly\nown\n"


@pytest.mark.parametrize("compressed", [False, True])
def test_images_of_other_shapes_are_loaded_pushed_and_pulled(
    empty: Server, plain: Registry, tmp_path: Path, compressed: bool
) -> None:
    """As alpine, with busybox in place of musl's; as distroless; and one binary alone."""
    program = Path("/bin/busybox").read_bytes()
    passwd = b"root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532::/home/nonroot:/sbin/nologin\n"
    alpine = [
        layer({"bin": None, "bin/busybox": program, "bin/sh": "busybox", "etc": None, "etc/passwd": passwd}, ("bin/busybox",)),
        layer({"srv/app": b"x", "etc/.wh.passwd": b""}),
        # What WORKDIR leaves, twice.
        layer({}),
        layer({}),
    ]
    shapes = {
        "alpine-like:3": (alpine, {"Cmd": ["/bin/sh"], "Env": ["PATH=/bin"]}),
        "distroless-like:1": ([layer({"etc/passwd": passwd, "app": program}, ("app",))], {"User": "65532", "Entrypoint": ["/app"]}),
        "scratch-like:1": ([layer({"app": program}, ("app",))], {"Entrypoint": ["/app"], "ExposedPorts": {"80/tcp": {}}}),
    }
    for name, (layers, config) in shapes.items():
        file = docker_archive(tmp_path / "image.tar", name, layers, config, compressed)
        loaded = run(empty, "image", "load", str(file))
        assert (loaded.returncode, loaded.stdout) == (0, f"{name}\n"), loaded.stderr
        image = inspected(empty, name)
        kept = image["config"]
        assert kept.get("entrypoint", []) == config.get("Entrypoint", []) and kept.get("cmd", []) == config.get("Cmd", [])
        assert kept["user"] == config.get("User") and kept.get("exposed_ports", []) == list(config.get("ExposedPorts", {}))
        assert len({layer["digest"] for layer in image["layers"]}) == len(layers)

        reference = f"{plain.host}/{name}"
        pushed = run(empty, "image", "push", name, reference)
        assert pushed.returncode == 0, pushed.stderr
        pulled = run(empty, "image", "pull", reference)
        assert pulled.returncode == 0, pulled.stderr
        assert inspected(empty, reference)["config"] == kept


def test_a_registry_with_users(empty: Server, tmp_path: Path) -> None:
    file = docker_archive(tmp_path / "image.tar", "app:1", [layer({"app": b"x"})])
    assert run(empty, "image", "load", str(file)).returncode == 0
    with registry(tmp_path, signs_in=True) as closed:
        reference = f"{closed.host}/app:1"

        def config(password: str) -> tuple[str, str]:
            return ("--docker-config", str(docker_config(tmp_path, closed.host, password)))

        for more in (("--docker-config", str(tmp_path / "missing")), config("wrong")):
            for words in (("push", "app:1", reference), ("pull", reference)):
                refused = run(empty, "image", *words, *more)
                assert refused.returncode == 1 and f"docker login {closed.host}" in refused.stderr, refused.stderr
                assert "wrong" not in refused.stderr.replace("wrong.json", "")
        pushed = run(empty, "image", "push", "app:1", reference, *config("secret"))
        assert pushed.returncode == 0, pushed.stderr
        pulled = run(empty, "image", "pull", reference, *config("secret"))
        assert pulled.returncode == 0, pulled.stderr
        unknown = run(empty, "image", "pull", f"{closed.host}/app:2", *config("secret"))
        assert unknown.returncode == 1 and "no such image" in unknown.stderr, unknown.stderr


def big_image(empty: Server, plain: Registry, tmp_path: Path) -> str:
    """An image of 24 MiB that do not compress, in the registry and not on the server. Returns its layer's digest there."""
    file = docker_archive(tmp_path / "image.tar", "big:1", [layer({"big": os.urandom(24 << 20)})])
    assert run(empty, "image", "load", str(file)).returncode == 0
    pushed = run(empty, "image", "push", "big:1", f"{plain.host}/big:1")
    assert pushed.returncode == 0, pushed.stderr
    assert run(empty, "image", "rm", "big:1").returncode == 0
    manifest = httpx.get(
        f"http://{plain.host}/v2/big/manifests/1", headers={"accept": "application/vnd.oci.image.manifest.v1+json"}
    )
    return manifest.json()["layers"][0]["digest"]


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_pull_goes_on(empty: Server, plain: Registry, tmp_path: Path, end: signal.Signals) -> None:
    big_image(empty, plain, tmp_path)
    relay = Relay(plain.host)
    relay.limit = 16 << 20
    command = [str(binary()), "image", "pull", f"{relay.host}/big:1"]
    pull = subprocess.Popen(command, env=environment(empty), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert relay.stuck.wait(60), "the pull ended before it was interrupted"
    pull.send_signal(end)
    pull.communicate(timeout=60)
    assert pull.returncode == (130 if end == signal.SIGINT else -end) and names(empty) == []
    relay.limit = None
    before = relay.passed
    again = run(empty, "image", "pull", f"{relay.host}/big:1")
    assert again.returncode == 0, again.stderr
    # Some of the first 16 MiB were on the way, and all are 24.
    assert relay.passed - before < 20 << 20, "it started again"
    relay.close()


def test_a_registry_that_lies_leaves_nothing(empty: Server, plain: Registry, tmp_path: Path) -> None:
    blob_digest = big_image(empty, plain, tmp_path)
    with plain.blob(blob_digest).open("r+b") as blob:
        blob.seek(1 << 20)
        blob.write(b"other bytes")
    used = sum(file.stat().st_size for file in empty.data_dir.rglob("downloads/*"))
    pulled = run(empty, "image", "pull", f"{plain.host}/big:1")
    assert pulled.returncode == 1 and "other bytes" in pulled.stderr and "hint" in pulled.stderr, pulled.stderr
    assert names(empty) == []
    left = [file for place in ("downloads", "building", "layers") for file in empty.data_dir.rglob(f"{place}/*")]
    assert used == 0 and left == [], left


def test_references_that_are_none_and_registries_that_are_not_there(empty: Server) -> None:
    for reference in ("Upper", "a//b", "https://127.0.0.1/a", "a@sha256:1"):
        refused = run(empty, "image", "pull", reference)
        assert refused.returncode == 2 and "is not a reference" in refused.stderr, refused.stderr
    closed = run(empty, "image", "pull", "127.0.0.1:1/app")
    assert closed.returncode == 1 and "can't be reached" in closed.stderr, closed.stderr
