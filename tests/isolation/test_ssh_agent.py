"""SSH keys as secrets: a real server, real `ssh` and `git` in a sandbox, and a key that is only outside."""

from __future__ import annotations

import base64
import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server
from authority import Authority
from commands import run
from engine_servers import path_of_runsc
from isolation.outside import trusted_names
from isolation.test_network import PUBLIC, WORLD, reaches, world  # noqa: F401
from isolation.test_secrets import SEARCH, disguised, encoded
from sandboxes import LiveSandbox
from waiting import until

HOST = "git.ssh.test"
#: Another server at the same address, with another host key.
OTHER_PORT = 2222
#: Secrets, and what their keys are made with.
KEYS = {"ed25519": ["-t", "ed25519"], "ecdsa": ["-t", "ecdsa", "-b", "521"], "rsa": ["-t", "rsa", "-b", "3072"]}
CONFIG = """
Port {port}
ListenAddress {address}
HostKey {folder}/host-{port}
AuthorizedKeysFile {folder}/authorized
PidFile none
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
AllowAgentForwarding yes
MaxStartups 100
"""
#: What a program inside says to the agent: hexadecimal on standard input, and a time to wait for the rest.
TALK = """
import os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.settimeout(30)
connection.connect(os.environ["SSH_AUTH_SOCK"])
connection.sendall(bytes.fromhex(sys.argv[1]))
if len(sys.argv) > 2:
    connection.shutdown(socket.SHUT_WR)
answer = b""
while len(answer) < 5:
    part = connection.recv(4096)
    if not part:
        break
    answer += part
print(answer.hex())
"""
FAILURE = "0000000105"


class Servers:
    """Two of OpenSSH beyond the host, whose root the keys in `authorized` may be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        #: Of the server of ours that finds them.
        self.arguments: tuple[str, ...] = ()
        self.authorized = folder / "authorized"
        self.authorized.touch()
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        for port in (22, OTHER_PORT):
            self.make_key(f"host-{port}", ["-t", "ed25519"])
            config = folder / f"config-{port}"
            config.write_text(CONFIG.format(port=port, address=PUBLIC[0], folder=folder))
            self.processes.append(subprocess.Popen(["ip", "netns", "exec", WORLD, "/usr/sbin/sshd", "-D", "-E", str(folder / f"log-{port}"), "-f", str(config)]))

    def make_key(self, name: str, options: list[str], authorize: bool = False, comment: str = "a test") -> str:
        """The private key."""
        file = self.folder / name
        for old in (file, file.with_suffix(".pub")):
            old.unlink(missing_ok=True)
        subprocess.run(["ssh-keygen", "-q", *options, "-N", "", "-C", comment, "-f", str(file)], check=True)
        if authorize:
            with self.authorized.open("a") as lines:
                lines.write(self.public(name))
        return file.read_text()

    def public(self, name: str) -> str:
        return (self.folder / f"{name}.pub").read_text()

    def fingerprint(self, name: str) -> str:
        shown = subprocess.run(["ssh-keygen", "-l", "-f", str(self.folder / f"{name}.pub")], check=True, capture_output=True, text=True)
        return shown.stdout.split()[1]

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
            process.wait()


@pytest.fixture(scope="module")
def servers(server: Server, world: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:  # noqa: F811
    folder = tmp_path_factory.mktemp("ssh")
    servers = Servers(folder)
    try:
        with trusted_names(server, folder, Authority(folder, f"DNS:{HOST}"), ".ssh.test", PUBLIC[0]) as servers.arguments:
            until(lambda: reaches(PUBLIC[0], 22) and reaches(PUBLIC[0], OTHER_PORT))
            yield servers
    finally:
        servers.stop()


def put(server: Server, name: str, status: int = 200, **secret: Any) -> dict[str, Any]:
    answer = httpx.put(f"{server.url}/api/v2/secrets/{name}", json=secret, timeout=60)
    assert answer.status_code == status, answer.text
    assert "PRIVATE KEY-----\n" not in answer.text
    result: dict[str, Any] = answer.json()
    return result


def put_key(server: Server, name: str, value: str, **more: Any) -> dict[str, Any]:
    return put(server, name, value=value, hosts=[HOST], places=["ssh"], **more)


def revoke(server: Server, name: str) -> None:
    httpx.delete(f"{server.url}/api/v2/secrets/{name}", timeout=60)


@pytest.fixture(scope="module")
def keys(server: Server, servers: Servers) -> Iterator[dict[str, str]]:
    values = {name: servers.make_key(name, options, authorize=True) for name, options in KEYS.items()}
    for name, value in values.items():
        put_key(server, name, value)
    yield values
    for name in KEYS:
        revoke(server, name)


def create(server: Server, *secrets: str, **spec: Any) -> LiveSandbox:
    name = f"ssh-{uuid.uuid4().hex[:6]}"
    network = {"mode": "allowlist", "allow": [f"{HOST}:22,{OTHER_PORT}/tcp"]}
    body = {"name": name, "image": "base", "network": network, "secrets": list(secrets)} | spec
    answer = httpx.post(f"{server.url}/api/v2/sandboxes", json=body, timeout=120)
    assert answer.status_code == 201, answer.text
    box = LiveSandbox(server.url, name)
    box.output(f"cat > /tmp/talk.py <<'END'\n{TALK}\nEND")
    return box


@pytest.fixture(scope="module")
def box(server: Server, keys: dict[str, str]) -> Iterator[LiveSandbox]:
    live = create(server, *KEYS)
    yield live
    live.delete()


def ssh(command: str, *options: str, host: str = HOST) -> str:
    """The command line of a login."""
    quiet = "-o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    return f"ssh {quiet} {' '.join(options)} root@{host} '{command}'"


def events(box: LiveSandbox) -> list[dict[str, Any]]:
    answer = httpx.get(f"{box.base_url}/api/v2/sandboxes/{box.name}/network").raise_for_status().json()
    return [event for event in answer["events"] if event["protocol"] == "ssh"]


def refused(box: LiveSandbox, command: str, reason: str) -> str:
    before = len(events(box))
    done = box.bash(command)
    assert done.exit_code not in (0, None), done
    assert [event["reason"] for event in events(box)[before:] if not event["allowed"]][-1:] == [reason], events(box)[before:]
    return str(done.stderr)


def strings(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(4) + part for part in parts)


def talk(box: LiveSandbox, message: bytes, *more: str) -> str:
    return box.output(f"python3 /tmp/talk.py {message.hex()} {' '.join(more)}")


def blob(servers: Servers, name: str) -> bytes:
    return base64.b64decode(servers.public(name).split()[1])


def login(servers: Servers, name: str, algorithm: bytes = b"ssh-ed25519") -> bytes:
    """What a client signs."""
    return strings(bytes(range(32))) + b"\x32" + strings(b"root", b"ssh-connection", b"publickey") + b"\x01" + strings(algorithm, blob(servers, name))


def sign(servers: Servers, name: str, data: bytes, flags: int = 0) -> bytes:
    return strings(b"\x0d" + strings(blob(servers, name), data) + flags.to_bytes(4))


def test_the_agent_has_the_keys_and_no_file_does(box: LiveSandbox, servers: Servers) -> None:
    listed = box.output("ssh-add -l").splitlines()
    assert [line.split()[1:3] for line in listed] == [[servers.fingerprint(name), name] for name in sorted(KEYS)]
    assert box.output("stat -c '%a %U %F' $SSH_AUTH_SOCK; id -un").split("\n") == [f"600 {box.output('id -un')} socket", box.output("id -un")]
    secrets = box.details()["spec"]["secrets"]
    assert all(secret["ssh"] and not secret["placeholder"] for secret in secrets), secrets
    # In all kinds of commands.
    assert box.client.shell.exec_command(command="echo $SSH_AUTH_SOCK").data.output.strip() == box.output("echo $SSH_AUTH_SOCK")
    assert "1.ssh" not in box.output("ls -a ~/.ssh 2>/dev/null || true")


@pytest.mark.parametrize("name", KEYS)
def test_logins_work_with_each_type_of_key(box: LiveSandbox, servers: Servers, name: str) -> None:
    box.output(f"cat > /tmp/{name}.pub <<'END'\n{servers.public(name)}END")
    assert box.output(ssh("id -un; echo $SSH_CONNECTION | cut -d \" \" -f 4", "-o IdentitiesOnly=yes", f"-i /tmp/{name}.pub")).split() == ["root", "22"]
    event = events(box)[-1]
    assert event["allowed"] and (event["kind"], event["reason"]) == ("decision", "signed"), event
    # The secret names no host keys, so only the key of the server is known.
    login = {"secret": name, "user": "root", "fingerprint": servers.fingerprint(name), "host_key": servers.fingerprint("host-22")}
    assert (event["ssh"], event.get("name"), event["port"]) == (login, None, 0)


def test_git_clones_and_pushes(box: LiveSandbox, servers: Servers) -> None:
    repository = servers.folder / "team.git"
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(repository)], check=True)
    box.output(f"export GIT_SSH_COMMAND='ssh -o BatchMode=yes -o StrictHostKeyChecking=accept-new' && git clone -q root@{HOST}:{repository} /tmp/work && cd /tmp/work && git checkout -q -B main && echo text > file && git add file && git -c user.name=t -c user.email=t@example.com commit -q -m one && git push -q origin main")
    assert subprocess.run(["git", "-C", str(repository), "show", "main:file"], check=True, capture_output=True).stdout == b"text\n"
    assert box.output(f"git clone -q ssh://root@{HOST}{repository} /tmp/again && cat /tmp/again/file") == "text"


def test_only_logins_are_signed(box: LiveSandbox, servers: Servers) -> None:
    # Of a file, as Git signs commits.
    box.output("echo text > /tmp/text")
    assert "agent refused" in refused(box, "ssh-keygen -Y sign -n file -f /tmp/ed25519.pub /tmp/text", "no_login")
    data = login(servers, "ed25519")
    cases = {"no_login": [b"", b"text", data[:-1], data + b"\0", data.replace(b"ssh-connection", b"ssh-userauthX"), b"SSHSIG" + strings(b"git", b"", b"sha512", bytes(64))]}
    for reason, several in cases.items():
        for bad in several:
            assert talk(box, sign(servers, "ed25519", bad)) == FAILURE
            assert events(box)[-1]["reason"] == reason, bad
    # SHA-1, and a key of nobody.
    assert talk(box, sign(servers, "rsa", login(servers, "rsa", b"ssh-rsa"))) == FAILURE
    assert talk(box, sign(servers, "host-22", login(servers, "host-22"))) == FAILURE
    assert events(box)[-1]["reason"] == "secret_revoked"
    assert events(box)[-1]["ssh"] == {"user": "root", "fingerprint": servers.fingerprint("host-22")}
    assert talk(box, sign(servers, "ed25519", data)).startswith("000000") and talk(box, sign(servers, "ed25519", data))[8:10] == "0e"
    for command in ("ssh-add -D", "ssh-add /tmp/key", "ssh-add -x"):
        box.output("ssh-keygen -q -t ed25519 -N '' -f /tmp/key <<< y > /dev/null; true")
        assert box.bash(f"{command} < /dev/null").exit_code != 0, command
    assert len(box.output("ssh-add -l").splitlines()) == len(KEYS)


def test_malformed_and_hostile_clients_get_failures(box: LiveSandbox, servers: Servers) -> None:
    for message in (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\x04\0\x01\x0b"):
        assert talk(box, message + bytes(64)) == FAILURE, message
    # Cut off: half of a length, half of a message.
    for message in (b"\0\0", b"\0\0\0\x05\x0b", b"\0\x04\0\0" + bytes(1000)):
        assert talk(box, message, "shut") == FAILURE, message
    # Without an end, a failure comes when the time is over.
    assert talk(box, b"\0\0\0\x05\x0b") == FAILURE
    assert talk(box, b"\0\0\0\x01\x7f") == FAILURE
    assert talk(box, strings(bytes([27]) + strings(b"session-bind@openssh.com", b"x", b"y", b"z") + b"\0")) == FAILURE
    many = """
import os, socket, time
held = []
for number in range(500):
    one = socket.socket(socket.AF_UNIX)
    one.setblocking(False)
    try:
        one.connect(os.environ["SSH_AUTH_SOCK"])
        one.send([b"", b"\\0", b"\\0\\4\\0\\0x", b"\\0\\0\\0\\1\\x0b" * 100][number % 4])
    except OSError:
        pass
    held.append(one)
time.sleep(2)
"""
    box.output(f"cat > /tmp/many.py <<'END'\n{many}\nEND\npython3 /tmp/many.py", hard_timeout=60)
    # All of them are gone, so the next one is served.
    assert len(box.output("ssh-add -l", hard_timeout=120).splitlines()) == len(KEYS)
    assert box.output(ssh("echo in")) == "in"


def test_revocation_and_rotation_count_at_once(server: Server, servers: Servers) -> None:
    put_key(server, "turns", servers.make_key("turns-1", KEYS["ed25519"], authorize=True))
    box = create(server, "turns")
    try:
        assert box.output(ssh("echo in")) == "in"
        # The server does not know the new one, and is asked with it.
        put(server, "turns", value=servers.make_key("turns-2", KEYS["rsa"]))
        assert box.output("ssh-add -l").split()[1] == servers.fingerprint("turns-2")
        done = box.bash(ssh("echo in"))
        assert done.exit_code == 255 and "Permission denied" in done.stderr, done
        assert talk(box, sign(servers, "turns-1", login(servers, "turns-1"))) == FAILURE
        with servers.authorized.open("a") as lines:
            lines.write(servers.public("turns-2"))
        assert box.output(ssh("echo in")) == "in"
        revoke(server, "turns")
        assert "no identities" in box.bash("ssh-add -l").stdout
        box.output(f"cat > /tmp/turns.pub <<'END'\n{servers.public('turns-2')}END")
        done = box.bash(ssh("echo in", "-o IdentitiesOnly=yes", "-i /tmp/turns.pub"))
        assert done.exit_code == 255, done
        assert talk(box, sign(servers, "turns-2", login(servers, "turns-2", b"rsa-sha2-512"), 4)) == FAILURE
        event = events(box)[-1]
        assert (event["reason"], event["ssh"]["fingerprint"]) == ("secret_revoked", servers.fingerprint("turns-2"))
        # One of the same name that is no key does not reach the agent, nor does its value the sandbox.
        put(server, "turns", value="a-password-of-turns", hosts=[HOST])
        assert "no identities" in box.bash("ssh-add -l").stdout
    finally:
        box.delete()
        revoke(server, "turns")


def test_host_keys_limit_the_servers(server: Server, servers: Servers) -> None:
    own, other = servers.public("host-22"), servers.public(f"host-{OTHER_PORT}")
    put_key(server, "bound", servers.make_key("bound", KEYS["ed25519"], authorize=True), host_keys=[f"{HOST} {own}".strip()])
    box = create(server, "bound")
    try:
        assert box.output(ssh("echo in")) == "in"
        event = events(box)[-1]
        assert (event["name"], event["port"], event["ssh"]["host_key"]) == (HOST, 22, servers.fingerprint("host-22"))
        # Another server has another key. The same login with no word about a session is refused, too.
        assert "Permission denied" in refused(box, ssh("echo in", f"-p {OTHER_PORT}"), "wrong_host")
        assert events(box)[-1]["ssh"]["host_key"] == servers.fingerprint(f"host-{OTHER_PORT}")
        assert talk(box, sign(servers, "bound", login(servers, "bound"))) == FAILURE
        assert events(box)[-1]["reason"] == "wrong_host"
        # The server at the other end of a forwarded agent can't use it.
        inner = ssh("echo in", f"-p {OTHER_PORT}", host=PUBLIC[0]).replace("'", '"')
        box.bash(ssh(f"ssh-add -l; {inner}", "-A"))
        assert events(box)[-1]["reason"] == "forwarded", events(box)[-3:]
        put(server, "bound", host_keys=[own, other])
        assert box.output(ssh("echo in", f"-p {OTHER_PORT}")) == "in"
        put(server, "bound", host_keys=[])
        assert talk(box, sign(servers, "bound", login(servers, "bound")))[8:10] == "0e"
    finally:
        box.delete()
        revoke(server, "bound")


def test_no_copy_is_in_the_sandbox(box: LiveSandbox, keys: dict[str, str], servers: Servers, server: Server) -> None:
    box.output(f"cat > /tmp/search.py <<'END'\n{SEARCH}\nEND")
    box.bash(ssh("sleep 100"), async_mode=True)
    until(lambda: "sleep 100" in box.output("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"))
    found = box.output(f"sudo python3 /tmp/search.py {disguised(blob(servers, 'ed25519'))}", hard_timeout=60)
    assert "memory of" in found, f"the public key is there: {found}"
    forms = []
    for value in keys.values():
        lines = value.splitlines()[1:-1]
        # The first line is public. A line of base64 in the middle, its bytes, and their other forms.
        for line in lines[-4:]:
            forms += [line.encode(), *private_bytes(value)]
    forms += encoded(keys["ed25519"].splitlines()[-2])
    unique = sorted({form for form in forms if len(form) >= 16})
    assert box.output(f"sudo python3 /tmp/search.py {' '.join(map(disguised, unique))}", hard_timeout=120) == "found []"
    recorded = httpx.get(f"{box.base_url}/api/v1/trajectories/{box.id}/network").raise_for_status().text
    spec = json.dumps(box.details())
    for form in unique:
        assert form.decode("latin-1") not in recorded + spec


def private_bytes(value: str) -> list[bytes]:
    """The last bytes of the private numbers, before the comment, as they are and in hexadecimal."""
    data = base64.b64decode("".join(value.splitlines()[1:-1]))
    end = data.rindex(strings(b"a test"))
    # Of ed25519, the public key is behind the private one.
    end -= 32 if b"ssh-ed25519" in data else 0
    return [data[end - 24 : end], data[end - 24 : end].hex().encode()]


def test_what_is_no_key_is_refused_when_it_is_written(server: Server, servers: Servers) -> None:
    def refuse(text: str, **secret: Any) -> None:
        answer = put(server, "refused", 400, **({"hosts": [HOST], "places": ["ssh"]} | secret))
        assert text in json.dumps(answer), answer

    good, file = servers.make_key("good", KEYS["ed25519"]), servers.folder / "good"
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "passphrase", "-f", str(file)], check=True, capture_output=True)
    refuse("encrypted", value=file.read_text())
    refuse("RSA PRIVATE KEY", value=servers.make_key("pem", ["-t", "rsa", "-b", "2048", "-m", "PEM"]))
    refuse("2048", value=servers.make_key("short", ["-t", "rsa", "-b", "1024"]))
    refuse("public key", value=servers.public("good"))
    refuse("no private key", value="a-password")
    refuse("malformed", value=good[: len(good) // 2] + "\n-----END OPENSSH PRIVATE KEY-----\n")
    refuse("only place", value=good, places=["ssh", "header"])
    refuse("place ssh", value="a-password", places=["header"], host_keys=[servers.public("good")])
    refuse("host key", value=good, host_keys=["nonsense"])
    refuse("hosts", value=good, host_keys=[f"elsewhere.test {servers.public('good')}"])
    refuse("control characters", value=good, places=["header"])
    put_key(server, "stays", good)
    put(server, "plain", value="a-password", hosts=[HOST])
    try:
        put(server, "stays", 400, places=["header"])
        put(server, "stays", 400, value="a-password")
        put(server, "plain", 400, places=["ssh"])
        for spec, text in (({"env": {"KEY": "{{secret:stays}}"}}, "SSH key"), ({"secrets": ["stays"], "env": {"SSH_AUTH_SOCK": "/mine"}}, "SSH_AUTH_SOCK"), ({"secrets": ["stays"], "network": "none"}, "network")):
            answer = httpx.post(f"{server.url}/api/v2/sandboxes", json={"image": "base", **spec}, timeout=60)
            assert answer.status_code == 400 and text in answer.text, answer.text
    finally:
        revoke(server, "stays")
        revoke(server, "plain")


def test_the_trajectory_has_the_logins(box: LiveSandbox, servers: Servers) -> None:
    def records() -> list[dict[str, Any]]:
        answer = httpx.get(f"{box.base_url}/api/v1/trajectories/{box.id}/network").raise_for_status()
        return [record for record in answer.json()["network"] if record.get("protocol") == "ssh"]

    until(lambda: any(record["allowed"] for record in records()) and any(not record["allowed"] for record in records()))
    signed = [record for record in records() if record["allowed"]]
    assert {record["ssh"]["secret"] for record in signed} == set(KEYS)


def test_forks_and_restarts_keep_the_agent(box: LiveSandbox, server: Server, servers: Servers) -> None:
    forked = httpx.post(f"{server.url}/api/v2/sandboxes/{box.name}/fork", json={}, timeout=120)
    assert forked.status_code == 201, forked.text
    fork = LiveSandbox(server.url, forked.json()["sandboxes"][0]["name"])
    try:
        assert fork.output(ssh("echo in")) == "in"
        server.restart(servers.arguments)
        for live in (box, fork):
            until(lambda live=live: live.bash(ssh("echo in")).stdout == "in\n")
    finally:
        fork.delete()


def test_it_works_in_gvisor(server: Server, keys: dict[str, str]) -> None:
    path_of_runsc()
    live = create(server, "ed25519", tier="gvisor")
    try:
        assert live.output(ssh("echo in")) == "in"
        assert talk(live, b"\0\0\0\0") == FAILURE
    finally:
        live.delete()


def test_the_command_line(server: Server, servers: Servers, keys: dict[str, str], tmp_path: Path) -> None:
    scanned = tmp_path / "host-keys"
    scanned.write_text(f"# {HOST}:22 SSH-2.0\n\n{HOST} {servers.public('host-22')}")
    set_it = ("secret", "set", "by-hand", "--host", HOST, "--in", "ssh", "--from-file", str(servers.folder / "ed25519"), "--host-keys", str(scanned))
    assert run(server, *set_it).stdout == "by-hand\n"
    listed = json.loads(run(server, "secret", "ls", "--json").stdout)["secrets"]
    [secret] = [secret for secret in listed if secret["name"] == "by-hand"]
    assert (secret["places"], secret["host_keys"]) == (["ssh"], [f"{HOST} {servers.public('host-22')}".strip()])
    made = run(server, "create", "by-hand", "--image", "base", "--secret", "by-hand", "--allow", f"{HOST}:22/tcp")
    assert made.stdout == "by-hand\n", made
    box = LiveSandbox(server.url, "by-hand")
    try:
        assert box.output(ssh("echo in")) == "in"
        shown = run(server, "network", "show", "by-hand").stdout
        assert "signed: root with by-hand" in shown and HOST in shown, shown
    finally:
        box.delete()
        run(server, "secret", "rm", "by-hand")
    unknown = run(server, "create", "none", "--secret", "by-hnd")
    assert unknown.returncode != 0 and "by-hnd" in unknown.stderr, unknown
