"""Passwords of Postgres as secrets: a real server and the real client, psql with libpq."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from arenite_server import Server
from authority import Authority
from commands import run
from isolation.outside import trusted_names
from isolation.test_network import PUBLIC, WORLD, reaches, world  # noqa: F401
from isolation.test_secrets import SEARCH, disguised, encoded, placeholder, put
from postgres import USER, Postgres
from sandboxes import LiveSandbox
from waiting import until

DB, WRONG, PLAIN = "db.postgres.test", "wrong.postgres.test", "plain.postgres.test"
#: Roles, and how the server asks for their passwords.
METHODS = {"scram": "scram-sha-256", "md5": "md5", "cleartext": "password"}
PASSWORDS = {role: f"{role}'pass word/{uuid.uuid4().hex}" for role in METHODS}
RULES = "".join(f"hostssl all {role} all {method}\n" for role, method in METHODS.items())
#: Where the client is in a sandbox.
CLIENT = "/tmp/client"


@pytest.fixture(scope="module")
def database(server: Server, world: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:  # noqa: F811
    folder = tmp_path_factory.mktemp("postgres")
    authority = Authority(folder, f"DNS:{DB}, DNS:{PLAIN}")
    database = Postgres(listen=PUBLIC[0], namespace=WORLD, rules=RULES)
    try:
        database.stop()
        for file in (authority.cert, authority.key):
            shutil.copy(file, database.dir)
            os.chown(database.dir / file.name, USER.pw_uid, USER.pw_gid)
            (database.dir / file.name).chmod(0o600)
        database.settings = {
            "ssl": "on",
            "ssl_cert_file": database.dir / "cert.pem",
            "ssl_key_file": database.dir / "key.pem",
        }
        database.start()
        for role, password in PASSWORDS.items():
            encryption = "md5" if role == "md5" else "scram-sha-256"
            set_password(database, role, password, encryption, "CREATE")
        with trusted_names(server, folder, authority, ".postgres.test", PUBLIC[0]):
            until(lambda: reaches(PUBLIC[0], 5432))
            yield database
    finally:
        database.remove()


def set_password(database: Postgres, role: str, password: str, encryption: str, verb: str = "ALTER") -> None:
    quoted = password.replace("'", "''")
    database.sql(f"SET password_encryption = '{encryption}'; {verb} ROLE {role} LOGIN PASSWORD '{quoted}'")


@pytest.fixture(scope="module")
def secrets(server: Server, database: Postgres) -> Iterator[None]:
    for role, password in PASSWORDS.items():
        put(server, role, value=password, hosts=[DB, WRONG, PLAIN], places=["postgres"])
    yield
    for role in PASSWORDS:
        httpx.delete(f"{server.url}/api/v2/secrets/{role}")


def create(server: Server, folder: Path, **spec: Any) -> LiveSandbox:
    name = f"postgres-{uuid.uuid4().hex[:6]}"
    env = {role.upper(): f"{{{{secret:{role}}}}}" for role in PASSWORDS} | {"PSQLRC": "/dev/null", "PGSSLROOTCERT": "/etc/ssl/certs/ca-certificates.crt"}
    network = {"mode": "allowlist", "allow": [f"{name}:5432" for name in (DB, WRONG, PLAIN)]}
    body = {"name": name, "image": "base", "network": network, "env": env} | spec
    answer = httpx.post(f"{server.url}/api/v2/sandboxes", json=body, timeout=120)
    assert answer.status_code == 201, answer.text
    box = LiveSandbox(server.url, name)
    archive = folder / "client.tar"
    if not archive.exists():
        pack_client(archive)
    with archive.open("rb") as file:
        assert box.client.file.upload_file(file=("client.tar", file), path=f"{CLIENT}.tar").success
    box.output(f"mkdir {CLIENT} && tar xf {CLIENT}.tar -C {CLIENT}")
    return box


def pack_client(archive: Path) -> None:
    """The host's psql with its libraries. Sandboxes of `base` have the same libc."""
    # What is in the path is a script.
    program = sorted(Path("/usr/lib/postgresql").glob("*/bin/psql"))[-1]
    lines = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout.splitlines()
    of_libc = ("libc.so.6", "libm.so.6", "libresolv.so.2")
    libraries = [line.split()[2] for line in lines if "=>" in line and line.split()[0] not in of_libc]
    paths = [str(program), *libraries]
    with archive.open("wb") as file:
        subprocess.run(["tar", "ch", "--transform", "s,.*/,,", "-P", *paths], check=True, stdout=file)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("client")


@pytest.fixture(scope="module")
def box(server: Server, secrets: None, folder: Path) -> Iterator[LiveSandbox]:
    live = create(server, folder)
    yield live
    live.delete()


WHO = "SELECT current_user || ' ' || ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"


def psql(query: str, role: str, host: str = DB, password: str | None = None, more: str = "sslmode=verify-full") -> str:
    """The command line of a query. `password` is a word of the shell."""
    word = password or f'"${role.upper()}"'
    target = f"host={host} user={role} dbname=postgres connect_timeout=20 {more}"
    return f'LD_LIBRARY_PATH={CLIENT} PGPASSWORD={word} {CLIENT}/psql -Atc "{query}" "{target}"'


def refused(box: LiveSandbox, command: str) -> str:
    done = box.bash(command)
    assert done.exit_code == 2, done
    return done.stderr or ""


def decisions(box: LiveSandbox) -> list[dict[str, Any]]:
    events = httpx.get(f"{box.base_url}/api/v2/sandboxes/{box.name}/network").raise_for_status().json()["events"]
    return [event for event in events if event["protocol"] == "postgres"]


def noted(box: LiveSandbox, reason: str, host: str) -> None:
    """The refusal is an event. It comes after the client has its answer, and the same one again is counted with the first."""
    until(lambda: any(not event["allowed"] and (event["reason"], event["name"]) == (reason, host) for event in decisions(box)), reason)


@pytest.mark.parametrize("role", PASSWORDS)
@pytest.mark.parametrize("mode", ["verify-full", "require", "disable"])
def test_the_server_gets_the_password_and_the_client_none(box: LiveSandbox, role: str, mode: str) -> None:
    # Without TLS inside, there is TLS outside.
    assert box.output(psql(WHO, role, more=f"sslmode={mode}")) == f"{role} true"


def test_urls_and_the_shell_environment_have_placeholders(box: LiveSandbox) -> None:
    url = f"postgresql://scram:$SCRAM@{DB}/postgres?sslmode=verify-full"
    assert box.output(f'LD_LIBRARY_PATH={CLIENT} {CLIENT}/psql -Atc "{WHO}" "{url}"') == "scram true"
    assert box.output("printf %s $SCRAM") == placeholder(box, "scram")
    # Larger than any buffer, in both directions.
    assert box.output(psql("SELECT length(repeat('x', 3000000))", "scram")) == "3000000"
    assert box.output(psql("SELECT repeat('x', 300000)", "scram") + " | wc -c") == "300001"
    [event] = [event for event in decisions(box) if event["kind"] == "decision"][-1:]
    assert event["allowed"] and (event["name"], event["port"], event["rule"]) == (DB, 5432, f"{DB}:5432")
    until(lambda: any(event["kind"] == "end" and event["bytes_received"] > 300_000 for event in decisions(box)))


def test_other_passwords_and_places_are_refused(box: LiveSandbox, server: Server, database: Postgres) -> None:
    assert "password authentication failed" in refused(box, psql(WHO, "scram", password="wrong"))
    assert "password authentication failed" in refused(box, psql(WHO, "scram", password='"$MD5"'))
    assert "no password supplied" in refused(box, psql(WHO, "scram", password="''", more="sslmode=verify-full") + " -w")
    part = refused(box, psql(WHO, "scram", password='"x$SCRAM"'))
    assert "arenite: " in part and "in a part of a password" in part, part
    assert "in a parameter" in refused(box, psql(WHO, "$SCRAM", password="x"))
    noted(box, "secret_misplaced", DB)
    put(server, "elsewhere", value="a-value-for-elsewhere", hosts=["other.postgres.test"], places=["postgres"])
    try:
        other = httpx.post(
            f"{server.url}/api/v2/sandboxes",
            json={"name": "postgres-other", "image": "base", "secrets": ["elsewhere"]},
            timeout=60,
        ).json()
        # One of another sandbox means nothing here.
        foreign = other["spec"]["secrets"][0]["placeholder"]
        assert "password authentication failed" in refused(box, psql(WHO, "scram", password=foreign))
    finally:
        httpx.delete(f"{server.url}/api/v2/sandboxes/postgres-other")
        httpx.delete(f"{server.url}/api/v2/secrets/elsewhere")


def test_servers_have_to_prove_their_names_by_tls(box: LiveSandbox, database: Postgres) -> None:
    text = refused(box, psql(WHO, "scram", host=WRONG))
    assert "arenite: " in text and "certificate" in text, text
    noted(box, "invalid_certificate", WRONG)
    database.stop()
    database.settings["ssl"] = "off"
    database.start()
    try:
        text = refused(box, psql(WHO, "scram", host=PLAIN))
        assert "offers no TLS" in text, text
        noted(box, "server_without_tls", PLAIN)
    finally:
        database.stop()
        database.settings["ssl"] = "on"
        database.start()


def test_the_policy_decides(box: LiveSandbox, server: Server) -> None:
    def allow(*rules: str) -> None:
        policy = {"mode": "allowlist", "allow": list(rules)}
        answer = httpx.patch(f"{server.url}/api/v2/sandboxes/{box.name}", json={"network": policy}, timeout=60)
        assert answer.status_code == 200, answer.text

    before = [f"{name}:5432" for name in (DB, WRONG, PLAIN)]
    try:
        allow(f"{DB}:5432/tcp")
        assert box.output(psql(WHO, "scram")) == "scram true"
        for rule in (f"{DB}:443", f"{DB}:5432/https"):
            allow(rule)
            assert box.bash(psql(WHO, "scram")).exit_code == 2
    finally:
        allow(*before)


def test_a_query_is_cancelled(box: LiveSandbox, database: Postgres) -> None:
    query = psql("SELECT pg_sleep(60)", "scram")
    box.output(f"cat > /tmp/long.sh <<'END'\nexec {query.replace('LD_LIBRARY_PATH', 'env LD_LIBRARY_PATH')}\nEND")
    # psql sends a request to cancel when it gets SIGINT. Jobs of a shell ignore it.
    script = "import subprocess as s, time, signal, sys; p = s.Popen(['bash', '/tmp/long.sh'], stderr=s.PIPE); time.sleep(3); p.send_signal(signal.SIGINT); print(p.communicate(timeout=20)[1].decode())"
    start = time.monotonic()
    assert "canceling statement due to user request" in box.output(f'python3 -c "{script}"', hard_timeout=60)
    assert time.monotonic() - start < 30


def test_a_rotation_counts_for_the_next_connection_and_a_revocation_ends_sessions(server: Server, database: Postgres, secrets: None, folder: Path) -> None:
    set_password(database, "turns", "the-first-of-turns", "scram-sha-256", "CREATE")
    (database.dir / "data/pg_hba.conf").open("a").write("hostssl all turns all scram-sha-256\n")
    database.sql("SELECT pg_reload_conf()")
    put(server, "turns", value="the-first-of-turns", hosts=[DB], places=["postgres"])
    box = create(server, folder, env={"TURNS": "{{secret:turns}}", "PGSSLROOTCERT": "/etc/ssl/certs/ca-certificates.crt"})

    def sessions() -> int:
        return int(database.sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'turns' AND query LIKE '%pg_sleep%'"))

    try:
        box.bash(psql("SELECT pg_sleep(300)", "turns") + " 2>/tmp/ended", async_mode=True)
        until(lambda: sessions() == 1)
        set_password(database, "turns", "the-other-of-turns", "scram-sha-256")
        assert "password authentication failed" in refused(box, psql(WHO, "turns"))
        put(server, "turns", value="the-other-of-turns")
        assert box.output(psql(WHO, "turns")) == "turns true"
        assert sessions() == 1, "an open session stays"
        assert httpx.delete(f"{server.url}/api/v2/secrets/turns").status_code == 200
        until(lambda: box.bash("test -s /tmp/ended").exit_code == 0)
        assert "revoked" in refused(box, psql(WHO, "turns"))
        assert decisions(box)[-1]["reason"] == "secret_revoked"
    finally:
        box.delete()


def test_no_copy_is_in_the_sandbox(box: LiveSandbox) -> None:
    box.output(f"cat > /tmp/search.py <<'END'\n{SEARCH}\nEND")
    # A session that goes on.
    box.bash(psql("SELECT pg_sleep(100)", "scram"), async_mode=True)
    until(lambda: "pg_sleep" in box.output("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"))
    found = box.output(f"sudo python3 /tmp/search.py {disguised(placeholder(box, 'scram').encode())}", hard_timeout=60)
    assert "memory of" in found, found
    forms = [form for password in PASSWORDS.values() for form in encoded(password)]
    assert box.output(f"sudo python3 /tmp/search.py {' '.join(map(disguised, forms))}", hard_timeout=60) == "found []"


def test_the_trajectory_has_the_connections(box: LiveSandbox) -> None:
    def records() -> list[dict[str, Any]]:
        answer = httpx.get(f"{box.base_url}/api/v1/trajectories/{box.id}/network").raise_for_status()
        return [record for record in answer.json()["network"] if record.get("protocol") == "postgres"]

    until(lambda: any(record["allowed"] for record in records()) and any(not record["allowed"] for record in records()))
    assert not any(password in str(records()) for password in PASSWORDS.values())


def test_the_command_line_sets_the_place(server: Server, tmp_path: Path) -> None:
    value = tmp_path / "value"
    value.write_text("by-hand-password\n")
    set_it = ("secret", "set", "by-hand-database", "--host", DB, "--in", "postgres", "--from-file", str(value))
    assert run(server, *set_it).stdout == "by-hand-database\n"
    listed = run(server, "secret", "ls", "--json").stdout
    assert [secret["places"] for secret in json.loads(listed)["secrets"] if secret["name"] == "by-hand-database"] == [["postgres"]]
    assert run(server, "secret", "rm", "by-hand-database").returncode == 0
