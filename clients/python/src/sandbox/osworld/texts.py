"""Metrics of values and of plain files."""

from __future__ import annotations

import ast
import csv
import difflib
import io
import json
import operator
import re
import sqlite3
from typing import Any

from .files import (
    ARCHIVE_LIMIT,
    Missing,
    Unreadable,
    WrongEvaluator,
    archive,
    content,
    file,
    imported,
    member,
    text,
    xml,
)
from .rules import expected, mapping, match_record, match_value, pattern, ratio


def exact_match(result: Any, rules: Any) -> float:
    return float(result == expected(rules))


def match_in_list(result: Any, rules: Any) -> float:
    return float(result in _list(expected(rules)))


def is_in_list(result: Any, rules: Any) -> float:
    return float(result is not None and _holds(result, expected(rules)))


def fuzzy_match(result: Any, rules: Any) -> float:
    return 0.0 if result is None else ratio(str(result), str(expected(rules)))


def literal_match(result: Any, wanted: Any, type: str = "str", ignore_case: bool = False) -> float:
    def plain(value: Any) -> str:
        return str(value).lower() if ignore_case else str(value)

    if type == "str":
        return float(plain(result) == plain(wanted))
    if type != "list":
        raise WrongEvaluator(f"type is {type!r}, and has to be str or list")
    if not isinstance(result, list) or not isinstance(wanted, list):
        return 0.0
    return float([plain(one) for one in result] == [plain(one) for one in wanted])


def check_include_exclude(result: Any, rules: Any) -> float:
    if result is None:
        return 0.0
    include, exclude = mapping(rules).get("include", []), rules.get("exclude", [])
    return float(all(_holds(result, one) for one in include) and not any(_holds(result, one) for one in exclude))


def check_direct_json_object(result: Any, rules: Any) -> float:
    wanted = mapping(expected(rules))
    if isinstance(result, str):
        try:
            result = json.loads(result.strip())
        except ValueError:
            return 0.0
    if not isinstance(result, dict):
        return 0.0
    if not rules.get("expect_in_result", False):
        return float(all(result.get(key) == value for key, value in wanted.items()))
    for key, value in wanted.items():
        there = result.get(key)
        if isinstance(value, list):
            if not isinstance(there, list) or not any(one in there for one in value):
                return 0.0
        elif not isinstance(value, str) or there is None or not _holds(there, value):
            return 0.0
    return 1.0


def check_json(result: Any, rules: Any, is_yaml: bool = False) -> float:
    source = text(file(result))
    if is_yaml:
        yaml = imported("yaml", "pyyaml")
        try:
            data = yaml.safe_load(source)
        except (yaml.YAMLError, RecursionError) as error:
            raise Unreadable(f"the file is no YAML: {error}") from None
    else:
        data = _json(source)

    def at(keys: list[Any]) -> Any:
        value = data
        for key in keys:
            value = value[key]
        return value

    for rule in mapping(rules).get("expect", []):
        try:
            value = at(rule["key"])
        except (KeyError, IndexError, TypeError):
            return 0.0
        if not match_value(value, rule):
            return 0.0
    for rule in rules.get("unexpect", []):
        try:
            value = at(rule["key"])
        except (KeyError, IndexError, TypeError):
            value = None
        if match_value(value, rule):
            return 0.0
    return 1.0


def check_csv(result: Any, rules: Any) -> float:
    wanted, unwanted = mapping(rules).get("expect", []), rules.get("unexpect", [])
    met = [False] * len(wanted)
    try:
        for record in csv.DictReader(io.StringIO(text(file(result)), newline="")):
            met = [is_met or match_record(one, record) for is_met, one in zip(met, wanted)]
            if any(match_record(one, record) for one in unwanted):
                return 0.0
    except csv.Error as error:
        raise Unreadable(f"the file is no CSV: {error}") from None
    return float(all(met))


def check_list(result: Any, rules: Any) -> float:
    wanted = [pattern(one) for one in mapping(rules).get("expect", [])]
    unwanted = [pattern(one) for one in rules.get("unexpect", [])]
    lines = text(file(result)).splitlines()
    return float(
        all(any(one.search(line) for line in lines) for one in wanted)
        and not any(one.search(line) for one in unwanted for line in lines)
    )


def file_contains(result: Any, rules: Any) -> float:
    source, wanted = text(file(result)), expected(rules)
    return float(all(one in source for one in ([wanted] if isinstance(wanted, str) else _list(wanted))))


def diff_text_file(result: Any, wanted: Any) -> float:
    a, b = text(file(result)).splitlines(), text(file(wanted, "expected")).splitlines()
    return difflib.SequenceMatcher(a=a, b=b).ratio()


def compare_text_file(result: Any, wanted: Any, ignore_blanks: bool = False, ignore_case: bool = False) -> float:
    def plain(source: str) -> str:
        source = re.sub(r"\s+", " ", source).strip() if ignore_blanks else source
        return source.lower() if ignore_case else source

    return float(plain(text(file(result))) == plain(text(file(wanted, "expected"))))


def compare_csv(result: Any, wanted: Any, strict: bool = True, ignore_case: bool = False) -> float:
    def lines(source: str) -> list[str]:
        found = source.splitlines() if strict else [line.strip() for line in source.splitlines()]
        return [line.lower() for line in found] if ignore_case else found

    return float(lines(text(file(result))) == lines(text(file(wanted, "expected"))))


def compare_config(result: Any, rules: Any) -> float:
    return float(text(file(result)) == expected(rules))


def compare_answer(result: Any, rules: Any) -> float:
    return float(result is not None and result == expected(rules))


def compare_python_pure_text(result: Any, wanted: Any) -> float:
    """Without anything that is blank."""
    return float("".join(text(file(result)).split()) == "".join(text(file(wanted, "expected")).split()))


def compare_terminal_and_txt(result: Any, terminal: Any) -> float:
    return float(terminal is not None and text(file(result)) == terminal)


def compare_zip_files(result: Any, wanted: Any) -> float:
    with archive(file(result)) as a, archive(file(wanted, "expected")) as b:
        names = sorted(a.namelist())
        if names != sorted(b.namelist()):
            return 0.0
        return float(all(member(a, one) == member(b, one) for one in names))


def compare_result_files(result: Any, wanted: Any) -> float:
    return float(content(file(result)) == content(file(wanted, "expected")))


def is_included_all_json_objects(part: Any, whole: Any) -> float:
    """Whether each pair of the first file is in the second."""
    inner, outer = _json(text(file(part))), _json(text(file(whole, "expected")))
    return float(isinstance(inner, dict) and isinstance(outer, dict) and match_record(inner, outer))


def check_line_number(result: Any, rules: Any) -> float:
    """How many lines tell a time of day."""
    clock = re.compile(r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)")
    found = sum(clock.search(line) is not None for line in text(file(result)).splitlines())
    return float(str(found) == str(expected(rules)).strip())


def check_json_settings(result: Any, rules: Any) -> float:
    """Of VS Code, which lets settings have comments and a last comma."""
    settings = _lenient_json(text(file(result)))
    return float(isinstance(settings, dict) and match_record(mapping(expected(rules)), settings))


def check_json_keybindings(result: Any, rules: Any) -> float:
    bindings = _lenient_json(text(file(result)))
    return float(isinstance(bindings, list) and expected(rules) in bindings)


def is_extension_installed(result: Any, rules: Any) -> float:
    wanted, there = expected(rules), str(result or "")
    match rules.get("type"):
        case "contain":
            return float(wanted in there)
        case "not_contain":
            return float(wanted not in there)
        case other:
            raise WrongEvaluator(f"type is {other!r}, and has to be contain or not_contain")


def check_python_file_by_test_suite(*_: Any, **__: Any) -> float:
    why = "this metric would run a machine's program on the server, which does not do that; run it in the machine"
    raise WrongEvaluator(why)


#: What a query may do: look.
_LOOKING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, 33}  # 33: SQLITE_RECURSIVE


def run_sqlite3(result: Any, rules: Any) -> float:
    path = file(result)
    if not content(path, ARCHIVE_LIMIT).startswith(b"SQLite format 3\0"):
        raise Unreadable("the file is no database of SQLite")
    base = sqlite3.connect(f"file:{_quoted(path)}?mode=ro&immutable=1", uri=True)
    denied: list[int] = []

    def may(action: int, *_: Any) -> int:
        if action in _LOOKING:
            return sqlite3.SQLITE_OK
        denied.append(action)
        return sqlite3.SQLITE_DENY

    try:
        base.set_authorizer(may)
        row = base.execute(str(mapping(rules).get("sql", ""))).fetchone()
        return float((row or [0])[0] or 0)
    except sqlite3.DatabaseError as error:
        if denied:
            raise WrongEvaluator(f"the query may only look: {error}") from None
        raise Unreadable(f"the query failed: {error}") from None
    except (TypeError, ValueError):
        raise WrongEvaluator("the query has to be one that answers with a number") from None
    finally:
        base.close()


#: Namespaces of accessibility trees, by the name of the system, and of older images.
_SPACES = {
    "st": "state", "attr": "attributes", "cp": "component", "doc": "document", "docattr": "document/attributes",
    "txt": "text", "val": "value", "act": "action", "class": "class", "role": "role",
}


def check_accessibility_tree(result: Any, rules: Any, osname: str = "ubuntu") -> float:
    if result is None:
        return 0.0
    xml(str(result).encode())
    etree = imported("lxml.etree", "lxml")
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
    root = etree.fromstring(str(result).encode(), parser)
    spaces = {prefix: f"https://accessibility.{osname}.example.org/ns/{path}" for prefix, path in _SPACES.items()}
    spaces.update({prefix: uri for prefix, uri in root.nsmap.items() if prefix})
    score = 1.0
    for rule in _list(rules):
        try:
            if "xpath" in rule:
                elements = root.xpath(rule["xpath"], namespaces=spaces)
            elif "selectors" in rule:
                selectors = imported("lxml.cssselect", "cssselect")
                elements = selectors.CSSSelector(", ".join(rule["selectors"]), namespaces=spaces)(root)
            else:
                raise WrongEvaluator("a rule needs xpath or selectors")
        except (Missing, WrongEvaluator):
            raise
        except Exception as error:  # lxml and cssselect have many
            raise WrongEvaluator(f"what is looked for can't be read: {error}") from None
        if not isinstance(elements, list) or not elements:
            return 0.0
        if "text" in rule:
            like = operator.eq if rule.get("exact", True) else ratio
            score *= max(float(like(rule["text"], getattr(one, "text", None) or "")) for one in elements)
    return score


def check_thunderbird_prefs(result: Any, rules: Any) -> float:
    """Lines such as `user_pref("name", value);`."""
    line = re.compile(r'^user_pref\("((?:[^"\\]|\\.)+)", (.+)\);$')
    prefs: dict[str, Any] = {}
    for found in filter(None, map(line.match, text(file(result)).splitlines())):
        try:
            prefs[found[1]] = json.loads(found[2])
        except ValueError:
            continue
    wanted, unwanted = mapping(rules).get("expect", {}), rules.get("unexpect", {})
    return float(
        all(key in prefs and match_value(prefs[key], rule) for key, rule in wanted.items())
        and not any(key in prefs and match_value(prefs[key], rule) for key, rule in unwanted.items())
    )


def is_utc_0(result: Any) -> float:
    """Of what `timedatectl` says."""
    zone = re.search(r"^\s*Time zone:.*$", str(result or ""), re.MULTILINE)
    return float(zone is not None and zone[0].rstrip().endswith("+0000)"))


def check_text_enlarged(result: Any) -> float:
    try:
        return float(float(str(result)) > 1.0)
    except ValueError:
        return 0.0


def check_gnome_favorite_apps(result: Any, rules: Any) -> float:
    try:
        apps = ast.literal_eval(str(result).strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return 0.0
    wanted = _list(expected(rules))
    return float(isinstance(apps, list) and len(apps) == len(wanted) and all(one in apps for one in wanted))


def check_moved_jpgs(result: Any, rules: Any) -> float:
    """Of a folder as list_directory tells it."""
    names = [node.get("name") for node in (result or {}).get("children", []) if isinstance(node, dict)]
    wanted = _list(expected(rules))
    return float(len(names) == len(wanted) and all(one in names for one in wanted))


def is_in_vm_clickboard(rules: Any, said: Any) -> float:
    wanted = expected(rules)
    return float(all(one in str(said or "") for one in ([wanted] if isinstance(wanted, str) else _list(wanted))))


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise WrongEvaluator("what is expected has to be a list")
    return value


def _holds(outer: Any, inner: Any) -> bool:
    try:
        return inner in outer
    except TypeError:
        return False


def _quoted(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _json(source: str) -> Any:
    try:
        return json.loads(source)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"the file is no JSON: {error}") from None


#: Texts stay as they are; comments go, and commas before an end.
_EXTRAS = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/|,(?=\s*[\]}])', re.DOTALL)


def _lenient_json(source: str) -> Any:
    without_comments = _EXTRAS.sub(lambda found: found[1] or ("" if found[0] != "," else ","), source)
    return _json(_EXTRAS.sub(lambda found: found[1] or "", without_comments))
