"""Builds of images by API: a tar of the context goes in, and an image of the tenant comes out, or nothing."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server
from registries import layer, registry
from small import events, tiny_files, tiny_image
from tenant import Tenant, TenantsServer

MIB = 1 << 20
#: A command that waits, and that no other test has.
WAITS = "sleep 86321"


@pytest.fixture
def serve(own_server: Callable[..., Server]) -> Callable[..., Server]:
    def start(*args: str) -> Server:
        server = own_server(args=("--default-image", "tiny", *args))
        server.args = tuple("2GiB" if word == "512MiB" else word for word in server.args)
        server.start()
        tiny_image(server.data_dir / "pool")
        return server

    return start


@pytest.fixture
def server(serve: Callable[..., Server]) -> Iterator[Server]:
    server = serve()
    yield server
    if server.process is not None:
        server.delete_all_sandboxes()


def context(dockerfile: str | None, files: dict[str, bytes] | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        given = {"Dockerfile": dockerfile.encode()} if dockerfile is not None else {}
        for name, content in (given | (files or {})).items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o644
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def build(where: Server | Tenant, body: bytes, name: str = "built", **query: Any) -> httpx.Response:
    headers = {"content-type": "application/x-tar"} | (where.headers if isinstance(where, Tenant) else {})
    return httpx.post(f"{where.url}/api/v2/images/build", params={"image": name, **query}, content=body, headers=headers, timeout=180)


def built(where: Server | Tenant, body: bytes, name: str = "built", **query: Any) -> dict[str, Any]:
    answer = build(where, body, name, **query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def output(url: str, name: str, command: str, headers: dict[str, str] | None = None) -> str:
    answer = httpx.post(f"{url}/sandbox/{name}/v1/bash/exec", json={"command": command}, headers=headers, timeout=60)
    return answer.raise_for_status().json()["data"]["stdout"]


def left(server: Server) -> list[str]:
    """What a build could leave on disk, without the layers of `tiny`."""
    pool = server.data_dir / "pool"
    found = [path for place in ("building", "trash", "layers", "downloads") for path in (pool / place).iterdir()]
    found += [path for path in (server.data_dir / "run").iterdir() if path.name.startswith(("step-", "build-"))]
    (tiny,) = json.loads((pool / "images/tiny.json").read_text())["layers"]
    return sorted(path.name for path in found if path.name != tiny)


def waiting() -> list[int]:
    """The processes of steps that wait."""
    found = subprocess.run(["pgrep", "--full", f"^{WAITS}"], capture_output=True, text=True).stdout
    return [int(pid) for pid in found.split()]


def within(seconds: float, done: Callable[[], bool], what: Callable[[], object] = lambda: "") -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


STAGES = """\
ARG BASE=tiny
FROM $BASE AS maker
ARG GREETING=none
WORKDIR /work
COPY sub/ .
RUN echo "first line"; echo "second: $GREETING" | cat > made; cat file

FROM tiny
ENV NAME=value
COPY --from=maker --chmod=640 /work/made /srv/made
RUN --mount=type=cache,target=/cache echo kept > /cache/x; ls /cache
USER root
LABEL part=test
ENTRYPOINT ["/bin/cat"]
CMD ["/srv/made"]
"""


def test_an_image_is_built_and_its_log_is_seen(server: Server) -> None:
    body = context(STAGES, {"sub/file": b"from the context\n", "sub/left-out": b"x", ".dockerignore": b"sub/left-out\n"})
    query = {"image": "team/app:1", "build_arg": ["GREETING=hello"], "label": ["by=api"]}
    with httpx.Client(base_url=server.url, timeout=180) as http:
        headers = {"accept": "text/event-stream"}
        with http.stream("POST", "/api/v2/images/build", params=query, content=gzip.compress(body), headers=headers) as answer:
            assert answer.status_code == 200 and answer.headers["content-type"] == "text/event-stream"
            *seen, (last, image) = list(events(answer))
        assert (last, image["name"], image["shared"]) == ("built", "team/app:1", True)
        assert image["labels"] == {"part": "test", "by": "api"} and image["entrypoint"] == ["/bin/cat"]
        steps = [data for name, data in seen if name == "step"]
        assert [step["step"] for step in steps] == list(range(1, steps[-1]["of"] + 1))
        assert steps[0]["text"].startswith("FROM") and len([1 for name, _ in seen if name == "step_done"]) == len(steps)
        lines = [data["line"] for name, data in seen if name == "log"]
        assert lines == ["first line", "from the context", "x"], lines
        assert http.get("/api/v2/images/team/app:1").json() == image

        http.post("/api/v2/sandboxes", json={"name": "uses", "image": "team/app:1"}).raise_for_status()
        assert output(server.url, "uses", "cat /srv/made; stat -c %a /srv/made; echo $NAME; ls /srv") == "second: hello\n640\nvalue\nmade\n"
        # The second time, all steps are there.
        again = http.post("/api/v2/images/build", params=query | {"image": "second"}, content=body).raise_for_status().json()
        assert again["digest"] != "" and again["layers"] == image["layers"]
        with http.stream("POST", "/api/v2/images/build", params=query, content=body, headers=headers) as answer:
            done = [data for name, data in events(answer) if name == "step_done"]
        final = [step["step"] for step in steps if "COPY --from" in step["text"] or step["text"].startswith("RUN --mount")]
        assert all(step["cached"] for step in done if step["step"] in final), done
    server.delete_all_sandboxes()
    for name in ("team/app:1", "second"):
        httpx.delete(f"{server.url}/api/v2/images/{name}").raise_for_status()
    assert left(server) == [], "layers of a stage or an image that is gone"


def test_a_target_and_another_dockerfile(server: Server) -> None:
    files = {"deploy/My.Dockerfile": STAGES.encode(), "sub/file": b"x", "deploy/My.Dockerfile.dockerignore": b"nothing\n"}
    image = built(server, context(None, files), dockerfile="deploy/My.Dockerfile", target="maker")
    assert image["workdir"] == "/work" and image["entrypoint"] == []
    missing = build(server, context(None, files))
    assert missing.status_code == 400 and "Dockerfile" in missing.json()["detail"], missing.text
    assert "there is no stage" in build(server, context(STAGES), target="other").json()["detail"]


def test_a_failed_step_says_which_and_why(server: Server) -> None:
    body = context("FROM tiny\nRUN echo fine\nRUN for i in 1 2 3; do echo line $i; done; \\\n  exit 3\nRUN echo never\n")
    failed = build(server, body)
    problem = failed.json()
    assert failed.status_code == 400 and "line 3" in problem["detail"] and "exit code 3" in problem["detail"], problem
    where = problem["build"]
    assert (where["step"], where["line"], where["exit_code"], where["log"]) == (3, 3, 3, ["line 1", "line 2", "line 3"])
    assert where["instruction"].startswith("RUN for i in")
    with httpx.stream(
        "POST", f"{server.url}/api/v2/images/build?image=x", content=body, headers={"accept": "text/event-stream"}, timeout=60
    ) as answer:
        *_, (last, data) = list(events(answer))
    assert (last, data["build"]["line"]) == ("failed", 3)
    parse = build(server, context("FROM tiny\nBREW coffee\n")).json()
    assert (parse["build"]["line"], parse["build"]["step"]) == (2, None), parse
    assert build(server, context("FROM nobody/has:this\n")).status_code == 404
    bootstrap = build(server, context("FROM debootstrap:trixie\n"))
    assert bootstrap.status_code == 400 and "by API" in bootstrap.json()["detail"], bootstrap.text
    for address in (server.url, "https://example.org/"):
        refused = build(server, context(f"FROM tiny\nADD {address}/x /\n"))
        assert refused.status_code == 400 and "may not download" in refused.json()["detail"], refused.text
    assert left(server) == []


def special(name: str, kind: bytes, target: str = "", content: bytes = b"") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname, info.size = kind, target, len(content)
        tar.addfile(info, io.BytesIO(content))
        dockerfile = tarfile.TarInfo("Dockerfile")
        text = b"FROM tiny\nCOPY . /srv\n"
        dockerfile.size = len(text)
        tar.addfile(dockerfile, io.BytesIO(text))
    return out.getvalue()


def bomb(size: int) -> bytes:
    """A sparse file, in a few bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("GNUSparseFile.0/bomb")
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "bomb", "GNU.sparse.realsize": str(size)}
        content = b"0\n".ljust(512, b"\0")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


HOSTILE: dict[str, tuple[bytes, int, str]] = {
    "a name above": (special("../escaped", tarfile.REGTYPE, content=b"x"), 400, "leads out"),
    "a name above in the middle": (special("a/../../escaped", tarfile.REGTYPE, content=b"x"), 400, "leads out"),
    "a hard link out": (special("x", tarfile.LNKTYPE, "../../etc/passwd"), 400, "leads out"),
    "a hard link to the host": (special("x", tarfile.LNKTYPE, "/etc/passwd"), 400, "not in the context"),
    "a device": (special("dev/sda", tarfile.BLKTYPE), 400, "device"),
    "a FIFO": (special("pipe", tarfile.FIFOTYPE), 400, "FIFO"),
    "a large sparse file": (bomb(1 << 40), 413, "bytes"),
    "not a tar": (b"x" * 2048, 400, "not a tar"),
    "nothing": (b"", 400, "Dockerfile"),
    "a broken gzip": (gzip.compress(context("FROM tiny\n"))[:-20], 400, "context"),
    "bzip2": (b"BZh9" + b"x" * 100, 400, "bzip2"),
    "a tar that ends early": (context("FROM tiny\n", {"f": b"x" * 5000})[:3000], 400, "context"),
    "a Dockerfile that leads out": (special("Own", tarfile.SYMTYPE, "/etc/hostname"), 400, "no file"),
}


@pytest.mark.parametrize("case", list(HOSTILE))
def test_hostile_contexts_are_refused_and_leave_nothing(module_small: Server, case: str) -> None:
    body, status, said = HOSTILE[case]
    query = {"dockerfile": "Own"} if "Dockerfile" in case else {}
    refused = build(module_small, body, **query)
    assert refused.status_code == status and said in refused.json()["detail"], refused.text
    assert left(module_small) == []
    assert not Path("/escaped").exists()


@pytest.fixture(scope="module")
def module_small(module_server: Callable[..., Server]) -> Server:
    server = module_server(args=("--default-image", "tiny"))
    server.start()
    tiny_image(server.data_dir / "pool")
    return server


def test_a_bomb_is_refused(module_small: Server) -> None:
    def zeros() -> Iterator[bytes]:
        # 5 GiB in a few megabytes.
        packed = gzip.compress(bytes(16 * MIB))
        info = tarfile.TarInfo("zeros")
        info.size = 5 << 30
        yield gzip.compress(info.tobuf(tarfile.GNU_FORMAT))
        for _ in range(320):
            yield packed

    try:
        refused = httpx.post(f"{module_small.url}/api/v2/images/build?image=x", content=zeros(), timeout=180)
    except httpx.WriteError:
        pass  # It is refused before it was sent.
    else:
        assert refused.status_code == 413, refused.text
    within(10, lambda: left(module_small) == [])


def test_links_of_a_context_lead_nowhere_on_the_host(server: Server) -> None:
    # Unpacked through a link, and copied through one.
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, target in (("dir", "/etc"), ("link", "/etc/shadow")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
        for name, text in (("dir/arenite-escaped", b"x"), ("Dockerfile", b"FROM tiny\nCOPY link /srv/link\n")):
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
    refused = build(server, out.getvalue())
    assert refused.status_code in (200, 400), refused.text
    assert not Path("/etc/arenite-escaped").exists()
    if refused.status_code == 200:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            http.post("/api/v2/sandboxes", json={"name": "linked", "image": "built"}).raise_for_status()
        assert "root:" not in output(server.url, "linked", "cat /srv/link")


def start_waiting(server: Server, headers: dict[str, str] | None = None, name: str = "never") -> socket.socket:
    """Sends a build with a step that waits, and does not read its answer."""
    body = context(f"FROM tiny\nRUN echo one > /one\nRUN echo started; {WAITS}; true\n", {"file": b"x"})
    connection = socket.create_connection(("127.0.0.1", server.port))
    more = "".join(f"{key}: {value}\r\n" for key, value in (headers or {}).items())
    head = f"POST /api/v2/images/build?image={name} HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\n{more}content-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


@pytest.mark.parametrize("accept", ["text/event-stream", "application/json"])
def test_a_client_that_leaves_cancels_its_build(server: Server, accept: str) -> None:
    connection = start_waiting(server, {"accept": accept})
    within(30, lambda: len(waiting()) == 1, lambda: server.log_tail())
    connection.close()
    within(15, lambda: waiting() == [] and left(server) == [], lambda: (waiting(), left(server), server.log_tail()))
    assert httpx.get(f"{server.url}/api/v2/images/never").status_code == 404


def test_a_client_that_leaves_while_it_sends_leaves_nothing(server: Server) -> None:
    body = context("FROM tiny\n", {"big": os.urandom(8 * MIB)})
    connection = socket.create_connection(("127.0.0.1", server.port))
    head = f"POST /api/v2/images/build?image=x HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body[: 4 * MIB])
    within(10, lambda: left(server) != [])
    connection.close()
    within(10, lambda: left(server) == [], lambda: left(server))


def test_a_killed_server_leaves_nothing_when_it_is_back(server: Server) -> None:
    connection = start_waiting(server)
    within(30, lambda: len(waiting()) == 1, lambda: server.log_tail())
    server.kill()
    connection.close()
    assert left(server) != []
    server.start()
    within(10, lambda: waiting() == [] and left(server) == [], lambda: (waiting(), left(server)))
    with httpx.Client(base_url=server.url, timeout=60) as http:
        assert http.get("/api/v2/quarantine").json()["quarantine"] == []
        assert http.get("/api/v2/images/never").status_code == 404
    built(server, context("FROM tiny\nRUN echo again\n"))


def test_a_server_that_stops_ends_its_builds(server: Server) -> None:
    connection = start_waiting(server)
    within(30, lambda: len(waiting()) == 1, lambda: server.log_tail())
    begun = time.monotonic()
    server.stop()
    assert time.monotonic() - begun < 20 and waiting() == []
    connection.close()
    server.start()
    assert left(server) == []


def test_steps_have_the_network_of_sandboxes_or_none(server: Server) -> None:
    secret = "a-service-of-the-host"
    with socket.create_server(("0.0.0.0", 0)) as listener:
        stopped = threading.Event()

        def answer() -> None:
            while not stopped.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                connection.sendall(f"{secret}\n".encode())
                connection.close()

        threading.Thread(target=answer, daemon=True).start()
        port = listener.getsockname()[1]
        addresses = {"127.0.0.1", *subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()}
        probes = "; ".join(f"(cat < /dev/tcp/{address}/{port}) 2>/dev/null || echo closed" for address in addresses if ":" not in address)
        text = f'FROM tiny\nSHELL ["/bin/bash", "-c"]\nRUN {probes}; cat /proc/net/dev; cat /etc/resolv.conf\n'
        for query, has_link in (({}, True), ({"network": "none"}, False)):
            with httpx.stream(
                "POST",
                f"{server.url}/api/v2/images/build",
                params={"image": "net", **query},
                content=context(text),
                headers={"accept": "text/event-stream"},
                timeout=60,
            ) as response:
                *seen, (last, _) = list(events(response))
            lines = [data["line"] for name, data in seen if name == "log"]
            assert last == "built" and secret not in "\n".join(lines) and "closed" in lines, lines
            links = {found[1] for line in lines if (found := re.match(r"\s*(\w+): +\d", line))}
            assert links == ({"lo", "eth0"} if has_link else {"lo"}), lines
            assert any(line.startswith("nameserver") for line in lines) == has_link, lines
        stopped.set()
    # Not even by name.
    assert build(server, context(text), network="host").status_code == 400


def test_steps_have_limits(server: Server) -> None:
    memory = build(server, context("FROM tiny\nRUN dd if=/dev/zero of=/dev/null bs=400M count=1\n"), memory_bytes=128 * MIB)
    assert memory.status_code == 400, memory.text
    assert any("128 MiB of memory" in line for line in memory.json()["build"]["log"]), memory.text
    # While it writes, and also if it was fast.
    for rest in (f"; {WAITS}", ""):
        begun = time.monotonic()
        text = f"FROM tiny\nRUN echo x > /small\nRUN dd if=/dev/urandom of=/big bs=1M count=100{rest}\n"
        disk = build(server, context(text), disk_bytes=32 * MIB)
        assert disk.status_code == 413 and "33554432" in disk.json()["detail"], disk.text
        assert disk.json()["build"]["line"] == 3 and time.monotonic() - begun < 60
    assert build(server, context("FROM tiny\n"), memory_bytes=1).status_code == 400
    assert waiting() == [] and left(server) == []


def test_a_base_is_pulled_by_the_rules_of_creates(serve: Callable[..., Server], tmp_path: Path) -> None:
    tiny_files(tmp_path / "tiny")
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted((tmp_path / "tiny").rglob("*")):
            tar.add(path, path.relative_to(tmp_path / "tiny"), recursive=False)
    with registry(tmp_path) as plain:
        plain.push("team/base", [out.getvalue(), layer({"srv/base": b"pulled"})], {"Env": ["PATH=/usr/bin"], "User": "root"})
        server = serve("--image-registry", f"{plain.host}/team")
        dockerfile = f"FROM {plain.host}/team/base:1\nRUN cat /srv/base > /srv/copy\n"
        with httpx.stream(
            "POST",
            f"{server.url}/api/v2/images/build?image=x",
            content=context(dockerfile),
            headers={"accept": "text/event-stream"},
            timeout=60,
        ) as answer:
            seen = [name for name, _ in events(answer)]
        assert seen[0] == "pull" and seen[-1] == "built", seen
        # One that no rule names.
        refused = build(server, context(f"FROM {plain.host}/other/base:1\n"))
        assert refused.status_code == 404, refused.text
        copied = build(server, context(f"FROM tiny\nCOPY --from={plain.host}/team/base:1 /srv/base /srv/\n"))
        assert copied.status_code == 200, copied.text


def test_tenants_build_for_themselves(serve: Callable[..., Server]) -> None:
    server = serve("--tenants")
    tenants = TenantsServer(server)
    one, two = tenants.tenant("one"), tenants.tenant("two")
    body = context("FROM tiny\nARG WORD=none\nRUN echo $WORD > /srv-word; cat /srv-word\n")
    image = built(one, body, "private/app:1", build_arg="WORD=secret")
    assert not image["shared"]
    assert two.http.get("/api/v2/images/private/app:1").status_code == 404
    assert build(two, context("FROM private/app:1\n"), "mine").status_code == 404
    assert two.http.post("/api/v2/sandboxes", json={"image": "private/app:1"}).status_code == 404
    assert "private/app:1" not in [found["name"] for found in tenants.operator.json("GET", "/api/v2/images")["images"]]
    # The owner starts from it.
    assert built(one, context("FROM private/app:1\nRUN cat /srv-word\n"), "next")["layers"] == image["layers"] + 1
    # Steps are reused by their own tenant alone.
    with two.http.stream(
        "POST",
        "/api/v2/images/build",
        params={"image": "own", "build_arg": "WORD=secret"},
        content=body,
        headers={"accept": "text/event-stream"},
    ) as answer:
        done = [data for name, data in events(answer) if name == "step_done"]
    assert not any(step["cached"] for step in done), done

    rows = tenants.operator.json("GET", "/api/v2/audit?tenant=one")["rows"]
    assert ("image.build", "private/app:1", "ok") in [(row["action"], row["object"], row["outcome"]) for row in rows]
    # Rights, and quotas.
    reader = one.new_key("read")["key"]
    assert build(Tenant(one.url, "one", reader), body).status_code == 403
    tenants.operator.json("PATCH", "/api/v2/tenants/one", json={"limits": {"memory_bytes": 256 * MIB}})
    refused = build(one, body)
    assert refused.status_code == 403 and refused.json()["quota"]["quota"] == "memory_bytes", refused.text
    built(one, body, "small", memory_bytes=128 * MIB)
    tenants.operator.json("PATCH", "/api/v2/tenants/one", json={"min_tier": "gvisor"})
    weak = build(one, body, memory_bytes=128 * MIB)
    assert weak.status_code in (501, 424), weak.text


def test_builds_at_once_are_bounded(serve: Callable[..., Server]) -> None:
    server = serve("--tenants")
    tenants = TenantsServer(server)
    one, two = tenants.tenant("one"), tenants.tenant("two")
    connections = [start_waiting(server, one.headers, f"slow-{number}") for number in range(2)]
    within(30, lambda: len(waiting()) == 2, lambda: server.log_tail())
    refused = build(one, context("FROM tiny\n"))
    assert refused.status_code == 429 and "retry-after" in refused.headers, refused.text
    # Another's builds, pulls and removals go on meanwhile.
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(built, two, context(f"FROM tiny\nRUN echo {number}\n"), f"app-{number}") for number in range(2)]
        assert [one["name"] for one in (done.result() for done in both)] == ["app-0", "app-1"]
    assert two.http.delete("/api/v2/images/app-0").status_code == 200
    for connection in connections:
        connection.close()
    within(15, lambda: waiting() == [])
    within(10, lambda: build(one, context("FROM tiny\n")).status_code == 200)
