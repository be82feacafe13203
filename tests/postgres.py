"""A Postgres server for one test: its own cluster in a temporary directory, on a Unix socket, as an unprivileged user, and on
request at an address of a network namespace.

A cluster is a copy of the run's first one, since making one takes much longer.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

#: Postgres refuses to run as root.
USER = pwd.getpwnam("nobody")
#: The cluster that is copied, once it is there.
TEMPLATE: list[Path] = []


class Postgres:
    #: Who may connect over a network.
    rules = "host all all samenet trust\n"

    def __init__(self, listen: str = "", namespace: str = "", rules: str = rules) -> None:
        self.listen = listen
        self.namespace = namespace
        self.settings: dict[str, object] = {}
        programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        if not programs:
            pytest.fail("Postgres is missing; install it: apt-get install postgresql")
        self.programs = programs[-1].parent
        # The path of a socket must be short.
        self.dir = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
        os.chown(self.dir, USER.pw_uid, USER.pw_gid)
        self.process: subprocess.Popen[bytes] | None = None
        subprocess.run(["cp", "-a", self._template(), self.dir / "data"], check=True)
        with (self.dir / "data/pg_hba.conf").open("a") as file:
            file.write(rules)
        self.start()

    @property
    def url(self) -> str:
        return f"postgres:///postgres?host={self.dir}&user=arenite"

    def _template(self) -> Path:
        if not TEMPLATE:
            folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            os.chown(folder, USER.pw_uid, USER.pw_gid)
            self._run("initdb", "-U", "arenite", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D", str(folder / "data"))
            TEMPLATE.append(folder / "data")
        return TEMPLATE[0]

    def _run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [self.programs / program, *arguments],
            user=USER.pw_uid,
            group=USER.pw_gid,
            extra_groups=[],
            cwd=self.dir,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def sql(self, statement: str) -> str:
        """Runs a statement, and returns its rows, one a line."""
        return self._run("psql", "-h", str(self.dir), "-U", "arenite", "-d", "postgres", "-v", "ON_ERROR_STOP=1", "-Atc", statement)

    def start(self) -> None:
        settings = [f"listen_addresses={self.listen}", "fsync=off", "shared_buffers=16MB", "max_connections=30"]
        settings += [f"{name}={value}" for name, value in self.settings.items()]
        command = [self.programs / "postgres", "-D", self.dir / "data", "-k", self.dir]
        user: dict[str, object] = {"user": USER.pw_uid, "group": USER.pw_gid, "extra_groups": []}
        if self.namespace:
            # Only root can enter it.
            ids = ["--reuid", str(USER.pw_uid), "--regid", str(USER.pw_gid), "--clear-groups"]
            command, user = ["ip", "netns", "exec", self.namespace, "setpriv", *ids, *command], {}
        with (self.dir / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *(word for setting in settings for word in ("-c", setting))],
                **user,
                cwd=self.dir,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 60
        while subprocess.run([self.programs / "pg_isready", "-q", "-h", self.dir]).returncode != 0:
            assert self.process.poll() is None and time.monotonic() < deadline, (self.dir / "log").read_text()
            time.sleep(0.05)

    def stop(self) -> None:
        """Ends all sessions at once, as a crash does."""
        assert self.process is not None
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(60)
        self.process = None

    def signal(self, number: int) -> None:
        """Sends a signal to all processes of the server."""
        assert self.process is not None
        pid = self.process.pid
        os.kill(pid, number)
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            # A session may have ended since.
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), number)

    def remove(self) -> None:
        if self.process is not None:
            self.signal(signal.SIGCONT)
            self.stop()
        shutil.rmtree(self.dir)
