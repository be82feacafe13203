"""Secrets: the server that should get one gets it, and no sandbox ever has it."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from arenite_server import Server
from authority import Authority
from commands import run
from isolation.outside import trusted_names
from isolation.test_network import PUBLIC, WORLD, reaches, world  # noqa: F401
from sandboxes import LiveSandbox
from waiting import until

API, OTHER = "api.secrets.test", "other.secrets.test"
VALUE = f"t0p+secret/{uuid.uuid4().hex}"
#: With characters that JSON, queries and forms write in another way.
BODY_VALUE = f'b0dy"secret&{uuid.uuid4().hex}'


class Upstream:
    """What the fake service got."""

    def __init__(self, log: Path):
        self.log = log

    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def last(self) -> dict[str, Any]:
        return self.requests()[-1]


@pytest.fixture(scope="module")
def upstream(server: Server, world: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:  # noqa: F811
    folder = tmp_path_factory.mktemp("upstream")
    authority = Authority(folder, f"DNS:{API}, DNS:{OTHER}")
    log = folder / "requests"
    log.touch()
    script = Path(__file__).parent / "fake_api.py"
    service = subprocess.Popen(
        ["ip", "netns", "exec", WORLD, sys.executable, str(script), PUBLIC[0], str(authority.cert), str(authority.key), str(log), str(repositories(folder))]
    )
    try:
        with trusted_names(server, folder, authority, ".secrets.test", PUBLIC[0]):
            until(lambda: reaches(PUBLIC[0], 443) and reaches(PUBLIC[0], 80))
            yield Upstream(log)
    finally:
        service.terminate()
        service.wait()


def repositories(folder: Path) -> Path:
    """A repository that needs the value as a password."""
    root, work = folder / "repositories", folder / "work"
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-C", str(work)]
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    (work / "file").write_text("cloned\n")
    for words in (["add", "file"], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(work), str(root / "private.git")], check=True)
    subprocess.run(["git", "-C", str(root / "private.git"), "update-server-info"], check=True)
    (root / "login").write_text(f"user:{VALUE}")
    return root


def put(server: Server, name: str, **secret: Any) -> dict[str, Any]:
    answer = httpx.put(f"{server.url}/api/v2/secrets/{name}", json=secret, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def secrets(server: Server, upstream: Upstream) -> Iterator[None]:
    put(server, "api", value=VALUE, hosts=[API])
    put(server, "body", value=BODY_VALUE, hosts=[API], places=["body", "query"])
    yield
    for name in ("api", "body"):
        httpx.delete(f"{server.url}/api/v2/secrets/{name}")


def create(server: Server, **spec: Any) -> LiveSandbox:
    name = f"secret-{uuid.uuid4().hex[:6]}"
    network = {"mode": "allowlist", "allow": [f"*.secrets.test:80,443"]}
    body = {"name": name, "image": "code", "network": network, "env": {"KEY": "{{secret:api}}", "BODY": "x{{secret:body}}"}} | spec
    answer = httpx.post(f"{server.url}/api/v2/sandboxes", json=body, timeout=120)
    assert answer.status_code == 201, answer.text
    return LiveSandbox(server.url, name)


@pytest.fixture(scope="module")
def box(server: Server, secrets: None) -> Iterator[LiveSandbox]:
    live = create(server)
    yield live
    live.delete()


def placeholder(box: LiveSandbox, name: str = "api") -> str:
    [found] = [secret["placeholder"] for secret in box.details()["spec"]["secrets"] if secret["name"] == name]
    return str(found)


def authorization(request: dict[str, Any]) -> str:
    """Clients write the header's name in any case."""
    return str({name.lower(): value for name, value in request["headers"].items()}["authorization"])


CLIENTS = {
    "curl": "curl -sS -H \"authorization: Bearer $KEY\" https://{API}/curl",
    "Python": "python3 -c 'import os, urllib.request as r; print(r.urlopen(r.Request(\"https://{API}/python\", headers={{\"authorization\": \"Bearer \" + os.environ[\"KEY\"]}})).read().decode())'",
    "Node": "node -e 'fetch(\"https://{API}/node\", {{headers: {{authorization: \"Bearer \" + process.env.KEY}}}}).then(a => a.text()).then(console.log)'",
    "root": "sudo -E curl -sS -H \"authorization: Bearer $KEY\" https://{API}/root",
}


@pytest.mark.parametrize("program", CLIENTS)
def test_programs_trust_the_proxy_and_the_service_gets_the_value(box: LiveSandbox, upstream: Upstream, program: str) -> None:
    answer = json.loads(box.output(CLIENTS[program].format(API=API)))
    assert authorization(upstream.last()) == f"Bearer {VALUE}"
    assert authorization(answer) == f"Bearer {placeholder(box)}", "the echo is masked"


JAVA = """FROM base
USER root
RUN mkdir -p /usr/share/man/man1 && apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends default-jdk-headless && rm -rf /var/lib/apt/lists/*
USER gem
"""
FETCH = """public class Fetch {
    public static void main(String[] of) throws Exception {
        var call = new java.net.URL(of[0]).openConnection();
        call.setRequestProperty("authorization", "Bearer " + System.getenv("KEY"));
        System.out.print(new String(call.getInputStream().readAllBytes()));
    }
}
"""


@pytest.mark.timeout(600)
def test_java_trusts_the_proxy_too(server: Server, secrets: None, upstream: Upstream, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(JAVA)
    built = run(server, "image", "build", "java", "--file", str(tmp_path / "Dockerfile"), timeout=500)
    assert built.returncode == 0, built.stderr
    try:
        live = create(server, image="java")
        live.http.post("/v1/file/write", json={"file": "/tmp/Fetch.java", "content": FETCH}).raise_for_status()
        live.output(f"java /tmp/Fetch.java https://{API}/java")
        assert authorization(upstream.last()) == f"Bearer {VALUE}"
        live.delete()
    finally:
        run(server, "image", "rm", "java")


def test_the_value_reaches_all_places_that_the_secret_names(box: LiveSandbox, upstream: Upstream) -> None:
    box.output(f"curl -sSf -u user:$KEY https://{API}/basic")
    basic = base64.b64encode(f"user:{VALUE}".encode()).decode()
    assert upstream.last()["headers"]["Authorization"] == f"Basic {basic}"
    box.output(f"curl -sSf 'https://{API}/query?a=1&key='${{BODY#x}}'&b=2'")
    assert upstream.last()["path"] == f"/query?a=1&key={quote(BODY_VALUE, safe='')}&b=2"
    box.output(f"""curl -sSf --json '{{"key": "'$BODY'", "n": 1}}' https://{API}/json""")
    assert json.loads(upstream.last()["body"]) == {"key": f"x{BODY_VALUE}", "n": 1}
    box.output(f"curl -sSf -d \"a=1&key=${{BODY#x}}\" https://{API}/form")
    assert upstream.last()["body"] == f"a=1&key={quote(BODY_VALUE, safe='')}"
    # Sent in chunks of unknown length.
    box.output(f"(yes | head -c 300000; printf %s $BODY) | curl -sSf -T - -H 'content-type: text/plain' https://{API}/stream")
    assert upstream.last()["body"].endswith(f"x{BODY_VALUE}") and len(upstream.last()["body"]) > 300_000


def test_git_clones_with_a_password_that_the_sandbox_does_not_have(box: LiveSandbox) -> None:
    assert box.output(f"git clone -q https://user:$KEY@{API}/git/private.git /tmp/cloned && cat /tmp/cloned/file") == "cloned"
    refused = box.bash(f"GIT_TERMINAL_PROMPT=0 git clone -q https://user:wrong@{API}/git/private.git /tmp/other")
    assert refused.exit_code != 0 and "Authentication failed" in refused.stderr, refused


MISPLACED = {
    "another host without TLS": f"http://{OTHER}/ -H \"authorization: $KEY\"",
    "its host without TLS": f"http://{API}/ -H \"authorization: $KEY\"",
    "a place that it does not name": f"https://{API}/?key=$KEY",
    "another Host": f"https://{API}/ -H 'host: {OTHER}' -H \"authorization: $KEY\"",
}


@pytest.mark.parametrize("what", MISPLACED)
def test_it_goes_nowhere_else(box: LiveSandbox, upstream: Upstream, what: str) -> None:
    def refused() -> int:
        return httpx.get(f"{box.base_url}/api/v2/sandboxes/{box.name}/network").json()["refused"]

    before, refused_before = len(upstream.requests()), refused()
    result = box.bash(f"curl -sS -w '\n%{{http_code}}' {MISPLACED[what]}")
    text, _, status = (result.stdout or "").rpartition("\n")
    assert status in ("403", "421") and text.startswith("arenite: "), result
    assert len(upstream.requests()) == before
    until(lambda: refused() > refused_before)


def test_other_hosts_have_their_own_tls(box: LiveSandbox, upstream: Upstream) -> None:
    """The connection is passed on as it is, so the service gets the placeholder."""
    show = "echo | openssl s_client -connect {0}:443 -servername {0} 2>/dev/null | openssl x509 -noout -issuer"
    assert "Arenite test" in box.output(show.format(OTHER))
    assert f"Arenite sandbox {box.id}" in box.output(show.format(API))
    box.output(f"curl -sS -H \"authorization: $KEY\" https://{OTHER}/")
    assert upstream.last()["headers"]["authorization"] == placeholder(box)


#: Looks for texts in the memory of all processes, and in all files.
SEARCH = """
import os, sys
# The arguments are in memory, too, so they are disguised.
texts = [bytes(byte ^ 85 for byte in bytes.fromhex(text)) for text in sys.argv[1:]]
found = set()
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) == os.getpid():
        continue
    try:
        areas = [line.split() for line in open(f"/proc/{pid}/maps")]
        with open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for area in areas:
                if area[1].startswith("r") and area[-1] not in ("[vvar]", "[vsyscall]"):
                    start, end = (int(part, 16) for part in area[0].split("-"))
                    try:
                        memory.seek(start)
                        data = memory.read(end - start)
                    except (OSError, OverflowError, ValueError):
                        continue
                    found |= {f"memory of {pid}" for text in texts if text in data}
    except OSError:
        continue
for directory, _, files in os.walk("/"):
    if directory.split("/")[1] in ("proc", "sys", "dev", "usr"):
        continue
    for file in files:
        path = os.path.join(directory, file)
        try:
            if os.path.isfile(path) and os.path.getsize(path) < 64 << 20:
                with open(path, "rb") as content:
                    data = content.read()
                found |= {path for text in texts if text in data}
        except OSError:
            continue
print("found", sorted(found))
"""


def disguised(text: bytes) -> str:
    return bytes(byte ^ 85 for byte in text).hex()


def encoded(value: str) -> list[bytes]:
    """The forms in which it could be found."""
    raw = value.encode()
    forms = [raw, base64.b64encode(raw), base64.urlsafe_b64encode(raw), raw.hex().encode(), raw.hex().upper().encode()]
    # In the middle of another base64, without its first and last characters.
    forms += [base64.b64encode(b" " * shift + raw)[4:-4] for shift in (1, 2)]
    return [*forms, quote(value, safe="").encode()]


def test_no_copy_is_in_the_sandbox_or_in_what_is_recorded(box: LiveSandbox, upstream: Upstream, server: Server) -> None:
    box.output(f"cat > /tmp/search.py <<'END'\n{SEARCH}\nEND")
    # A process that sent it, got the echo, and goes on.
    talk = f"import os, time, urllib.request as r; a = r.urlopen(r.Request('https://{API}/', headers={{'authorization': os.environ['KEY']}})).read(); open('/tmp/echo', 'wb').write(a); time.sleep(600)"
    box.bash(f'python3 -c "{talk}" &\n sleep 0', async_mode=True)
    until(lambda: box.bash("test -s /tmp/echo").exit_code == 0)
    forms = encoded(VALUE) + encoded(BODY_VALUE)
    # The search finds what is there.
    known = box.output(f"sudo python3 /tmp/search.py {disguised(placeholder(box).encode())}", hard_timeout=60)
    assert "/tmp/echo" in known and "memory of" in known, known
    assert box.output(f"sudo python3 /tmp/search.py {' '.join(map(disguised, forms))}", hard_timeout=60) == "found []"

    with server.api() as api:
        recorded = {
            path: api.get(path).raise_for_status().content
            for path in (
                f"/api/v2/sandboxes/{box.name}/steps?origin=all",
                f"/api/v2/sandboxes/{box.name}",
                f"/api/v2/sandboxes/{box.name}/network",
                f"/api/v1/trajectories/{box.id}",
                "/api/v2/secrets",
                "/api/v2/events?limit=1000",
                "/metrics",
            )
        }
    recorded["log"] = server.log_path.read_bytes()
    files = [path for path in (server.data_dir / "trajectories").rglob("*") if path.is_file() and box.id in str(path)]
    recorded |= {str(path): path.read_bytes() for path in files}
    assert files and not [(what, form) for what, content in recorded.items() for form in forms if form in content]
    for pattern in ("*.sqlite*", "records/*"):
        for path in server.data_dir.glob(pattern):
            assert path.is_dir() or not any(form in path.read_bytes() for form in forms), path


def test_a_rotation_and_a_revocation_count_for_the_next_request(server: Server, secrets: None, upstream: Upstream) -> None:
    put(server, "turns", value="first-value-of-turns", hosts=[API])
    box = create(server, env={"KEY": "{{secret:turns}}"})
    # One connection for all requests.
    talk = f"""
import http.client, os, time
c = http.client.HTTPSConnection("{API}")
for turn in range(3):
    while not os.path.exists(f"/tmp/turn-{{turn}}"): time.sleep(0.05)
    c.request("GET", f"/turn-{{turn}}", headers={{"authorization": os.environ["KEY"]}})
    a = c.getresponse()
    open(f"/tmp/said-{{turn}}.new", "w").write(f"{{a.status}} {{a.read().decode()}}")
    os.rename(f"/tmp/said-{{turn}}.new", f"/tmp/said-{{turn}}")
"""
    try:
        box.output(f"cat > /tmp/talk.py <<'END'\n{talk}\nEND")
        box.bash("python3 /tmp/talk.py >/tmp/talk.log 2>&1", async_mode=True)

        def turn(number: int) -> str:
            box.output(f"touch /tmp/turn-{number}")
            until(lambda: box.bash(f"test -e /tmp/said-{number}").exit_code == 0)
            return box.output(f"cat /tmp/said-{number}")

        assert turn(0).startswith("200") and upstream.last()["headers"]["authorization"] == "first-value-of-turns"
        put(server, "turns", value="other-value-of-turns")
        assert turn(1).startswith("200") and upstream.last()["headers"]["authorization"] == "other-value-of-turns"
        sent = len(upstream.requests())
        assert httpx.delete(f"{server.url}/api/v2/secrets/turns").status_code == 200
        assert turn(2).startswith("403 arenite:") and len(upstream.requests()) == sent
    finally:
        box.delete()


def test_a_fork_has_its_own_placeholder_and_a_restarted_server_goes_on(
    box: LiveSandbox, upstream: Upstream, server: Server
) -> None:
    box.output("printf %s $KEY > /tmp/key")
    call = f'curl -sS -H "authorization: $(cat /tmp/key)" https://{API}/ && curl -sSf -H "authorization: $KEY" https://{API}/'
    forked = httpx.post(f"{server.url}/api/v2/sandboxes/{box.name}/fork", json={"count": 1}, timeout=60).raise_for_status()
    child = LiveSandbox(server.url, forked.json()["sandboxes"][0]["name"])
    try:
        assert child.output("printf %s $KEY") == placeholder(child) != placeholder(box)
        child.output(call)
        assert [request["headers"]["authorization"] for request in upstream.requests()[-2:]] == [VALUE, VALUE]
        # The parent has no use for the child's.
        box.output(f"curl -sS -H 'authorization: {placeholder(child)}' https://{API}/")
        assert upstream.last()["headers"]["authorization"] == placeholder(child)
        extra = tuple(server_arguments(server))
        server.kill()
        server.start(extra)
        for live in (box, child):
            until(lambda live=live: live.bash(call).exit_code == 0)
            assert upstream.last()["headers"]["authorization"] == VALUE
    finally:
        child.delete()


def server_arguments(server: Server) -> list[str]:
    """What the fixture has added to the running server's command line."""
    line = Path(f"/proc/{server.pid}/cmdline").read_text().split("\0")
    return line[line.index("--resolver") :][:2]


def test_real_chromium_trusts_the_proxy(server: Server, secrets: None, upstream: Upstream) -> None:
    box = create(server, image="browser")
    try:
        dump = f"chromium --headless --no-sandbox --disable-gpu --dump-dom https://{API}/chromium 2>/dev/null"
        assert "/chromium" in box.output(dump, hard_timeout=90)
        assert any(request["path"] == "/chromium" for request in upstream.requests())
    finally:
        box.delete()


def test_what_can_not_have_a_secret_is_refused(server: Server, secrets: None, sandbox: Callable[..., LiveSandbox]) -> None:
    def refused(status: int, **spec: Any) -> str:
        body = {"name": f"no-{uuid.uuid4().hex[:6]}", "image": "code", **spec}
        answer = httpx.post(f"{server.url}/api/v2/sandboxes", json=body, timeout=60)
        assert answer.status_code == status, answer.text
        return answer.text

    assert "there is no secret none" in refused(404, env={"A": "{{secret:none}}"})
    assert "network" in refused(400, env={"A": "{{secret:api}}"}, network="none")
    refused(400, env={"A": "{{secret:api"})
    refused(404, secrets=["none"])
    put(server, "server-only", value="never-in-a-sandbox")
    assert "has no hosts" in refused(400, secrets=["server-only"])
    httpx.delete(f"{server.url}/api/v2/secrets/server-only")


def test_the_command_line_sets_and_lists_secrets(server: Server, tmp_path: Path) -> None:
    value = tmp_path / "value"
    value.write_text("by-hand-value\n")
    with value.open() as stdin:
        done = run(server, "secret", "set", "by-hand", "--host", API, "--in", "header", "--in", "query", stdin=stdin)
    assert done.stdout == "by-hand\n", done
    listed = run(server, "secret", "ls").stdout
    assert "by-hand" in listed and API in listed and "value" not in listed.splitlines()[-1]
    assert run(server, "secret", "set", "by-hand", "--keep-value", "--host", OTHER).returncode == 0
    secrets = json.loads(run(server, "secret", "ls", "--json").stdout)["secrets"]
    assert [secret["hosts"] for secret in secrets if secret["name"] == "by-hand"] == [[OTHER]]
    assert run(server, "secret", "rm", "by-hand").stdout == "by-hand\n"
    assert len(base64.b64decode(run(server, "secret", "generate-key").stdout)) == 32
