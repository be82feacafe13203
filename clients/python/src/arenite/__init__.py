"""Client of Arenite: sandboxes for AI agents.

    with arenite.Sandbox.create(image="code") as sandbox:
        print(sandbox.run("uname -a").stdout)

Names that start with `Async` are the same for asyncio.
"""

from ._async.browser import AsyncBrowser
from ._async.client import AsyncClient
from ._async.code import AsyncCode
from ._async.commands import AsyncBashSession, AsyncProcess
from ._async.files import AsyncFiles, AsyncFileWatch
from ._async.sandbox import AsyncSandbox, AsyncSandboxes
from ._async.trajectory import AsyncTrajectories, AsyncTrajectory
from ._sync.browser import Browser
from ._sync.client import Client
from ._sync.code import Code
from ._sync.commands import BashSession, Process
from ._sync.files import Files, FileWatch
from ._sync.sandbox import Sandbox, Sandboxes
from ._sync.trajectory import Trajectories, Trajectory
from .errors import (
    AlreadyExists,
    APIError,
    AreniteError,
    CommandFailed,
    Conflict,
    ConnectionFailed,
    Exhausted,
    Forbidden,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    QuotaExceeded,
    RequestTimedOut,
    SandboxFailed,
    ServerFailed,
    ServerTimedOut,
    TooLarge,
    Unauthorized,
    Unsupported,
)
from .results import CommandResult, FileChange, Output

__all__ = [
    "APIError",
    "AlreadyExists",
    "AreniteError",
    "AsyncBashSession",
    "AsyncBrowser",
    "AsyncClient",
    "AsyncCode",
    "AsyncFileWatch",
    "AsyncFiles",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncSandboxes",
    "AsyncTrajectories",
    "AsyncTrajectory",
    "BashSession",
    "Browser",
    "Client",
    "Code",
    "CommandFailed",
    "CommandResult",
    "Conflict",
    "ConnectionFailed",
    "Exhausted",
    "FileChange",
    "FileWatch",
    "Files",
    "Forbidden",
    "InvalidRequest",
    "NotFound",
    "Output",
    "PreconditionFailed",
    "Process",
    "QuotaExceeded",
    "RequestTimedOut",
    "Sandbox",
    "SandboxFailed",
    "Sandboxes",
    "ServerFailed",
    "ServerTimedOut",
    "TooLarge",
    "Trajectories",
    "Trajectory",
    "Unauthorized",
    "Unsupported",
]
