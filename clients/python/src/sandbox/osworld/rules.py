"""How values are compared: likeness of texts, rules with a method and a reference, and addresses."""

from __future__ import annotations

import operator
import re
from functools import reduce
from typing import Any
from urllib.parse import urlparse, urlunparse

from .files import WrongEvaluator

#: Letters that a rule of the form `range.te` may have: less than, or less than or equal.
_RANGE = {"t": operator.lt, "e": operator.le}


def ratio(a: str, b: str) -> float:
    """How alike two texts are, from 0 to 1: twice their longest common subsequence over their length."""
    if not a and not b:
        return 1.0
    try:
        from rapidfuzz import fuzz
    except ImportError:
        return 2 * _common(a, b) / (len(a) + len(b))
    return float(fuzz.ratio(a, b)) / 100


def _common(a: str, b: str) -> int:
    """The length of the longest common subsequence: one bit for each character of `a`, all at once."""
    places: dict[str, int] = {}
    for at, char in enumerate(a):
        places[char] = places.get(char, 0) | 1 << at
    whole = (1 << len(a)) - 1
    row = whole
    for char in b:
        met = row & places.get(char, 0)
        row = ((row + met) | (row - met)) & whole
    return len(a) - row.bit_count()


def expected(rules: Any) -> Any:
    """What a rule expects."""
    if not isinstance(rules, dict) or "expected" not in rules:
        raise WrongEvaluator("the rules have to be an object with expected")
    return rules["expected"]


def mapping(rules: Any) -> dict[str, Any]:
    if not isinstance(rules, dict):
        raise WrongEvaluator("the rules have to be an object")
    return rules


def pattern(source: Any, flags: int = 0) -> re.Pattern[str]:
    try:
        return re.compile(source, flags)
    except (re.error, TypeError, OverflowError, RecursionError) as error:
        raise WrongEvaluator(f"{source!r} is no regular expression: {error}") from None


def match_record(wanted: dict[str, Any], record: dict[str, Any]) -> bool:
    return all(key in record and record[key] == value for key, value in wanted.items())


def match_value(value: Any, rule: dict[str, Any]) -> bool:
    """Whether a value meets `{"method": ..., "ref": ...}`."""
    method, ref = str(mapping(rule).get("method")), rule.get("ref")
    if method in ("eq", "ne"):
        return bool(getattr(operator, method)(value, ref))
    if method in ("le", "lt", "ge", "gt"):
        try:
            return bool(getattr(operator, method)(value, ref))
        except TypeError:
            return False
    if method.partition(".")[0] == "re":
        names = [flag for flag in method.split(".")[1:] if flag]
        unknown = [flag for flag in names if not isinstance(getattr(re, flag, None), re.RegexFlag)]
        if unknown:
            raise WrongEvaluator(f"there is no flag {unknown[0]} of regular expressions")
        flags = reduce(operator.or_, (getattr(re, flag) for flag in names), 0)
        return isinstance(value, str) and pattern(ref, int(flags)).search(value) is not None
    if method.startswith("approx:"):
        try:
            return abs(float(value) - float(ref)) <= float(method.partition(":")[2])  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return False
    if method.startswith("range.") and len(method) == 8 and set(method[6:]) <= set(_RANGE):
        low, high = _pair(ref)
        try:
            return bool(_RANGE[method[6]](low, value) and _RANGE[method[7]](value, high))
        except TypeError:
            return False
    if method in ("str_list_eq", "str_set_eq"):
        parts = str(value).strip("\"'").split(",")
        return parts == list(ref or []) if method == "str_list_eq" else set(parts) == set(ref or [])
    if method == "spreadsheet_range":
        inner, outer = _pair(ref)
        return cells(inner) <= cells(str(value)) <= cells(outer)
    raise WrongEvaluator(f"there is no method {method!r} of rules")


def _pair(ref: Any) -> tuple[Any, Any]:
    if not isinstance(ref, list) or len(ref) != 2:
        raise WrongEvaluator("ref has to be a list of two")
    return ref[0], ref[1]


_CELL = re.compile(r"^\$?([A-Za-z]{1,3})\$?(\d{1,7})(?::\$?([A-Za-z]{1,3})\$?(\d{1,7}))?$")

#: Cells that one rule may be about.
CELL_LIMIT = 1_000_000


def cells(ranges: Any) -> set[tuple[int, int]]:
    """Row and column of every cell of `A1:B3 D4`, or of a list of such."""
    found: set[tuple[int, int]] = set()
    for part in (ranges if isinstance(ranges, list) else str(ranges).split()):
        match = _CELL.match(str(part).strip())
        if match is None:
            raise WrongEvaluator(f"{part!r} is no range of cells")
        left, top = _column(match[1]), int(match[2])
        right, bottom = (_column(match[3]), int(match[4])) if match[3] else (left, top)
        if (abs(bottom - top) + 1) * (abs(right - left) + 1) > CELL_LIMIT:
            raise WrongEvaluator(f"{part!r} has more than {CELL_LIMIT} cells")
        found.update((row, column) for row in range(top, bottom + 1) for column in range(left, right + 1))
    return found


def _column(letters: str) -> int:
    return reduce(lambda number, letter: number * 26 + ord(letter) - 64, letters.upper(), 0)


def same_url(a: Any, b: Any) -> bool:
    """Whether two addresses mean the same, whatever their `www.`, their case or a last slash."""
    if not isinstance(a, str) or not isinstance(b, str):
        return a is None and b is None
    return _plain(a) == _plain(b)


def _plain(url: str) -> str:
    try:
        parsed = urlparse(url if "://" in url else f"http://{url}")
    except ValueError:
        return url
    path = "" if parsed.path == "/" else parsed.path
    host = parsed.netloc.lower().replace("www.", "")
    return urlunparse(parsed._replace(scheme=parsed.scheme.lower(), netloc=host, path=path))
