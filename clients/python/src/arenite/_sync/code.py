# Generated from _async/code.py by generate.py: do not edit.
"""Code in a sandbox."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .. import _wire as wire
from ..models import CodeExecuteResponse

if TYPE_CHECKING:
    from .sandbox import Sandbox


class Code:
    """Runs Python and JavaScript."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def python(
        self, code: str, *, session: str | None = None, cwd: str | None = None, timeout: int = 30
    ) -> CodeExecuteResponse:
        """Runs Python in a Jupyter kernel. See `run`."""
        return self.run("python", code, session=session, cwd=cwd, timeout=timeout)

    def javascript(
        self, code: str, *, session: str | None = None, cwd: str | None = None, timeout: int = 30
    ) -> CodeExecuteResponse:
        """Runs JavaScript in Node.js. See `run`."""
        return self.run("javascript", code, session=session, cwd=cwd, timeout=timeout)

    def run(
        self,
        language: Literal["python", "javascript"],
        code: str,
        *,
        session: str | None = None,
        cwd: str | None = None,
        timeout: int = 30,
    ) -> CodeExecuteResponse:
        """Runs code.

        Args:
            session: the name of a session, which keeps its variables; created by its first use.
            timeout: seconds after which the code is interrupted, from 1 to 300.
        """
        body = {
            "language": language,
            "code": code,
            "timeout": timeout,
            "stateful": session is not None,
            **wire.present(session_id=session, cwd=cwd),
        }
        return CodeExecuteResponse.model_validate(self._sandbox._work("/v1/code/execute", body, timeout))
