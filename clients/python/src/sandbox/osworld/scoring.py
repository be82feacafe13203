"""OSWorld's metrics as a tool of the plugin host. Nobody but the server calls it."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

from ..server.backends.error_codes import ErrorCode
from ..server.backends.tools import register_api_tool
from .files import File, Missing, WrongEvaluator
from .metrics import judge

#: Bytes of memory that files of a machine may take here, and of a file that is written.
MEMORY = 4 << 30
WRITTEN = 64 << 20


def _bound(kind: int, most: int) -> None:
    soft, hard = resource.getrlimit(kind)
    limits = [one for one in (soft, hard, most) if one != resource.RLIM_INFINITY]
    resource.setrlimit(kind, (min(limits), hard))


_bound(resource.RLIMIT_AS, MEMORY)
_bound(resource.RLIMIT_FSIZE, WRITTEN)
_bound(resource.RLIMIT_CORE, 0)


@register_api_tool("osworld:score", hidden=True)
def score(
    func: str,
    result: dict[str, Any],
    folder: str,
    expected: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Judges what was found. Files are told from values by their `kind`, and are below the folder."""
    root = Path(folder).resolve()
    try:
        there = None if expected is None else _untagged(expected, root)
        judged, reason = judge(func, _untagged(result, root), there, expected is not None, options)
    except WrongEvaluator as error:
        return {"code": ErrorCode.INVALID_INPUT, "message": str(error), "data": {}}
    except Missing as error:
        return {"code": ErrorCode.EXECUTION_ERROR, "message": str(error), "data": {}}
    except MemoryError:
        judged, reason = 0.0, "the file is too large to be judged"
    return {"code": ErrorCode.SUCCESS, "message": "success", "data": {"score": judged, "reason": reason}}


def _untagged(found: dict[str, Any], root: Path) -> Any:
    match found.get("kind"):
        case "value":
            return found.get("value")
        case "file":
            return _file(found["name"], root)
        case "files":
            return [None if name is None else _file(name, root) for name in found["names"]]
        case _:
            return None


def _file(name: str, root: Path) -> File:
    path = (root / name).resolve()
    if not path.is_relative_to(root):
        raise WrongEvaluator(f"{name!r} is not of this evaluation")
    return File(path)
