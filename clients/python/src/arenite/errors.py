"""Errors of the client. `APIError` has one subclass for each kind of refusal, selected by the stable `code`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .results import CommandResult


class AreniteError(Exception):
    """The base of all errors of this package."""


class ConnectionFailed(AreniteError):
    """No complete answer arrived: the server is unreachable, or the connection broke."""


class RequestTimedOut(ConnectionFailed):
    """The server did not answer in time. It may have executed the request."""


class CommandFailed(AreniteError):
    """A command with `check=True` did not end with exit code 0."""

    def __init__(self, result: CommandResult) -> None:
        outcome = result.status if result.exit_code is None else f"exit code {result.exit_code}"
        last = result.stderr.strip().rpartition("\n")[2]
        super().__init__(f"{result.command!r} failed: {outcome}" + (f": {last}" if last else ""))
        self.result = result


class APIError(AreniteError):
    """The server refused a request."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        status: int,
        hint: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        body: Any = None,
    ) -> None:
        super().__init__(message if hint is None else f"{message} (hint: {hint})")
        self.message = message
        #: Stable across versions, such as `not_found`.
        self.code = code
        #: The status of HTTP.
        self.status = status
        #: How to go on.
        self.hint = hint
        #: Identifies the request in the server's log and in the step that it became.
        self.request_id = request_id
        #: Seconds to wait before a repetition, if the server named them.
        self.retry_after = retry_after
        #: The whole error body, with fields that depend on the error.
        self.body = body


class InvalidRequest(APIError):
    pass


class Unauthorized(APIError):
    """The key is missing or not valid."""


class Forbidden(APIError):
    """The key lacks the right."""


class QuotaExceeded(APIError):
    """The request exceeds a quota of the tenant."""


class NotFound(APIError):
    pass


class Conflict(APIError):
    pass


class AlreadyExists(Conflict):
    pass


class PreconditionFailed(APIError):
    """It has changed since the caller read it."""


class TooLarge(APIError):
    pass


class Exhausted(APIError):
    """A limit of rate, memory, disk, or number was reached. Retry later."""


class Unsupported(APIError):
    pass


class ServerTimedOut(APIError):
    """The server gave up on the work."""


class SandboxFailed(APIError):
    """The sandbox, or a program in it, failed."""


class ServerFailed(APIError):
    """The server has an internal error, or is not available."""


BY_CODE: dict[str, type[APIError]] = {
    "invalid_request": InvalidRequest,
    "unauthorized": Unauthorized,
    "forbidden": Forbidden,
    "quota_exceeded": QuotaExceeded,
    "not_found": NotFound,
    "already_exists": AlreadyExists,
    "conflict": Conflict,
    "precondition_failed": PreconditionFailed,
    "too_large": TooLarge,
    "exhausted": Exhausted,
    "unsupported": Unsupported,
    "timeout": ServerTimedOut,
    "sandbox_failed": SandboxFailed,
    "internal": ServerFailed,
}

#: For answers without a code, and for codes that this version does not know.
CODE_OF_STATUS = {
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    409: "conflict",
    412: "precondition_failed",
    413: "too_large",
    424: "sandbox_failed",
    429: "exhausted",
    501: "unsupported",
    502: "sandbox_failed",
    504: "timeout",
}


def code_of_status(status: int) -> str:
    return CODE_OF_STATUS.get(status, "internal" if status >= 500 else "invalid_request")


def error_class(code: str, status: int) -> type[APIError]:
    return BY_CODE.get(code) or BY_CODE[code_of_status(status)]
