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
from ._async.groups import AsyncGroup, AsyncGroups
from ._async.model_routes import AsyncModels
from ._async.sandbox import AsyncSandbox, AsyncSandboxBatch, AsyncSandboxes
from ._async.secrets import AsyncSecrets
from ._async.snapshots import AsyncSnapshots
from ._async.trajectory import AsyncTrajectories, AsyncTrajectory
from ._async.volumes import AsyncVolume, AsyncVolumes
from ._async.webhooks import AsyncWebhooks
from ._sync.browser import Browser
from ._sync.client import Client
from ._sync.code import Code
from ._sync.commands import BashSession, Process
from ._sync.files import Files, FileWatch
from ._sync.groups import Group, Groups
from ._sync.model_routes import Models
from ._sync.sandbox import Sandbox, SandboxBatch, Sandboxes
from ._sync.secrets import Secrets
from ._sync.snapshots import Snapshots
from ._sync.trajectory import Trajectories, Trajectory
from ._sync.volumes import Volume, Volumes
from ._sync.webhooks import Webhooks
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
from .results import CommandResult, EventGap, FileChange, Output

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
    "AsyncGroup",
    "AsyncGroups",
    "AsyncModels",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncSandboxBatch",
    "AsyncSandboxes",
    "AsyncSecrets",
    "AsyncSnapshots",
    "AsyncTrajectories",
    "AsyncTrajectory",
    "AsyncVolume",
    "AsyncVolumes",
    "AsyncWebhooks",
    "BashSession",
    "Browser",
    "Client",
    "Code",
    "CommandFailed",
    "CommandResult",
    "Conflict",
    "ConnectionFailed",
    "EventGap",
    "Exhausted",
    "FileChange",
    "FileWatch",
    "Files",
    "Forbidden",
    "Group",
    "Groups",
    "InvalidRequest",
    "Models",
    "NotFound",
    "Output",
    "PreconditionFailed",
    "Process",
    "QuotaExceeded",
    "RequestTimedOut",
    "Sandbox",
    "SandboxBatch",
    "SandboxFailed",
    "Sandboxes",
    "ServerFailed",
    "ServerTimedOut",
    "TooLarge",
    "Secrets",
    "Snapshots",
    "Trajectories",
    "Trajectory",
    "Unauthorized",
    "Unsupported",
    "Volume",
    "Volumes",
    "Webhooks",
]
