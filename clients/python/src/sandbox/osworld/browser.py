"""Metrics of what a browser shows."""

from __future__ import annotations

from itertools import islice, product
from typing import Any
from urllib.parse import urlparse, urlunparse

from .files import WrongEvaluator
from .rules import expected, mapping, pattern, same_url

#: Ways in which folders of bookmarks may be put together that are tried.
_COMBINATIONS = 100_000


def _url(tab: Any) -> Any:
    return tab.get("url") if isinstance(tab, dict) else tab


def _of_type(rules: Any, kind: str, key: str) -> Any:
    if mapping(rules).get("type") != kind or key not in rules:
        raise WrongEvaluator(f"the rules have to be of type {kind}, with {key}")
    return rules[key]


def is_expected_active_tab(result: Any, rules: Any) -> float:
    wanted = _of_type(rules, "url", "url")
    return float(bool(result) and same_url(wanted, _url(result)))


def is_expected_active_tab_approximate(result: Any, rules: Any) -> float:
    """Whatever follows a question mark."""

    def plain(url: Any) -> str:
        return urlunparse(urlparse(str(url))._replace(query=""))

    wanted = _of_type(rules, "url", "url")
    return float(bool(result) and plain(wanted) == plain(_url(result)))


def is_expected_url_pattern_match(result: Any, rules: Any) -> float:
    patterns = expected(rules)
    patterns = [patterns] if isinstance(patterns, str) else patterns
    return float(bool(result) and all(pattern(one).search(str(_url(result))) for one in patterns))


def is_expected_tabs(result: Any, rules: Any) -> float:
    """As many, and each of them somewhere."""
    wanted, there = _of_type(rules, "url", "urls"), [_url(tab) for tab in result or []]
    return float(len(wanted) == len(there) and all(any(same_url(one, other) for other in there) for one in wanted))


def is_expected_search_query(result: Any, rules: Any) -> float:
    source = mapping(mapping(rules).get("expect")).get("pattern")
    return float(bool(result) and pattern(source).search(str(_url(result))) is not None)


def is_expected_installed_extensions(result: Any, rules: Any) -> float:
    return float(set(expected(rules)) <= set(result or []))


def is_expected_bookmarks(result: Any, rules: Any) -> float:
    bar = ((result or {}).get("bookmark_bar") or {}).get("children") or []

    def of(nodes: list[Any], kind: str, field: str) -> list[Any]:
        return [node.get(field) for node in nodes if isinstance(node, dict) and node.get("type") == kind]

    match mapping(rules).get("type"):
        case "bookmark_bar_folders_names":
            return float(bool(bar) and set(of(bar, "folder", "name")) == set(rules["names"]))
        case "bookmark_bar_websites_urls":
            return float(bool(bar) and set(of(bar, "url", "url")) == set(rules["urls"]))
        case "liked_authors_websites_urls":
            folders = [node for node in bar if node.get("type") == "folder" and node.get("name") == "Liked Authors"]
            there = set(of(folders[0].get("children") or [], "url", "url")) if folders else set()
            choices = [[urls] if isinstance(urls, str) else urls for urls in rules["urls"]]
            return float(bool(folders) and any(set(one) == there for one in islice(product(*choices), _COMBINATIONS)))
        case other:
            raise WrongEvaluator(f"there is no type {other!r} of bookmarks")


def check_font_size(result: Any, rules: Any) -> float:
    size = (result or {}).get("default_font_size")
    match mapping(rules).get("type"):
        case "value":
            return float(size == rules.get("value"))
        case "range":
            return float(isinstance(size, int) and rules.get("min", 0) < size < rules.get("max", 0))
        case other:
            raise WrongEvaluator(f"type is {other!r}, and has to be value or range")


def check_enabled_experiments(result: Any, rules: Any) -> float:
    there = [str(one).partition("@")[0] for one in result or []]
    if mapping(rules).get("type") != "names":
        raise WrongEvaluator("the rules have to be of type names")
    return float(set(there) == set(rules.get("names", [])))
