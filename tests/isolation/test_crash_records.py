"""What a server keeps of its sandboxes is damaged while it is away: no sandbox ends of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from arenite_server import binary
from isolation.test_network import PUBLIC, world  # noqa: F401
from sandboxes import LiveSandbox
from small import SmallServer
from waiting import until


@pytest.fixture
def fresh(small: SmallServer) -> Iterator[SmallServer]:
    """The small server, running, without sandboxes and with an empty quarantine."""
    if small.process is None:
        small.start()
    clear(small)
    yield small
    if small.process is None:
        small.start()
    clear(small)


def clear(server: SmallServer) -> None:
    server.delete_all_sandboxes()
    for item in quarantine(server):
        httpx.delete(f"{server.url}/api/v2/quarantine/{item['id']}", timeout=60).raise_for_status()


def quarantine(server: SmallServer) -> list[dict]:
    return httpx.get(f"{server.url}/api/v2/quarantine", timeout=30).raise_for_status().json()["quarantine"]


def warnings(server: SmallServer) -> list[str]:
    return httpx.get(f"{server.url}/api/v2/info", timeout=30).raise_for_status().json()["warnings"]


def arenite(server: SmallServer, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(binary()), *words, "--server", server.url], capture_output=True, text=True, timeout=60)


@dataclass
class Busy:
    """A sandbox with an environment, a file, and a process that goes on."""

    sandbox: LiveSandbox
    id: str
    spec: dict
    command: tuple[str, str]

    def is_as_before(self, server: SmallServer) -> None:
        sandbox = LiveSandbox(server.url, self.sandbox.name)
        details = sandbox.details()
        assert (details["id"], details["spec"]) == (self.id, self.spec)
        assert sandbox.output("echo $SECRET; cat /root/kept") == f"{self.sandbox.name}\nkept in {self.sandbox.name}"
        session, command = self.command
        output = sandbox.client.bash.output(session_id=session, command_id=command).data
        assert output.command.status == "running"


def busy(server: SmallServer, name: str) -> Busy:
    sandbox = server.create(name, env={"SECRET": name}, labels={"team": "records"})
    sandbox.output(f"echo kept in {name} > /root/kept")
    ticking = sandbox.bash("while true; do sleep 0.2; done", async_mode=True)
    details = sandbox.details()
    return Busy(sandbox, details["id"], details["spec"], (ticking.session_id, ticking.command_id))


def remove_store(server: SmallServer) -> None:
    (server.data_dir / "control.sqlite").unlink()


def remove_all_of_the_store(server: SmallServer) -> None:
    for file in server.data_dir.glob("control.sqlite*"):
        file.unlink()


def empty_store(server: SmallServer) -> None:
    os.truncate(server.data_dir / "control.sqlite", 0)


def garble_store(server: SmallServer) -> None:
    file = server.data_dir / "control.sqlite"
    file.write_bytes(b"not a database " * (file.stat().st_size // 15 + 100))
    (server.data_dir / "control.sqlite-wal").unlink(missing_ok=True)


def damage_store(server: SmallServer) -> None:
    """Of the first page the header alone is whole."""
    file = server.data_dir / "control.sqlite"
    with file.open("r+b") as store:
        store.seek(100)
        store.write(b"\xff" * (file.stat().st_size - 100))
    (server.data_dir / "control.sqlite-wal").unlink(missing_ok=True)


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("damage", [remove_store, remove_all_of_the_store, empty_store, garble_store, damage_store])
def test_sandboxes_outlive_the_store(fresh: SmallServer, damage: Callable[[SmallServer], None], is_killed: bool) -> None:
    all_of_them = [busy(fresh, f"outlives-{number}") for number in range(3)]
    paused = all_of_them[2].sandbox
    httpx.post(f"{fresh.url}/api/v2/sandboxes/{paused.name}/pause", timeout=30).raise_for_status()
    before = fresh.states()
    made = {one.id: one.sandbox.details()["created_at"][:19] for one in all_of_them}
    fresh.kill() if is_killed else fresh.stop()
    damage(fresh)
    left = {file.name: file.stat().st_size for file in fresh.data_dir.glob("control.sqlite*") if file.suffix != ".lock"}
    fresh.start()
    assert fresh.states() == before
    assert quarantine(fresh) == []
    assert {one.id: LiveSandbox(fresh.url, one.sandbox.name).details()["created_at"][:19] for one in all_of_them} == made
    httpx.post(f"{fresh.url}/api/v2/sandboxes/{paused.name}/resume", timeout=30).raise_for_status()
    for one in all_of_them:
        one.is_as_before(fresh)
    aside = [file for file in fresh.data_dir.glob("control.sqlite.unreadable-*")]
    if damage in (garble_store, damage_store):
        assert left["control.sqlite"] in [file.stat().st_size for file in aside], "the unreadable one is kept"
        assert any("unreadable" in warning for warning in warnings(fresh))
    for file in aside:
        file.unlink()
    # Rows that were made again are rows like others.
    fresh.restart()
    assert fresh.states() == before | {paused.name: "running"}
    all_of_them[0].is_as_before(fresh)
    assert all_of_them[0].sandbox.delete().status_code == 200


def test_an_older_store_lacks_only_what_is_made_again(fresh: SmallServer, tmp_path: Path) -> None:
    first = busy(fresh, "first")
    fresh.stop()
    shutil.copy(fresh.data_dir / "control.sqlite", tmp_path)
    fresh.start()
    first.sandbox.delete()
    second = busy(fresh, "second")
    # Its name is that of a sandbox which the older store still has.
    taken = busy(fresh, "first")
    fresh.stop()
    shutil.copy(tmp_path / "control.sqlite", fresh.data_dir)
    fresh.start()
    second.is_as_before(fresh)
    assert fresh.states() == {"first": "lost", "second": "running"}
    (item,) = quarantine(fresh)
    assert (item["id"], item["name"], item["has_record"]) == (taken.id, "first", True)
    assert "name first is that of another sandbox" in item["reason"]
    refused = arenite(fresh, "quarantine", "adopt", taken.id)
    assert refused.returncode == 4 and "already exists" in refused.stderr, refused
    adopted = json.loads(arenite(fresh, "quarantine", "adopt", taken.id, "rescued", "--json").stdout)
    assert (adopted["name"], adopted["state"]) == ("rescued", "running")
    rescued = LiveSandbox(fresh.url, "rescued")
    assert rescued.output("echo $SECRET; cat /root/kept") == "first\nkept in first"
    fresh.kill()
    remove_all_of_the_store(fresh)
    fresh.start()
    assert fresh.states() == {"rescued": "running", "second": "running"}, "the record has its new name"


@pytest.mark.parametrize("directory", ["run", "records"])
def test_either_directory_of_records_is_enough(fresh: SmallServer, directory: str) -> None:
    all_of_them = [busy(fresh, f"{directory}-{number}") for number in range(2)]
    shutil.rmtree(fresh.data_dir / directory)
    for one in all_of_them:
        one.is_as_before(fresh)
    after = fresh.create("made-without-it")
    fresh.kill()
    shutil.rmtree(fresh.data_dir / directory)
    fresh.start()
    for one in all_of_them:
        one.is_as_before(fresh)
        for place in ("run", "records"):
            assert {"sandbox.json", "guest.sock"} <= set(os.listdir(fresh.data_dir / place / one.id))
    assert after.output("echo there") == "there"
    assert "restored the record" in fresh.log_tail(20_000)
    # Restored is as good as made.
    fresh.kill()
    shutil.rmtree(fresh.data_dir / ("records" if directory == "run" else "run"))
    fresh.start()
    for one in all_of_them:
        one.is_as_before(fresh)


@pytest.mark.parametrize("place", ["run", "records"])
def test_a_cut_record_is_read_from_its_copy(fresh: SmallServer, place: str) -> None:
    one = busy(fresh, "cut")
    fresh.kill()
    record = fresh.data_dir / place / one.id / "sandbox.json"
    whole = record.read_bytes()
    os.truncate(record, len(whole) // 2)
    remove_all_of_the_store(fresh)
    fresh.start()
    one.is_as_before(fresh)
    assert record.read_bytes() == whole
    assert quarantine(fresh) == []


def cut_both(server: SmallServer, id: str) -> None:
    for place in ("run", "records"):
        os.truncate(server.data_dir / place / id / "sandbox.json", 60)


def processes_of(server: SmallServer, id: str) -> int:
    (item,) = [item for item in quarantine(server) if item["id"] == id]
    return item["processes"]


def test_what_no_record_explains_is_kept_until_it_is_adopted_or_removed(fresh: SmallServer) -> None:
    sound, one, other = busy(fresh, "sound"), busy(fresh, "one"), busy(fresh, "other")
    fresh.kill()
    cut_both(fresh, one.id)
    cut_both(fresh, other.id)
    # Of the one there is a row, of the other only processes and a disk.
    store = fresh.data_dir / "control.sqlite"
    code = f"import sqlite3; db = sqlite3.connect({str(store)!r}); db.execute('delete from sandboxes where id = ?', ({other.id!r},)); db.commit()"
    subprocess.run(["python3", "-c", code], check=True)
    fresh.start()
    assert fresh.states() == {"sound": "running"}
    found = {item["id"]: item for item in quarantine(fresh)}
    assert {id: item["name"] for id, item in found.items()} == {one.id: "one", other.id: None}
    for item in found.values():
        assert item["processes"] > 2 and item["has_disk"] and not item["has_record"] and "cut short" in item["reason"]
    assert any("2 sandboxes are in quarantine" in warning for warning in warnings(fresh))
    listed = arenite(fresh, "quarantine", "ls")
    assert one.id in listed.stdout and "lost, with its disk" in listed.stdout, listed
    assert len(json.loads(arenite(fresh, "quarantine", "ls", "--json").stdout)["quarantine"]) == 2
    # Its name stays its own, and who calls it reads what to do.
    for method, path in [("POST", "/sandbox/one/v1/bash/exec"), ("DELETE", "/api/v2/sandboxes/one"), ("POST", "/api/v2/sandboxes")]:
        refused = httpx.request(method, f"{fresh.url}{path}", json={"name": "one", "command": "true"} if "exec" in path else {"name": "one"})
        assert refused.status_code == 409 and one.id in refused.text, refused.text
    # Nothing of others is given to new ones, and what is made and removed beside them leaves them alone.
    for number in range(3):
        new = fresh.create(f"beside-{number}")
        assert new.output("echo made") == "made"
        new.delete()
    since = {id: item["since"] for id, item in found.items()}
    fresh.restart()
    assert {item["id"]: item["since"] for item in quarantine(fresh)} == since, "a restart changes nothing"
    assert processes_of(fresh, one.id) > 2
    refused = subprocess.run(
        [str(binary()), "image", "rm", "tiny", "--force", "--data-dir", str(fresh.data_dir)], capture_output=True, text=True
    )
    assert refused.returncode != 0 and "not known which layers" in refused.stderr, refused

    adopted = httpx.post(f"{fresh.url}/api/v2/quarantine/{one.id}/adopt", timeout=60)
    assert adopted.status_code == 200, adopted.text
    assert (adopted.json()["name"], adopted.json()["state"]) == ("one", "lost")
    assert "record could not be read" in adopted.json()["reason"] and adopted.json()["spec"] == one.spec
    disk = fresh.in_pool() / "uppers" / one.id / "upper/root/kept"
    assert disk.read_text() == "kept in one\n"
    asked = arenite(fresh, "quarantine", "rm", other.id)
    assert asked.returncode == 1 and "--force" in asked.stderr, asked
    removed = arenite(fresh, "quarantine", "rm", other.id, "--force", "--json")
    assert json.loads(removed.stdout) == {"deleted": [other.id]}, removed
    assert not (fresh.in_pool() / "uppers" / other.id).exists() and quarantine(fresh) == []
    assert not any("quarantine" in warning for warning in warnings(fresh))
    assert arenite(fresh, "quarantine", "rm", other.id, "--force").returncode == 3
    fresh.restart()
    assert fresh.states() == {"sound": "running", "one": "lost"} and disk.exists()
    sound.is_as_before(fresh)
    started = arenite(fresh, "start", "one")
    assert started.returncode == 0, started
    assert LiveSandbox(fresh.url, "one").output("echo $SECRET; cat /root/kept") == "one\nkept in one"
    assert httpx.delete(f"{fresh.url}/api/v2/sandboxes/one", timeout=60).status_code == 200
    assert not disk.exists()


def test_a_record_of_a_newer_version_is_left_alone(fresh: SmallServer) -> None:
    one = busy(fresh, "newer")
    fresh.kill()
    newer = b'{"version":9,"layout":"unheard of"}\n\x00\x01'
    before = {}
    for place in ("run", "records"):
        record = fresh.data_dir / place / one.id / "sandbox.json"
        before[record] = record.read_bytes()
        record.write_bytes(newer)
    fresh.start()
    (item,) = quarantine(fresh)
    assert "version 9" in item["reason"] and item["processes"] > 2
    fresh.stop()
    for record, whole in before.items():
        assert record.read_bytes() == newer
        record.write_bytes(whole)
    fresh.start()
    one.is_as_before(fresh)
    assert quarantine(fresh) == []


def test_a_network_policy_that_can_not_be_read_closes_the_network(fresh: SmallServer, world: None) -> None:  # noqa: F811
    box = fresh.create("walled", network={"mode": "allowlist", "allow": [f"{PUBLIC[0]}:8123"]})
    id = box.details()["id"]
    places = [fresh.data_dir / place / id / "sandbox.json" for place in ("run", "records")]
    whole = places[0].read_text()
    pid = json.loads(whole.splitlines()[-1])["pid"]

    def status(port: int) -> str:
        ask = ["nsenter", f"--net=/proc/{pid}/ns/net", "curl", "-s", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}"]
        return subprocess.run([*ask, f"http://{PUBLIC[0]}:{port}/"], capture_output=True, text=True).stdout

    assert (status(8123), status(8124)) == ("200", "403")
    fresh.kill()
    for place in places:
        place.write_bytes(b'{"version":9,"layout":"unheard of"}\n')
    fresh.start()
    assert [item["id"] for item in quarantine(fresh)] == [id]
    assert (status(8123), status(8124)) == ("000", "000")
    fresh.stop()
    for place in places:
        place.write_text(whole)
    fresh.start()
    until(lambda: status(8123) == "200")
    assert status(8124) == "403"


def test_too_few_descriptors_end_the_start_and_no_sandbox(fresh: SmallServer) -> None:
    all_of_them = [busy(fresh, f"descriptors-{number}") for number in range(12)]
    fresh.kill()
    for limit in (24, 32, 40, 48, 56):
        with pytest.raises(RuntimeError) as refused:
            start_with(fresh, limit)
        said = str(refused.value)
        assert "12 sandboxes need" in said and f"limit of this process is {limit}" in said and "LimitNOFILE" in said, said
    start_with(fresh, 128)
    assert set(fresh.states().values()) == {"running"} and len(fresh.states()) == 12
    for one in all_of_them:
        one.is_as_before(fresh)


def start_with(server: SmallServer, limit: int) -> None:
    """Starts it with so many open files."""
    command = server.command_line
    server.command_line = lambda extra=(): ["prlimit", f"--nofile={limit}:{limit}", *command(extra)]  # type: ignore[method-assign]
    try:
        server.start()
    finally:
        server.command_line = command  # type: ignore[method-assign]


def test_prepared_sandboxes_of_a_killed_server_are_removed(fresh: SmallServer) -> None:
    one = busy(fresh, "kept")
    fresh.kill()
    remove_all_of_the_store(fresh)
    shutil.rmtree(fresh.data_dir / "run")
    uppers = fresh.in_pool() / "uppers"
    assert len(os.listdir(uppers)) > 1
    before = set(os.listdir(uppers))
    fresh.start()
    assert "prepared and never used" in fresh.log_tail(20_000)
    assert set(os.listdir(uppers)) & before == {one.id}
    assert quarantine(fresh) == []
    one.is_as_before(fresh)


def test_a_half_deleted_sandbox_does_not_come_back(fresh: SmallServer) -> None:
    one = busy(fresh, "deleted")
    record = (fresh.data_dir / "run" / one.id / "sandbox.json").read_bytes()
    assert one.sandbox.delete().status_code == 200
    fresh.kill()
    remove_all_of_the_store(fresh)
    (fresh.data_dir / "run" / one.id).mkdir()
    (fresh.data_dir / "run" / one.id / "sandbox.json").write_bytes(record)
    fresh.start()
    assert fresh.states() == {} and quarantine(fresh) == []
    assert not (fresh.data_dir / "run" / one.id).exists()
