"""Creates that name an image which is not here, and pulls by API. The registry is Debian's docker-registry."""

from __future__ import annotations

import io
import json
import os
import socket
import tarfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server
from commands import run
from registries import Registry, Relay, digest, layer, registry
from small import events, tiny_files

CONFIG = {"Env": ["PATH=/usr/bin", "GREETING=hello"], "User": "root", "WorkingDir": "/var"}


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Registry]:
    with registry(tmp_path) as running:
        yield running


@pytest.fixture
def tiny(tmp_path: Path) -> bytes:
    """A layer with bash and a few programs."""
    tiny_files(tmp_path / "tiny")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted((tmp_path / "tiny").rglob("*")):
            tar.add(path, path.relative_to(tmp_path / "tiny"), recursive=False)
    return out.getvalue()


@pytest.fixture
def serve(own_server: Callable[..., Server]) -> Callable[..., Server]:
    def start(*args: str) -> Server:
        server = own_server(args=("--default-image", "base", *args))
        server.args = tuple("2GiB" if word == "512MiB" else word for word in server.args)
        server.start()
        return server

    return start


@pytest.fixture
def relay(serve: Callable[..., Server], plain: Registry) -> Iterator[Relay]:
    """Before the registry; it ends before the server does."""
    relay = Relay(plain.host)
    yield relay
    relay.close()


def api(server: Server, **more: Any) -> httpx.Client:
    return httpx.Client(base_url=server.url, timeout=120, **more)


def stages(sandbox: dict[str, Any]) -> list[str]:
    return [stage["name"] for stage in sandbox["stages"]]


def images(server: Server) -> list[str]:
    with api(server) as http:
        return [image["name"] for image in http.get("/api/v2/images").raise_for_status().json()["images"]]


def pulling(server: Server) -> list[dict[str, Any]]:
    with api(server) as http:
        return http.get("/api/v2/images/pulls").raise_for_status().json()["pulls"]


def wait_until(what: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.1)


def left(server: Server) -> list[Path]:
    """What a pull could have left."""
    return [file for place in ("building", "trash", "layers") for file in server.data_dir.rglob(f"{place}/*")]


def test_creates_at_once_make_one_pull(serve: Callable[..., Server], plain: Registry, tiny: bytes) -> None:
    reference = f"{plain.host}/team/app:1"
    pushed = plain.push("team/app", [tiny, layer({"srv/greeting": b"from the registry"})], CONFIG)
    server = serve("--image-registry", plain.host, "--max-concurrent-creates", "4")

    def create(body: dict[str, Any]) -> dict[str, Any]:
        answer = httpx.post(f"{server.url}/api/v2/sandboxes", json=body, timeout=120)
        assert answer.status_code == 201, answer.text
        return answer.json()

    bodies = [{"name": f"one-{number}", "image": reference} for number in range(20)]
    with ThreadPoolExecutor(21) as pool:
        many = pool.submit(create, {"name": "many", "image": reference, "count": 30})
        single = list(pool.map(create, bodies))
        sandboxes = single + many.result()["sandboxes"]
    assert len(sandboxes) == 50 and all(stages(sandbox)[0] in ("pull", "admit") for sandbox in sandboxes)
    # Those that came when it was here did not wait.
    assert any("pull" in stages(sandbox) for sandbox in sandboxes)
    assert plain.requests("/v2/team/app/manifests/1") == 1

    with api(server) as http:
        run_in = lambda command: http.post("/sandbox/one-3/v1/bash/exec", json={"command": command}).json()["data"]["stdout"]
        assert run_in("cat /srv/greeting; echo; pwd; echo $GREETING") == "from the registry\n/var\nhello\n"
        # Later creates don't look for a newer one.
        later = create({"name": "later", "image": reference})
        assert "pull" not in stages(later) and later["spec"]["image"] == reference
        assert plain.requests("/v2/team/app/manifests/1") == 1
        # By its digest, it is the same image, with nothing to download.
        by_digest = create({"name": "digest", "image": f"{plain.host}/team/app:1@{pushed}"})
        assert "pull" in stages(by_digest)
    server.delete_all_sandboxes()


def test_a_pull_shows_its_progress(serve: Callable[..., Server], plain: Registry, tiny: bytes) -> None:
    for name in ("a", "b", "c"):
        plain.push(name, [tiny, layer({name: os.urandom(4 << 20)})], CONFIG)
    server = serve("--image-registry", plain.host)
    with api(server, headers={"accept": "text/event-stream"}) as http:
        body = {"name": "watched", "image": f"{plain.host}/a:1"}
        with http.stream("POST", "/api/v2/sandboxes", json=body) as answer:
            assert answer.status_code == 200 and answer.headers["content-type"] == "text/event-stream"
            *progress, (last, sandbox) = list(events(answer))
        assert (last, sandbox["name"], sandbox["state"]) == ("created", "watched", "running")
        assert progress and all(name == "pull" for name, _ in progress)
        seen = [data for _, data in progress]
        assert all(data["image"] == f"{plain.host}/a:1" and data["bytes_done"] <= data["bytes"] for data in seen), seen
        assert "pull" in stages(sandbox)
        # A create that is refused says so in the stream.
        with http.stream("POST", "/api/v2/sandboxes", json=body) as answer:
            ((name, problem),) = list(events(answer))
        assert (name, problem["code"], problem["status"]) == ("failed", "already_exists", 409)

        with http.stream("POST", "/api/v2/images/pull", json={"image": f"{plain.host}/b:1"}) as answer:
            *progress, (last, image) = list(events(answer))
        assert (last, image["name"], image["layers"], image["workdir"]) == ("pulled", f"{plain.host}/b:1", 2, "/var")
        assert image["source"].startswith(f"{plain.host}/b@sha256:") and image["shared"]

    made = run(server, "create", "by-command", "--image", f"{plain.host}/c:1")
    assert (made.returncode, made.stdout) == (0, "by-command\n"), made.stderr
    assert f"pulling {plain.host}/c:1" in made.stderr or "unpacking" in made.stderr, made.stderr
    assert run(server, "create", "by-command", "--image", f"{plain.host}/c:1").returncode == 4
    server.delete_all_sandboxes()


def test_other_interfaces_pull_too(serve: Callable[..., Server], plain: Registry, tiny: bytes) -> None:
    for name in ("old", "new", "tool"):
        plain.push(name, [tiny], CONFIG)
    server = serve("--image-registry", plain.host)
    with api(server) as http:
        made = http.post("/api/v1/sandbox", json={"name": "old", "image": f"{plain.host}/old:1"})
        assert made.status_code == 200 and made.json()["code"] in (0, 200, "0"), made.text
        headers = {"x-agent-sandbox-version": "0.8"}
        made = http.post("/api/v1/sandbox", json={"name": "new", "image": f"{plain.host}/new:1"}, headers=headers)
        assert made.is_success, made.text
    assert images(server) == [f"{plain.host}/new:1", f"{plain.host}/old:1"]
    server.delete_all_sandboxes()


def test_images_by_api(serve: Callable[..., Server], plain: Registry, tiny: bytes) -> None:
    name = f"{plain.host}/deep/path/app:1"
    plain.push("deep/path/app", [tiny], CONFIG | {"Entrypoint": ["/usr/bin/cat"], "Cmd": ["/etc/passwd"]})
    server = serve("--image-registry", plain.host)
    with api(server) as http:
        assert http.get(f"/api/v2/images/{name}").status_code == 404
        assert http.post("/api/v2/images/pull", json={}).status_code == 400
        pulled = http.post("/api/v2/images/pull", json={"image": name}).raise_for_status().json()
        assert http.get(f"/api/v2/images/{name}").json() == pulled
        # As in all paths, separators are not encoded.
        assert http.get("/api/v2/images/" + name.replace("/", "%2F")).status_code == 400
        assert (pulled["entrypoint"], pulled["cmd"]) == (["/usr/bin/cat"], ["/etc/passwd"])
        http.post("/api/v2/sandboxes", json={"name": "uses", "image": name}).raise_for_status()
        removed = http.delete(f"/api/v2/images/{name}").raise_for_status().json()
        assert removed == {"name": name, "deleted": True, "freed_bytes": 0}, "a sandbox uses its layer"
        assert http.delete(f"/api/v2/images/{name}").status_code == 404
        stdout = http.post("/sandbox/uses/v1/bash/exec", json={"command": "echo here"}).json()["data"]["stdout"]
        assert stdout == "here\n"
        assert http.put(f"/api/v2/images/{name}").status_code == 405
    server.delete_all_sandboxes()


@pytest.mark.parametrize("args", [(), ("--image-registry", "127.0.0.1:1"), ("--image-pull", "never")])
def test_nothing_is_pulled_that_is_not_permitted(serve: Callable[..., Server], plain: Registry, tiny: bytes, args: tuple) -> None:
    plain.push("app", [tiny], CONFIG)
    if "never" in args:
        args = (*args, "--image-registry", plain.host)
    server = serve(*args)
    before = (plain.blobs.parents[5] / "registry.log").read_text()
    with api(server) as http:
        refused = http.post("/api/v2/sandboxes", json={"image": f"{plain.host}/app:1"})
        assert refused.status_code == 404 and "image_registry" in refused.json()["hint"], refused.text
        refused = http.post("/api/v2/images/pull", json={"image": f"{plain.host}/app:1"})
        assert refused.status_code == 403 and "image_registry" in refused.json()["hint"], refused.text
        # All on the internet is not the host itself.
    assert (plain.blobs.parents[5] / "registry.log").read_text() == before


def test_a_rule_for_the_internet_leads_to_no_private_address(serve: Callable[..., Server], plain: Registry) -> None:
    server = serve("--image-registry", "*")
    before = (plain.blobs.parents[5] / "registry.log").read_text()
    with api(server) as http:
        for host in (plain.host, "localhost:1", "10.0.0.1", "169.254.169.254", "[::1]:5000".strip("[]")):
            refused = http.post("/api/v2/sandboxes", json={"image": f"{host}/app:1"})
            assert refused.status_code in (400, 403), refused.text
    assert (plain.blobs.parents[5] / "registry.log").read_text() == before


def test_what_a_registry_refuses(serve: Callable[..., Server], tmp_path: Path, tiny: bytes) -> None:
    with registry(tmp_path, signs_in=True) as closed:
        server = serve("--image-registry", closed.host)
        with api(server) as http:
            refused = http.post("/api/v2/sandboxes", json={"image": f"{closed.host}/app:1"})
            assert refused.status_code == 403, refused.text
            assert "registries" in refused.json()["hint"] and closed.host in refused.json()["message"], refused.text
    (tmp_path / "open").mkdir()
    with registry(tmp_path / "open") as plain:
        plain.push("app", [tiny], CONFIG)
        server = serve("--image-registry", plain.host)
        with api(server) as http:
            missing = http.post("/api/v2/sandboxes", json={"image": f"{plain.host}/app:2"})
            assert missing.status_code == 404 and "check the name" in missing.json()["hint"], missing.text
            # A layer with other bytes.
            (layer_digest,) = [
                part["digest"]
                for part in httpx.get(
                    f"http://{plain.host}/v2/app/manifests/1", headers={"accept": "application/vnd.oci.image.manifest.v1+json"}
                ).json()["layers"]
            ]
            with plain.blob(layer_digest).open("r+b") as blob:
                blob.seek(1000)
                blob.write(b"other bytes")
            lies = http.post("/api/v2/sandboxes", json={"image": f"{plain.host}/app:1"})
            assert lies.status_code == 400 and "other bytes" in lies.json()["message"], lies.text
        assert images(server) == [] and left(server) == []


def test_a_registry_that_hangs_holds_no_create_for_ever(serve: Callable[..., Server], plain: Registry, relay: Relay, tiny: bytes) -> None:
    plain.push("big", [tiny, layer({"big": os.urandom(24 << 20)})], CONFIG)
    plain.push("small", [tiny], CONFIG)
    relay.limit = 12 << 20
    server = serve("--image-registry", relay.host, "--image-registry", plain.host, "--image-pull-wait-seconds", "4")
    with api(server) as http, ThreadPoolExecutor(1) as pool:
        slow = pool.submit(http.post, "/api/v2/sandboxes", json={"name": "slow", "image": f"{relay.host}/big:1"})
        assert relay.stuck.wait(60)
        # It holds no place of those that create.
        with api(server) as other:
            other.post("/api/v2/sandboxes", json={"name": "quick", "image": f"{plain.host}/small:1"}).raise_for_status()
        late = slow.result()
    assert late.status_code == 504 and "kept for the next try" in late.json()["hint"], late.text
    assert pulling(server) == [] and images(server) == [f"{plain.host}/small:1"]
    server.delete_all_sandboxes()


def send_create(server: Server, body: dict[str, Any]) -> socket.socket:
    """Sends a create, and does not wait for its answer."""
    connection = socket.create_connection(("127.0.0.1", server.port))
    text = json.dumps(body)
    head = f"POST /api/v2/sandboxes HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\ncontent-length: {len(text)}\r\n\r\n"
    connection.sendall((head + text).encode())
    return connection


def test_a_pull_ends_with_the_last_client_that_waits(
    serve: Callable[..., Server], plain: Registry, relay: Relay, tiny: bytes
) -> None:
    plain.push("big", [tiny, layer({"big": os.urandom(24 << 20)})], CONFIG)
    relay.limit = 12 << 20
    server = serve("--image-registry", relay.host)
    clients = [send_create(server, {"image": f"{relay.host}/big:1"}) for _ in range(2)]
    assert relay.stuck.wait(60)
    wait_until(lambda: [pull["state"] for pull in pulling(server)] == ["downloading"])
    (progress,) = pulling(server)
    assert 0 < progress["bytes_done"] < progress["bytes"], progress
    clients[0].close()
    time.sleep(0.5)
    assert len(pulling(server)) == 1, "another create waits"
    clients[1].close()
    wait_until(lambda: pulling(server) == [])
    assert images(server) == []
    # The next one goes on, when the one that hangs has noticed.
    relay.limit = None
    before = relay.passed
    with api(server) as http:
        http.post("/api/v2/sandboxes", json={"name": "again", "image": f"{relay.host}/big:1"}).raise_for_status()
    assert relay.passed - before < 24 << 20, "it started again"
    server.delete_all_sandboxes()


def test_a_waiting_create_holds_its_name(serve: Callable[..., Server], plain: Registry, relay: Relay, tiny: bytes) -> None:
    plain.push("big", [tiny, layer({"big": os.urandom(24 << 20)})], CONFIG)
    relay.limit = 12 << 20
    server = serve("--image-registry", relay.host)
    waiting = send_create(server, {"name": "held", "image": f"{relay.host}/big:1"})
    assert relay.stuck.wait(60)
    with api(server) as http:
        taken = http.post("/api/v2/sandboxes", json={"name": "held", "image": "base"})
        assert taken.status_code == 409, taken.text
        assert http.get("/api/v2/sandboxes").json()["sandboxes"] == []
        waiting.close()
        wait_until(lambda: pulling(server) == [])
        wait_until(lambda: http.post("/api/v2/sandboxes", json={"name": "held", "image": "base"}).status_code == 404)


def test_a_server_that_is_killed_leaves_nothing_half_done(serve: Callable[..., Server], plain: Registry, relay: Relay, tiny: bytes) -> None:
    plain.push("big", [tiny, layer({"big": os.urandom(24 << 20)})], CONFIG)
    relay.limit = 12 << 20
    server = serve("--image-registry", relay.host)
    with api(server) as http, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(http.post, "/api/v2/sandboxes", json={"name": "x", "image": f"{relay.host}/big:1"})
        assert relay.stuck.wait(60)
        server.kill()
        assert isinstance(waiting.exception(), httpx.HTTPError)
    server.start()
    assert images(server) == [] and left(server) == []
    relay.limit = None
    before = relay.passed
    with api(server) as http:
        http.post("/api/v2/sandboxes", json={"name": "x", "image": f"{relay.host}/big:1"}).raise_for_status()
    assert relay.passed - before < 24 << 20, "it started again"
    server.delete_all_sandboxes()


def test_a_mirror_comes_first_and_may_fail(serve: Callable[..., Server], plain: Registry, tiny: bytes) -> None:
    plain.push("hub/library/app", [tiny], CONFIG)
    plain.push("other", [tiny], CONFIG)
    server = serve(
        "--image-registry", "docker.io", "--image-registry", plain.host,
        "--image-mirror", f"docker.io={plain.host}/hub", "--image-mirror", f"{plain.host}/other=127.0.0.1:1",
    )
    with api(server) as http:
        made = http.post("/api/v2/images/pull", json={"image": "app:1"}).raise_for_status().json()
        assert made["name"] == "app:1" and made["source"].startswith("docker.io/library/app@sha256:")
        http.post("/api/v2/images/pull", json={"image": f"{plain.host}/other:1"}).raise_for_status()


def test_an_image_is_its_tenants(serve: Callable[..., Server], plain: Registry, tiny: bytes) -> None:
    from tenant import TenantsServer

    secret = layer({"srv/secret": b"of one"})
    plain.push("one/app", [tiny, secret], CONFIG)
    plain.push("free", [tiny], CONFIG)
    server = serve("--image-registry", f"one={plain.host}/one", "--image-registry", f"{plain.host}/free", "--tenants")
    tenants = TenantsServer(server)
    one, two = tenants.tenant("one"), tenants.tenant("two")
    name = f"{plain.host}/one/app:1"
    made = one.json("POST", "/api/v2/sandboxes", json={"name": "mine", "image": name})
    assert made["spec"]["image_owner"] == "one"
    assert [(image["name"], image["shared"]) for image in one.json("GET", "/api/v2/images")["images"]] == [(name, False)]
    for tenant in (two, tenants.operator):
        assert tenant.json("GET", "/api/v2/images")["images"] == []
        assert tenant.http.get(f"/api/v2/images/{name}").status_code == 404
        assert tenant.http.post("/api/v2/sandboxes", json={"image": name}).status_code == 404
        assert tenant.http.delete(f"/api/v2/images/{name}").status_code == 404
    # What all may have is pulled by each, and downloaded by each: a manifest alone proves nothing.
    free = f"{plain.host}/free:1"
    blobs = f"/v2/free/blobs/"
    for tenant, downloads in ((one, 0), (two, 1), (tenants.operator, 1)):
        before = (plain.blobs.parents[5] / "registry.log").read_text().count(f'"GET {blobs}')
        assert tenant.http.post("/api/v2/sandboxes", json={"name": "free", "image": free}).status_code == 201
        after = (plain.blobs.parents[5] / "registry.log").read_text().count(f'"GET {blobs}')
        # One is the image's config.
        assert after - before == 1 + downloads, tenant.name
    assert len(list(server.data_dir.rglob("layers/*/layer.json"))) == 2, "each layer is there once"
    # The operator's is for all, a tenant's own comes before it.
    third = tenants.tenant("third")
    assert third.json("GET", "/api/v2/images")["images"][0]["shared"]
    assert not two.json("GET", "/api/v2/images")["images"][0]["shared"]
    assert third.http.delete(f"/api/v2/images/{free}").status_code == 404
    assert two.json("DELETE", f"/api/v2/images/{free}")["deleted"]
    assert two.json("GET", "/api/v2/images")["images"][0]["shared"]
    rows = tenants.operator.json("GET", "/api/v2/audit?limit=200")["rows"]
    assert {("image.remove", "ok"), ("image.remove", "not_found")} <= {(row["action"], row["outcome"]) for row in rows}
    for tenant in (one, two, tenants.operator):
        for sandbox in tenant.json("GET", "/api/v2/sandboxes")["sandboxes"]:
            tenant.json("DELETE", f"/api/v2/sandboxes/{sandbox['name']}")


def test_private_images_of_two_tenants(serve: Callable[..., Server], tmp_path: Path, tiny: bytes) -> None:
    from tenant import TenantsServer

    with registry(tmp_path, signs_in=True) as closed:
        closed.push("team/app", [tiny, layer({"srv/secret": b"x"})], CONFIG, ("tester", "secret"))
        server = serve("--image-registry", closed.host, "--tenants")
        tenants = TenantsServer(server)
        one, two = tenants.tenant("one"), tenants.tenant("two")
        name = f"{closed.host}/team/app:1"
        login = f"/api/v2/registries/{closed.host}"
        shown = one.json("PUT", login, json={"user": "tester", "password": "secret"})
        assert shown["user"] == "tester" and "secret" not in json.dumps(shown)
        assert "secret" not in one.http.get("/api/v2/registries").text and two.json("GET", "/api/v2/registries")["registries"] == []
        one.json("POST", "/api/v2/sandboxes", json={"name": "mine", "image": name})
        for _ in range(2):
            refused = two.http.post("/api/v2/sandboxes", json={"image": name})
            assert refused.status_code == 403 and "/api/v2/registries" in refused.json()["hint"], refused.text
            assert two.json("GET", "/api/v2/images")["images"] == []
            two.json("PUT", login, json={"user": "tester", "password": "wrong"})
        two.json("PUT", login, json={"user": "tester", "password": "secret"})
        # A key that may not administrate the tenant reads and changes none.
        manage = two.new_key("manage")["key"]
        for method in ("GET", "DELETE"):
            path = login if method == "DELETE" else "/api/v2/registries"
            assert httpx.request(method, server.url + path, headers={"x-api-key": manage}).status_code == 403
        server.stop()
        server.start()
        two.json("POST", "/api/v2/sandboxes", json={"name": "mine", "image": name})
        assert len(list(server.data_dir.rglob("images/*.json"))) == 2
        assert len(list(server.data_dir.rglob("layers/*/layer.json"))) == 2
        log = server.log_path.read_text()
        assert "secret" not in log and "wrong" not in log
        # A tenant's images go with it.
        tenants.operator.json("DELETE", "/api/v2/tenants/one?force=true")
        (left_one,) = server.data_dir.rglob("images/*.json")
        assert left_one.name.startswith("two=")
        two.json("DELETE", "/api/v2/sandboxes/mine")


def test_an_images_own_command_runs_when_it_is_asked_for(serve: Callable[..., Server], plain: Registry, tiny: bytes) -> None:
    user = {"User": "root", "WorkingDir": "/srv", "Env": ["PATH=/usr/bin", "WORD=of-the-image"]}
    entry = ["sh", "-c", 'echo "$0 $* $WORD"; pwd; sleep 600']
    plain.push("both", [tiny, layer({"srv": None})], user | {"Entrypoint": entry, "Cmd": ["zero", "one"]})
    plain.push("none", [tiny], CONFIG)
    server = serve("--image-registry", plain.host)

    def output(http: httpx.Client, name: str) -> str:
        text = ""

        def there() -> bool:
            nonlocal text
            text = http.get(f"/api/v2/sandboxes/{name}/logs").text
            return text.count("\n") >= 2

        wait_until(there, 30)
        return text

    with api(server) as http:

        def create(name: str, image: str, **more: Any) -> None:
            http.post("/api/v2/sandboxes", json={"name": name, "image": f"{plain.host}/{image}:1", **more}).raise_for_status()

        create("whole", "both", image_command=True)
        assert output(http, "whole") == "zero one of-the-image\n/srv\n"
        create("replaced", "both", image_command=True, args=["a", "b c"], env={"WORD": "of-the-create"}, workdir="/tmp")
        assert output(http, "replaced") == "a b c of-the-create\n/tmp\n"
        create("plain", "both", args=["sh", "-c", "echo own; pwd"])
        assert output(http, "plain").startswith("own\n/srv\n")
        create("quiet", "both")
        create("without", "none", image_command=True)
        for name in ("quiet", "without"):
            assert http.get(f"/api/v2/sandboxes/{name}/logs").status_code == 404 or http.get(f"/api/v2/sandboxes/{name}/logs").text == ""
    made = run(server, "create", "by-command", "--image", f"{plain.host}/both:1", "--image-command", "--", "x")
    assert made.returncode == 0, made.stderr
    with api(server) as http:
        assert output(http, "by-command") == "x  of-the-image\n/srv\n"
    server.delete_all_sandboxes()
