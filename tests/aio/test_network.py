"""What the browser sends and gets: headers, routes, the list of requests, and the HTTP archive of them."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import har
import pytest
from agent_sandbox import RouteResponseModel
from sites import Sites, failure, soon

FETCH = "await (await fetch(%s)).text()"


@pytest.fixture(autouse=True)
def plain(served: Sites) -> Iterator[None]:
    """No test leaves its headers to the next one."""
    yield
    served.network.set_headers(headers={})
    for origin in (served.url, served.beside, served.other):
        served.network.set_scoped_headers(origin=origin, headers={})


def lowered(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def sent_headers(sites: Sites, path: str) -> dict[str, str]:
    """What the server gets when a page fetches that; names in lower case."""
    return lowered(json.loads(sites.value(FETCH % json.dumps(path)))["headers"])


def test_headers_of_all_requests(sites: Sites) -> None:
    network = sites.network
    assert network.set_headers(headers={"X-Test": "one", "X-Other": "two words"}).data == {"headers": 2}
    sites.open("/echo")
    headers = lowered(json.loads(sites.value("document.body.innerText"))["headers"])
    assert (headers["x-test"], headers["x-other"]) == ("one", "two words")
    sites.open("/article.html")
    assert sent_headers(sites, "/echo")["x-test"] == "one"
    assert sent_headers(sites, f"{sites.other}/echo")["x-test"] == "one"
    # In what frames load, too, and in tabs that open later.
    assert lowered(sites.seen("/inner.html?article")[-1][2])["x-test"] == "one"
    sites.tabs.create(url=f"{sites.url}/article.html")
    assert sent_headers(sites, "/echo")["x-test"] == "one"
    # What is set again takes the place of all of them.
    assert network.set_headers(headers={"User-Agent": "Tester/1"}).data == {"headers": 1}
    headers = sent_headers(sites, "/echo")
    assert headers["user-agent"] == "Tester/1" and "x-test" not in headers
    for wrong in ({"a b": "x"}, {"": "x"}, {"X-Test": "a\r\nX-More: b"}, {"X-Test": "a\x00"}, {"X:": "x"}):
        failure(400, network.set_headers, headers=wrong)
    assert sent_headers(sites, "/echo")["user-agent"] == "Tester/1"
    assert network.set_headers(headers={}).data == {"headers": 0}
    headers = sent_headers(sites, "/echo")
    assert headers["user-agent"] != "Tester/1"
    assert sites.live.http.post("/v1/browser/network/headers", json={"headers": {"a": 1}}).status_code in (400, 422)


def test_headers_of_one_origin(sites: Sites) -> None:
    scoped = sites.network.set_scoped_headers
    assert scoped(origin=sites.url, headers={"X-Scoped": "yes"}).data == {"origin": sites.url, "headers": 1}
    sites.open("/article.html")
    assert sent_headers(sites, "/echo")["x-scoped"] == "yes"
    for elsewhere in (sites.other, sites.beside):
        assert "x-scoped" not in sent_headers(sites, f"{elsewhere}/echo"), elsewhere
    sites.open(f"{sites.other}/article.html")
    assert "x-scoped" not in sent_headers(sites, "/echo")
    assert sent_headers(sites, f"{sites.url}/echo")["x-scoped"] == "yes"
    # Two origins, and what holds for all beside them.
    scoped(origin=f"{sites.other}/", headers={"X-Scoped": "other"})
    sites.network.set_headers(headers={"X-All": "all", "X-Scoped": "all"})
    for place, value in ((sites.url, "yes"), (sites.other, "other"), (sites.beside, "all")):
        headers = sent_headers(sites, f"{place}/echo")
        assert (headers["x-scoped"], headers["x-all"]) == (value, "all"), place
    # It is not sent on to where a redirect leads.
    sites.network.set_headers(headers={})
    assert scoped(origin=sites.other, headers={}).data["headers"] == 0
    assert "x-scoped" not in sent_headers(sites, "/echo")
    for wrong in ("nonsense", "", "http://", "ftp://a.example", f"{sites.url}/path"):
        failure(400, scoped, origin=wrong, headers={"X-Scoped": "x"})
    for wrong in ({"a b": "x"}, {"X": "a\nb"}):
        failure(400, scoped, origin=sites.url, headers=wrong)
    assert scoped(origin=sites.url, headers={}).data["headers"] == 0
    assert "x-scoped" not in sent_headers(sites, f"{sites.url}/echo")


def test_routes_that_answer(sites: Sites) -> None:
    items = f"{sites.url}/api/items*"
    data = sites.route(items, '{"items": ["from the route"]}', content_type="application/json")
    assert data == {"url_pattern": items, "routes": 1}
    before = len(sites.seen("/api/items"))
    sites.open("/spa/items")
    sites.until("document.querySelector('.item')")
    assert sites.value("[...document.querySelectorAll('.item')].map(b => b.textContent)") == ["from the route"]
    assert len(sites.seen("/api/items")) == before, "it never reached the server"
    sites.route("**/teapot", "ü 世界", status=418, headers={"X-Made": "up"}, content_type="text/plain; charset=utf-8")
    look = """const r = await fetch('/teapot', { method: 'POST', body: 'x' });
        return [r.status, r.headers.get('x-made'), r.headers.get('content-type'), await r.text()]"""
    assert sites.value(look) == [418, "up", "text/plain; charset=utf-8", "ü 世界"]
    # A page of its own, of a host that is not there.
    sites.route("https://absent.invalid/**", "<title>routed</title><h1>not there</h1>", content_type="text/html")
    place = sites.page.navigate(url="https://absent.invalid/deep/page?x=1").data
    assert place == {"url": "https://absent.invalid/deep/page?x=1", "title": "routed", "status": 200}
    # In tabs that open later, and with a large body.
    sites.route("**/large", "x" * (2 << 20))
    sites.tabs.create(url=f"{sites.url}/")
    assert sites.value("(await (await fetch('/large')).text()).length") == 2 << 20
    assert sites.value("await (await fetch('/teapot')).text()") == "ü 世界"
    # An empty answer is one.
    sites.route("**/empty", status=200)
    assert sites.value("const r = await fetch('/empty'); return [r.status, await r.text()]") == [200, ""]


def test_routes_that_abort(sites: Sites) -> None:
    sites.open("/article.html")
    sites.route("**/echo?stop", abort=True)
    before = len(sites.seen("/echo?stop"))
    assert sites.value("fetch('/echo?stop').then(() => 'sent', error => error.name)") == "TypeError"
    assert "net::ERR_" in failure(424, sites.page.navigate, url=f"{sites.url}/echo?stop")
    assert len(sites.seen("/echo?stop")) == before
    assert sites.open("/echo?go")["status"] == 200
    # Images and the like, by a pattern.
    sites.route("**/status/404?image", abort=True)
    before = len(sites.seen("/status/404?image"))
    sites.open("/console.html")
    sites.until("document.querySelector('img').complete")
    assert len(sites.seen("/status/404?image")) == before


def test_the_latest_route_wins(sites: Sites) -> None:
    network = sites.network
    sites.open("/article.html")
    look = FETCH % "'/echo?who'"
    assert sites.route("**/echo?who", "first")["routes"] == 1
    assert sites.route("**/echo*", "second")["routes"] == 2
    assert sites.value(look) == "second"
    assert sites.route("**/echo?who", "third")["routes"] == 2, "it replaces the one of the same pattern"
    assert sites.value(look) == "third"
    assert network.remove_route(url_pattern="**/echo?who").data == {"url_pattern": "**/echo?who", "routes": 1}
    assert sites.value(look) == "second"
    assert network.remove_route(url_pattern="**/echo*").data["routes"] == 0
    assert json.loads(sites.value(look))["path"] == "/echo?who"
    for absent in ("**/echo*", "**/absent"):
        assert absent in failure(404, network.remove_route, url_pattern=absent)
    for wrong in ("", "/(/"):
        failure(400, network.add_route, url_pattern=wrong, abort=True)
    failure(400, network.add_route, url_pattern="**/x", response=RouteResponseModel(status=99))
    failure(400, network.add_route, url_pattern="**/x", response=RouteResponseModel(headers={"a b": "c"}))
    assert sites.live.http.post("/v1/browser/network/route", json={"abort": True}).status_code == 422


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("**/echo/a", {"a"}),
        ("{url}/echo/*", {"a", "b", "abc", "a.png"}),
        ("{url}/echo/**", {"a", "b", "abc", "a.png", "a/b", "a/b/c"}),
        ("**/echo/a*", {"a", "abc", "a.png"}),
        ("**/*/b", {"b", "a/b"}),
        ("**/echo/?", {"a", "b"}),
        ("**/echo/{a,b}", {"a", "b"}),
        ("**/*.{png,jpg}", {"a.png"}),
        ("**/echo/a.png", {"a.png"}),
        ("{url}/echo/a", {"a"}),
        ("{url}/echo/A", set()),
        ("/echo/a", set()),
        ("echo", set()),
        ("/echo\\/a$/", {"a"}),
        ("/echo\\/[ab]$/", {"a", "b"}),
        ("/b/", {"b", "abc", "a/b", "a/b/c"}),
        ("*", set()),
        ("**", {"a", "b", "abc", "a.png", "a/b", "a/b/c"}),
    ],
)
def test_patterns(sites: Sites, pattern: str, paths: set[str]) -> None:
    sites.open("/inner.html?patterns")
    pattern = pattern.replace("{url}", sites.url)
    sites.route(pattern, "routed")
    look = """const hit = [];
    for (const path of ['a', 'b', 'abc', 'a.png', 'a/b', 'a/b/c'])
        if (await (await fetch('/echo/' + path)).text() === 'routed') hit.push(path);
    return hit"""
    assert set(sites.value(look)) == paths


def listed(sites: Sites, wanted: str, ready: Callable[[dict[str, Any]], bool] = lambda one: one["duration"] is not None) -> dict[str, Any]:
    """The one request whose address ends so, as soon as it is over."""
    def found() -> list[dict[str, Any]]:
        return [one for one in sites.network.get_requests(filter=wanted).data if one["url"].endswith(wanted) and ready(one)]

    return soon(found, f"the request of {wanted}")[-1]


def test_requests(sites: Sites) -> None:
    begun = time.time()
    sites.open("/article.html?requests")
    one = listed(sites, "/article.html?requests")
    assert one.keys() >= {
        "id", "url", "method", "resource_type", "status", "status_text", "mime_type", "started", "duration", "size", "error", "from_cache",
    }
    assert (one["url"], one["method"], one["status"], one["mime_type"]) == (f"{sites.url}/article.html?requests", "GET", 200, "text/html")
    assert one["resource_type"] == "document" and one["error"] is None and one["from_cache"] is False
    assert begun - 5 < one["started"] < time.time() + 5 and 0 <= one["duration"] < 60 and one["size"] > 500
    sites.value("await fetch('/echo?posted', { method: 'POST', body: 'x' }); await fetch('/status/503?failed'); await fetch('http://127.0.0.1:8009/?refused').catch(String)")
    posted = listed(sites, "/echo?posted")
    assert (posted["method"], posted["resource_type"], posted["mime_type"]) == ("POST", "fetch", "application/json")
    failed = listed(sites, "/status/503?failed")
    assert (failed["status"], failed["error"]) == (503, None)
    refused = listed(sites, "/?refused", lambda one: one["error"] is not None)
    assert refused["status"] is None and "net::ERR_CONNECTION_REFUSED" in refused["error"]
    frame = listed(sites, "/inner.html?article")
    assert frame["resource_type"] == "document"
    # One that does not end.
    sites.value("fetch('/never/headers?hangs').catch(String); 1")
    hanging = listed(sites, "/never/headers?hangs", lambda one: True)
    assert (hanging["status"], hanging["duration"], hanging["error"]) == (None, None, None)
    # What routes answer is listed as well.
    sites.route("**/made-up", status=202)
    sites.value("await fetch('/made-up')")
    assert listed(sites, "/made-up")["status"] == 202
    sites.route("**/stopped", abort=True)
    sites.value("await fetch('/stopped').catch(String)")
    assert listed(sites, "/stopped", lambda one: one["error"] is not None)["status"] is None
    # The same script again comes out of the cache.
    load = "await new Promise(done => { const s = document.createElement('script'); s.src = '/cached?again'; s.onload = done; document.head.append(s) })"
    sites.value(load)
    listed(sites, "/cached?again")
    sites.open("/form.html")
    sites.value(load)
    assert soon(lambda: [one for one in sites.network.get_requests(filter="/cached?again").data if one["from_cache"]], "one from the cache")
    # Order, filters, limits.
    everything = sites.network.get_requests(limit=1000).data
    started = [one["started"] for one in everything]
    assert started == sorted(started), "the newest is the last"
    assert len({one["id"] for one in everything}) == len(everything)
    assert [one["url"] for one in sites.network.get_requests(limit=2).data] == [one["url"] for one in everything[-2:]]
    sites.value("for (let i = 0; i < 120; i++) await fetch('/echo?number=' + i)")
    listed(sites, "/echo?number=119")
    assert len(sites.network.get_requests().data) == 100
    numbered = sites.network.get_requests(filter="**/echo?number=11*", limit=50).data
    assert {one["url"].rsplit("=")[-1] for one in numbered} == {"11", *map(str, range(110, 120))}
    assert len(sites.network.get_requests(filter="number=", limit=7).data) == 7
    assert [one["url"][-3:] for one in sites.network.get_requests(filter="/number=11[89]$/").data] == ["118", "119"]
    assert sites.network.get_requests(filter="no such thing").data == []
    failure((400, 422), sites.network.get_requests, limit=-1)
    failure(400, sites.network.get_requests, filter="/(/")


def test_the_archive(sites: Sites) -> None:
    sites.open("/article.html?archive")
    sites.value("""await fetch('/echo?q=1&r=a%20b', { method: 'POST', body: JSON.stringify({ sent: 'ü' }), headers: { 'Content-Type': 'application/json' } });
        await fetch('/status/404?archive'); await fetch('http://127.0.0.1:8009/?archive').catch(String)""")
    sites.open("/redirect/2")
    listed(sites, "/?archive", lambda one: one["error"] is not None)
    data = sites.network.export_har(save_path="/tmp/archive/one.har").data
    assert data["save_path"] == "/tmp/archive/one.har"
    assert data["file_size_bytes"] == int(sites.live.output("stat -c %s /tmp/archive/one.har"))
    archive = json.loads(sites.bytes("/tmp/archive/one.har"))
    assert har.problems(archive) == []
    entries = archive["log"]["entries"]
    assert len(entries) == data["entries"] > 5
    starts = [entry["startedDateTime"] for entry in entries]
    assert starts == sorted(starts)

    def entry(part: str) -> dict[str, Any]:
        return next(one for one in entries if part in one["request"]["url"])

    page = entry("/article.html?archive")
    assert (page["request"]["method"], page["response"]["status"], page["response"]["statusText"]) == ("GET", 200, "OK")
    assert page["response"]["content"]["mimeType"].startswith("text/html") and page["response"]["content"]["size"] > 500
    assert any(one["name"].lower() == "user-agent" for one in page["request"]["headers"])
    assert any(one["name"].lower() == "content-type" for one in page["response"]["headers"])
    assert page["time"] > 0
    posted = entry("/echo?q=1")
    assert posted["request"]["queryString"] == [{"name": "q", "value": "1"}, {"name": "r", "value": "a b"}]
    assert json.loads(posted["request"]["postData"]["text"]) == {"sent": "ü"}
    assert posted["request"]["postData"]["mimeType"] == "application/json"
    assert entry("/status/404?archive")["response"]["status"] == 404
    assert entry("127.0.0.1:8009/?archive")["response"]["status"] == 0
    assert entry("/redirect/2")["response"]["status"] == 302
    assert entry("/redirect/2")["response"]["redirectURL"].endswith("/redirect/1")
    assert entry("/redirect/0")["response"]["status"] == 200
    failure((400, 404, 424), sites.network.export_har, save_path="/proc/no/one.har")
    failure(400, sites.network.export_har, save_path="")


SOUND = {
    "log": {
        "version": "1.2", "creator": {"name": "test", "version": "1"},
        "pages": [{"startedDateTime": "2026-11-22T06:00:00.000Z", "id": "p", "title": "t", "pageTimings": {}}],
        "entries": [{
            "pageref": "p", "startedDateTime": "2026-11-22T06:00:00.000Z", "time": 6.5, "cache": {},
            "request": {
                "method": "POST", "url": "http://a.example/?q=1", "httpVersion": "HTTP/1.1", "cookies": [], "headersSize": -1, "bodySize": 1,
                "headers": [{"name": "a", "value": "b"}], "queryString": [{"name": "q", "value": "1"}], "postData": {"mimeType": "x", "text": "y"},
            },
            "response": {
                "status": 200, "statusText": "OK", "httpVersion": "HTTP/1.1", "cookies": [], "headers": [], "redirectURL": "", "headersSize": -1,
                "bodySize": -1, "content": {"size": 0, "mimeType": "text/html"},
            },
            "timings": {"blocked": -1, "dns": -1, "connect": 2, "ssl": 1, "send": 0.5, "wait": 3, "receive": 1},
        }],
    }
}


def test_the_check_of_archives_can_fail() -> None:
    assert har.problems(SOUND) == []
    gone = object()
    for path, value in (
        ("", 5), ("log", gone), ("log.version", "1.1"), ("log.creator.name", gone), ("log.entries", {}), ("log.entries.0", 5),
        ("log.entries.0.startedDateTime", "yesterday"), ("log.entries.0.startedDateTime", "2026-11-22T06:00:00"), ("log.entries.0.time", "6.5"),
        ("log.entries.0.time", 60), ("log.entries.0.pageref", "q"), ("log.entries.0.cache", gone), ("log.entries.0.request.url", gone),
        ("log.entries.0.request.headers.0.value", 5), ("log.entries.0.request.bodySize", True), ("log.entries.0.request.postData.mimeType", gone),
        ("log.entries.0.request.postData.text", gone), ("log.entries.0.response.status", "200"), ("log.entries.0.response.content", {}),
        ("log.entries.0.response.redirectURL", gone), ("log.entries.0.timings.wait", -1), ("log.entries.0.timings.send", gone),
        ("log.pages.0.id", gone), ("log.pages.0.startedDateTime", "x"),
    ):
        archive: Any = {"": copy.deepcopy(SOUND)}
        *parents, last = ["", *filter(None, path.split("."))]
        place = archive
        for name in parents:
            place = place[int(name)] if isinstance(place, list) else place[name]
        key = int(last) if isinstance(place, list) else last
        if value is gone:
            del place[key]
        else:
            place[key] = value
        assert har.problems(archive[""]), (path, value)
