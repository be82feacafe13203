"""Is this an HTTP archive, version 1.2? A structural check after the format's specification."""

from __future__ import annotations

from datetime import datetime
from typing import Any

PAIRS = {"name": str, "value": str}
ENTRY = {"startedDateTime": str, "time": (int, float), "request": dict, "response": dict, "cache": dict, "timings": dict}
REQUEST = {
    "method": str, "url": str, "httpVersion": str, "cookies": list, "headers": list, "queryString": list, "headersSize": int, "bodySize": int,
}
RESPONSE = {
    "status": int, "statusText": str, "httpVersion": str, "cookies": list, "headers": list, "content": dict, "redirectURL": str,
    "headersSize": int, "bodySize": int,
}
TIMINGS = ("blocked", "dns", "connect", "send", "wait", "receive")


class Check:
    def __init__(self) -> None:
        self.problems: list[str] = []

    def expect(self, sound: bool, problem: str) -> None:
        if not sound:
            self.problems.append(problem)

    def fields(self, value: Any, wanted: dict[str, Any], place: str) -> bool:
        """Whether it is an object that has all of these; what is missing is noted."""
        if not isinstance(value, dict):
            self.problems.append(f"{place} is no object")
            return False
        before = len(self.problems)
        for name, kind in wanted.items():
            # To Python a bool is an int; to JSON it is not.
            sound = isinstance(value.get(name), kind) and not isinstance(value.get(name), bool)
            self.expect(sound, f"{place}.{name} is {value.get(name, 'missing')!r}")
        return len(self.problems) == before

    def time(self, text: str, place: str) -> None:
        try:
            self.expect(datetime.fromisoformat(text).tzinfo is not None, f"{place}: {text!r} has no time zone")
        except ValueError:
            self.problems.append(f"{place}: {text!r} is no time")

    def pairs(self, values: list[Any], place: str) -> None:
        for i, value in enumerate(values):
            self.fields(value, PAIRS, f"{place}[{i}]")

    def entry(self, entry: Any, place: str, pages: set[str]) -> None:
        if not self.fields(entry, ENTRY, place):
            return
        self.time(entry["startedDateTime"], f"{place}.startedDateTime")
        if "pageref" in entry:
            self.expect(entry["pageref"] in pages, f"{place}.pageref {entry['pageref']!r} is no page")
        request, response, timings = entry["request"], entry["response"], entry["timings"]
        if self.fields(request, REQUEST, f"{place}.request"):
            for name in ("cookies", "headers", "queryString"):
                self.pairs(request[name], f"{place}.request.{name}")
            if "postData" in request:
                post = request["postData"]
                if self.fields(post, {"mimeType": str}, f"{place}.request.postData"):
                    self.expect("text" in post or "params" in post, f"{place}.request.postData has neither text nor params")
        if self.fields(response, RESPONSE, f"{place}.response"):
            for name in ("cookies", "headers"):
                self.pairs(response[name], f"{place}.response.{name}")
            self.fields(response["content"], {"size": int, "mimeType": str}, f"{place}.response.content")
        if self.fields(timings, dict.fromkeys(("send", "wait", "receive"), (int, float)), f"{place}.timings"):
            parts = [timings.get(name, -1) for name in TIMINGS]
            self.expect(all(part >= 0 for part in parts[3:]), f"{place}.timings: send, wait and receive are never -1")
            total = sum(part for part in parts if part > 0)
            # The specification: the time is the sum of those that apply; `ssl` is part of `connect`.
            self.expect(abs(entry["time"] - total) < 1, f"{place}.time {entry['time']} is not the sum of its timings {total}")


def problems(har: Any) -> list[str]:
    """What is wrong with it; empty when it is sound."""
    check = Check()
    log = har.get("log") if isinstance(har, dict) else None
    if not check.fields(log, {"version": str, "creator": dict, "entries": list}, "log"):
        return check.problems
    check.expect(log["version"] == "1.2", f"log.version is {log['version']!r}")
    check.fields(log["creator"], {"name": str, "version": str}, "log.creator")
    if "browser" in log:
        check.fields(log["browser"], {"name": str, "version": str}, "log.browser")
    pages: set[str] = set()
    for i, page in enumerate(log.get("pages", [])):
        if check.fields(page, {"startedDateTime": str, "id": str, "title": str, "pageTimings": dict}, f"log.pages[{i}]"):
            check.time(page["startedDateTime"], f"log.pages[{i}].startedDateTime")
            check.expect(page["id"] not in pages, f"log.pages[{i}].id {page['id']!r} is there twice")
            pages.add(page["id"])
    for i, entry in enumerate(log["entries"]):
        check.entry(entry, f"log.entries[{i}]", pages)
    return check.problems
