"""The `arenite` program as a process that this one started."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


class StartError(RuntimeError):
    """It could not be started."""


class ServerProcess:
    def __init__(self, process: subprocess.Popen[bytes], log: Path | None, made: list[Path]) -> None:
        self._process = process
        self._log = log
        self._made = made

    @classmethod
    def start(
        cls,
        host: str,
        port: int,
        configuration: dict[str, Any] | str | None,
        log: str | Path | None = "",
        plugin_path: str | None = None,
    ) -> ServerProcess:
        """Starts `arenite serve`, in a session of its own, so that it outlives this program.

        Args:
            configuration: AgentFlow's, as a path or as a value.
            log: where its words go; "" is a new temporary file, None is where this program's go.
            plugin_path: where the plugin hosts of this server look for modules besides Python's own path.
        """
        made: list[Path] = []
        command = [binary(), "serve", "--listen", f"{address(host)}:{port}"]
        environment = dict(os.environ)
        if plugin_path:
            environment["ARENITE_PLUGIN_PATH"] = plugin_path
        if isinstance(configuration, str):
            command += ["--agentflow-config", str(Path(configuration).resolve())]
        elif configuration is not None:
            handle, name = tempfile.mkstemp(prefix="arenite-", suffix=".json")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(configuration, file, indent=2)
            made.append(Path(name))
            command += ["--agentflow-config", name]
        path: Path | None = None
        if log is None:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, start_new_session=True)
            return cls(process, None, made)
        if log == "":
            handle, name = tempfile.mkstemp(prefix="arenite-", suffix=".log")
            os.close(handle)
            path = Path(name)
        else:
            path = Path(log)
        with path.open("ab") as out:
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True
                )
            except OSError as error:
                raise StartError(f"{command[0]} could not be started: {error}") from error
        return cls(process, path, made)

    @property
    def log_path(self) -> Path | None:
        return self._log

    def status(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def tail(self, lines: int = 100) -> str:
        if self._log is None:
            return ""
        try:
            text = self._log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:]) if lines > 0 else ""

    def wait(self) -> int:
        return self._process.wait()

    def stop(self, patience: float = 10.0) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(patience)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for path in self._made:
            path.unlink(missing_ok=True)


def binary() -> str:
    """ARENITE_BIN, else `arenite` on the PATH."""
    named = os.environ.get("ARENITE_BIN")
    found = shutil.which(named or "arenite")
    if found is None and named:
        raise StartError(f"ARENITE_BIN names {named}, which is not a program")
    if found is None:
        raise StartError("there is no program arenite on the PATH; install it, or name it in ARENITE_BIN")
    return found


def address(host: str) -> str:
    """`arenite` listens on addresses, and `localhost` is a name."""
    if host in ("localhost", ""):
        return "127.0.0.1"
    try:
        family, _, _, _, where = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise StartError(f"host {host!r} has no address: {error}") from error
    return f"[{where[0]}]" if family == socket.AF_INET6 else str(where[0])


def place(url: str) -> tuple[str, int]:
    """Host and port of a URL."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    return parts.hostname or "127.0.0.1", parts.port or (443 if parts.scheme == "https" else 80)
