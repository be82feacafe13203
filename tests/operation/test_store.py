"""The store in Postgres: starts and kills of the server, a database that is away and back, backup and restore."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from arenite_server import Server, binary
from postgres import Postgres
from sandboxes import LiveSandbox
from small import tiny_image, within


@pytest.fixture
def served(postgres: Postgres, own_server: Callable[..., Server]) -> Server:
    """A server with the image `tiny`, on the database."""
    server = own_server(args=("--default-image", "tiny"))
    server.environment = {"ARENITE_STORE": postgres.url}
    server.start()
    tiny_image(server.data_dir / "pool")
    return server


def create(server: Server, name: str) -> httpx.Response:
    return httpx.post(f"{server.url}/api/v2/sandboxes", json={"name": name}, timeout=60)


def states(server: Server) -> dict[str, str]:
    listed = httpx.get(f"{server.url}/api/v2/sandboxes", timeout=30).raise_for_status().json()["sandboxes"]
    return {sandbox["name"]: sandbox["state"] for sandbox in listed}


def refused(answer: httpx.Response) -> bool:
    """Whether the answer says that it may work later."""
    if answer.status_code == 201:
        return False
    assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0, answer.text
    return True


def store(*words: str, expected: int = 0, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ARENITE_")}
    command = [str(binary()), "store", *words]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == expected, done.stderr
    return done


def test_sandboxes_outlive_a_kill_and_a_database_that_is_away(postgres: Postgres, served: Server) -> None:
    for name in ("kept", "gone"):
        assert create(served, name).status_code == 201
    kept = LiveSandbox(served.url, "kept")
    about = kept.details()
    served.kill()
    served.start()
    assert states(served) == {"kept": "running", "gone": "running"} and kept.details()["id"] == about["id"]
    assert not (served.data_dir / "control.sqlite").exists()

    with ThreadPoolExecutor() as pool:
        call = pool.submit(kept.output, "echo begun; sleep 3; echo ended")
        time.sleep(0.5)
        postgres.stop()
        within(10, "a create is refused", lambda: refused(create(served, "new")))
        assert call.result() == "begun\nended"
    assert kept.output("echo still here") == "still here"
    ready = httpx.get(f"{served.url}/ready", timeout=30)
    assert ready.status_code == 503 and str(postgres.dir) not in ready.text, ready.text
    assert httpx.delete(f"{served.url}/api/v2/sandboxes/gone", timeout=60).status_code == 200
    assert states(served) == {"kept": "running"}

    # A removal that was not written yet outlives the server.
    served.kill()
    postgres.start()
    served.start()
    assert states(served) == {"kept": "running"}
    assert postgres.sql("SELECT name FROM sandboxes") == "kept\n"

    postgres.signal(signal.SIGSTOP)
    begun = time.monotonic()
    assert refused(create(served, "new")) and refused(create(served, "new"))
    assert time.monotonic() - begun < 10, "only the first create waits for an answer"
    assert kept.output("echo still here") == "still here"
    postgres.signal(signal.SIGCONT)
    within(20, "creates work again", lambda: not refused(create(served, "new")))
    assert postgres.sql("SELECT name FROM sandboxes ORDER BY name") == "kept\nnew\n"
    within(5, "the server is ready", lambda: httpx.get(f"{served.url}/ready", timeout=30).status_code == 200)
    assert served.stop() == 0
    served.start()
    assert states(served) == {"kept": "running", "new": "running"}
    served.delete_all_sandboxes()


def test_a_second_server_of_a_database_is_refused_before_it_mounts_anything(
    postgres: Postgres, served: Server, own_server: Callable[..., Server]
) -> None:
    second = own_server()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ARENITE_")} | served.environment
    ended = subprocess.run(second.command_line(), capture_output=True, text=True, timeout=60, env=environment)
    assert ended.returncode == 1 and "another server uses the store" in ended.stderr, ended.stderr
    assert f"arenite pid {served.pid} on " in ended.stderr and "hint:" in ended.stderr, ended.stderr
    assert not (second.data_dir / "pool.img").exists()
    # A successor on the same data directory waits until the first has left.
    first = served.process
    successor = own_server(data_dir=served.data_dir, port=served.port)
    successor.environment = served.environment
    successor.start(("--take-over",))
    assert first is not None and first.wait(30) == 0, served.log_tail()
    served.process = None
    assert postgres.url not in successor.log_tail(100_000)


def test_a_backup_is_restored_and_rows_move_to_sqlite(postgres: Postgres, served: Server, tmp_path: Path) -> None:
    assert create(served, "kept").status_code == 201
    backup, data = tmp_path / "backup.jsonl", ("--data-dir", str(served.data_dir))
    # Beside the server.
    store("export", str(backup), "--store", postgres.url, *data)
    header, row, end = map(json.loads, backup.read_text().splitlines())
    assert (header["format"], row["sandbox"]["name"], end["end"]["sandboxes"]) == ("arenite-store", "kept", 1)
    assert backup.stat().st_mode & 0o077 == 0
    assert create(served, "later").status_code == 201
    in_use = store("import", str(backup), "--replace", "--store", postgres.url, *data, expected=1)
    assert f"arenite pid {served.pid} on " in in_use.stderr, in_use.stderr

    served.stop()
    held = store("import", str(backup), "--store", postgres.url, *data, expected=1)
    assert "it holds 2 sandboxes already" in held.stderr and "--replace" in held.stderr, held.stderr
    store("import", str(backup), "--replace", "--store", postgres.url, *data)
    served.start()
    # Its row comes back from the record beside the store.
    assert states(served) == {"kept": "running", "later": "running"}

    served.stop()
    exported = store("export", "-", "--store", postgres.url, *data).stdout
    store("import", "-", *data, stdin=exported)
    served.environment = {}
    served.start()
    assert states(served) == {"kept": "running", "later": "running"}
    assert (served.data_dir / "control.sqlite").exists()
    served.delete_all_sandboxes()
