"""Results of commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .errors import CommandFailed
from .models import Model


@dataclass(frozen=True)
class Output:
    """A piece of a command's output."""

    stream: Literal["stdout", "stderr"]
    text: str


@dataclass(frozen=True)
class CommandResult:
    command: str
    stdout: str
    stderr: str
    #: 128 + n when signal n ended the command; None when it was killed.
    exit_code: int | None
    #: `completed`, `timed_out`, or `killed`.
    status: str

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def timed_out(self) -> bool:
        return self.status == "timed_out"

    def check(self) -> CommandResult:
        """Raises `CommandFailed` unless the exit code is 0."""
        if not self.ok:
            raise CommandFailed(self)
        return self


@dataclass(frozen=True)
class EventGap:
    """Stands for events that the server lost. List the sandboxes to see their states."""

    type: Literal["gap"] = "gap"


class FileChange(Model):
    """A change of a watched file."""

    #: `create`, `write`, `remove`, `rename`, or `chmod`.
    type: str
    path: str
    #: Where it was, for `rename`.
    old_path: str | None = None
    is_dir: bool
    #: Seconds since 1970.
    timestamp: float
