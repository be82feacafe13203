# Generated from _async/commands.py by generate.py: do not edit.
"""Commands in a sandbox."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from typing_extensions import Self

from .. import _wire as wire
from ..errors import NotFound
from ..models import BashExecResult, BashOutputResult
from ..results import CommandResult, Output

if TYPE_CHECKING:
    from .sandbox import Sandbox

Signal = Literal["SIGTERM", "SIGKILL", "SIGINT"]

#: Seconds that one call waits for the end of a command. Proxies cut connections that are silent for longer.
PATIENCE = 50
#: Seconds that a call waits for output.
WAIT = 20


class BashSession:
    """Commands that share a default directory. Each of them is a fresh process."""

    def __init__(self, sandbox: Sandbox, session_id: str | None) -> None:
        self._sandbox = sandbox
        #: None: each command gets a new session.
        self.id = session_id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except NotFound:
            pass

    def run(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        input: str | None = None,
        timeout: float | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Runs a command; see `Sandbox.run`."""
        if input is not None:
            process = self.spawn(command, cwd=cwd, env=env, timeout=timeout)
            process.write(input, close=True)
            result = process.wait()
        else:
            body = self._body(command, cwd, env, timeout)
            body |= {"close_stdin": True, "max_output_length": 0, "timeout": PATIENCE}
            done = BashExecResult.model_validate(_post(self._sandbox, "exec", body, None))
            if done.status == "running":
                result = Process(self._sandbox, done, None).wait()
            else:
                result = CommandResult(command, done.stdout or "", done.stderr or "", done.exit_code, done.status)
        return result.check() if check else result

    def spawn(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
    ) -> Process:
        """Starts a command; see `Sandbox.spawn`."""
        # The calls that follow a command with a separate session are one step.
        step = None if self.id else f"exec {secrets.token_hex(8)}"
        body = {**self._body(command, cwd, env, timeout), "async_mode": True}
        started = _post(self._sandbox, "exec", body, step)
        return Process(self._sandbox, BashExecResult.model_validate(started), step)

    def close(self) -> None:
        """Ends the session with all of its commands."""
        if self.id is not None:
            self._sandbox.request("POST", f"/v1/bash/sessions/{wire.segment(self.id)}/close")

    def _body(
        self, command: str, cwd: str | None, env: Mapping[str, str | None] | None, timeout: float | None
    ) -> dict[str, Any]:
        variables = None if env is None else dict(env)
        return {
            "command": command,
            **wire.present(session_id=self.id, exec_dir=cwd, env=variables, hard_timeout=timeout),
        }


class Process:
    """A command that was started. Iterating over it yields its output until it ends."""

    def __init__(self, sandbox: Sandbox, started: BashExecResult, step: str | None) -> None:
        self.command = started.command
        #: The result, once the command has ended and its output was read.
        self.result: CommandResult | None = None
        self._sandbox = sandbox
        self._session = started.session_id
        self._id = started.command_id
        self._step = step
        self._offset = 0
        self._stderr_offset = 0
        self._stdout: list[str] = []
        self._stderr: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kills the command if it still runs."""
        if self.result is None:
            try:
                self.kill("SIGKILL")
                self._release()
            except NotFound:
                pass

    def __iter__(self) -> Iterator[Output]:
        while self.result is None:
            for output in self._read():
                yield output

    def wait(self) -> CommandResult:
        """Reads the output to its end, and returns all of it with the exit code."""
        while self.result is None:
            self._read()
        return self.result

    def write(self, text: str, *, close: bool = False) -> None:
        """Writes to standard input, and closes it if `close`."""
        body = {"session_id": self._session, "command_id": self._id, "input": text, "close": close}
        _post(self._sandbox, "write", body, self._step)

    def kill(self, signal: Signal = "SIGTERM") -> None:
        """Sends a signal to all processes of the command."""
        _post(self._sandbox, "kill", {"session_id": self._session, "signal": signal}, self._step)

    def _read(self) -> list[Output]:
        """Waits for output, and returns it. Sets the result at the end."""
        body = {
            "session_id": self._session,
            "command_id": self._id,
            "offset": self._offset,
            "stderr_offset": self._stderr_offset,
            "wait": True,
            "wait_timeout": WAIT,
        }
        news = BashOutputResult.model_validate(_post(self._sandbox, "output", body, self._step))
        is_new = (news.offset, news.stderr_offset) != (self._offset, self._stderr_offset)
        self._offset, self._stderr_offset = news.offset, news.stderr_offset
        if not is_new and news.command is not None and news.command.status not in ("pending", "running"):
            stdout, stderr = "".join(self._stdout), "".join(self._stderr)
            self.result = CommandResult(self.command, stdout, stderr, news.command.exit_code, news.command.status)
            self._release()
        found = []
        if news.stdout:
            self._stdout.append(news.stdout)
            found.append(Output("stdout", news.stdout))
        if news.stderr:
            self._stderr.append(news.stderr)
            found.append(Output("stderr", news.stderr))
        return found

    def _release(self) -> None:
        """Ends the session if it is the command's own."""
        if self._step is not None:
            _post(self._sandbox, f"sessions/{wire.segment(self._session)}/close", None, f"{self._step} end")


def _post(sandbox: Sandbox, path: str, body: Any, step: str | None) -> Any:
    headers = {} if step is None else {"x-arenite-command": step}
    timeout = max(sandbox.client.timeout, PATIENCE + wire.MARGIN)
    call = wire.Call("POST", f"{sandbox._path}/v1/bash/{path}", json=body, headers=headers, timeout=timeout)
    return sandbox.client._call(call)
