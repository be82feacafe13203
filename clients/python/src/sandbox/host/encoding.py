"""Values to lines of JSON, strictly: what the other side could not read is refused here, by name."""

from __future__ import annotations

import json
import re
from typing import Any

from .errors import Refused

#: Bytes of a line, in both directions.
LINE_LIMIT = 16 * 1024 * 1024

#: Levels of lists and objects in a result. Readers of JSON stop at 128, and the answer around it has some of its own.
DEPTH_LIMIT = 100

#: Making one takes as long as encoding a short answer.
_encoder = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))

#: The largest finite number of a double has 309 digits.
_LONG_NUMBER = re.compile(rb"\d{309}")


def encode(message: dict[str, Any]) -> bytes:
    """Raises Refused of kind not_json."""
    try:
        line = _encoder.encode(message).encode("utf-8")
    except UnicodeEncodeError:
        raise _refused("the result has half a surrogate pair in a text", "UnicodeEncodeError") from None
    except RecursionError:
        raise _refused("the result is nested too deep, or contains itself", "RecursionError") from None
    except Exception as error:  # TypeError and ValueError, or what a subclass of dict raised
        raise _refused(f"the result is not JSON: {error}", type(error).__name__) from None
    if len(line) >= LINE_LIMIT:
        raise _refused(f"the result has {len(line)} bytes as JSON; a line has less than {LINE_LIMIT}", "ValueError")
    # Looking at every value costs more than encoding them did; most results can't have either fault.
    if line.count(b"[") + line.count(b"{") > DEPTH_LIMIT or _LONG_NUMBER.search(line):
        _check(message)
    return line + b"\n"


def _check(message: Any) -> None:
    level, depth = [message], 0
    while level:
        depth += 1
        if depth > DEPTH_LIMIT + 2:
            raise _refused(f"the result is nested deeper than {DEPTH_LIMIT} levels", "RecursionError")
        below: list[Any] = []
        for value in level:
            inner = value.values() if isinstance(value, dict) else value
            for item in inner:
                if isinstance(item, (dict, list, tuple)):
                    below.append(item)
                elif isinstance(item, int) and abs(item) >= 10**308:
                    raise _refused("the result has a number that no double can hold", "OverflowError")
        level = below


def _refused(message: str, type_name: str) -> Refused:
    return Refused(message, "not_json", type_name)
