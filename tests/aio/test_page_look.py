"""The browser's current page: looking at it, and waiting for what comes. Each method by the SDK, how it succeeds and how it fails."""

from __future__ import annotations

import io
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from PIL import Image
from sites import PATIENCE, Sites, failure, soon


def picture(sites: Sites, **arguments: Any) -> Image.Image:
    return Image.open(io.BytesIO(b"".join(sites.page.screenshot(**arguments))))


def test_screenshot(sites: Sites) -> None:
    sites.open("/tall.html")
    plain = picture(sites)
    assert plain.format == "PNG"
    wide, high, scale = sites.value("[innerWidth, innerHeight, devicePixelRatio]")
    assert plain.size == (round(wide * scale), round(high * scale))
    assert plain.convert("RGB").getpixel((5, 5)) == (200, 10, 20)
    for kind, format in (("png", "PNG"), ("jpeg", "JPEG"), ("jpg", "JPEG"), ("webp", "WEBP")):
        answer = sites.live.http.get(f"/v1/browser/page/screenshot?format={kind}")
        assert answer.headers["content-type"] == f"image/{format.lower()}"
        shown = Image.open(io.BytesIO(answer.content))
        assert (shown.format, shown.size) == (format, plain.size)
        assert (answer.headers["x-image-width"], answer.headers["x-image-height"]) == tuple(map(str, plain.size))
    sizes = [len(b"".join(sites.page.screenshot(format="jpeg", quality=quality))) for quality in (5, 95)]
    assert sizes[0] < sizes[1]
    for wrong in ({"format": "gif"}, {"quality": 101}, {"quality": -1}):
        failure((400, 422), sites.page.screenshot, **wrong)


def test_html_text_and_markdown(sites: Sites) -> None:
    sites.open("/article.html")
    inner, outer = sites.page.get_html().data, sites.page.get_html(outer=True).data
    assert "<html" in outer and "<html" not in inner and len(outer) > len(inner)
    for part in ("<strong>hard</strong>", "Grüße, 世界 and 😀", "scripted words"):
        assert part in inner and part in outer
    # As it is now, and not as it was sent.
    sites.value("document.querySelector('#first').append(' Changed.')")
    assert "Changed." in sites.page.get_html().data
    text = sites.page.get_text().data
    for part in ("On stones", "Granite is hard, and marble is not", "two stones", "Grüße, 世界 and 😀", "Changed."):
        assert part in text
    assert "scripted" not in text and "hidden words" not in text
    data = sites.page.get_markdown().data
    assert (data["title"], data["url"]) == ("On stones", f"{sites.url}/article.html")
    for part in ("# On stones", "**hard**", "[marble](", "/form.html)", "two stones", "| talc", 'let stone = "agate";', "Grüße, 世界 and 😀"):
        assert part in data["markdown"], data["markdown"]
    assert "scripted" not in data["markdown"]


def test_elements(sites: Sites) -> None:
    sites.open("/form.html")
    elements = sites.page.get_elements().data
    assert len({one["index"] for one in elements}) == len(elements)
    named = {one["selector"]: one for one in elements}
    assert len(named) == len(elements)
    for one in elements:
        assert isinstance(one["index"], int) and isinstance(one["disabled"], bool) and isinstance(one["text"], str), one
        assert one["box"].keys() == {"x", "y", "width", "height"} and one["box"]["width"] > 0, one
        assert "frame" not in one or one["frame"] is None
        assert sites.value(f"document.querySelectorAll({json.dumps(one['selector'])}).length") == 1, one
    roles = {(one["tag"], one["role"], one["name"]) for one in elements}
    for wanted in (
        ("input", "textbox", "Name"), ("textarea", "textbox", "Story"), ("button", "button", "Send"), ("input", "checkbox", "Agree"),
        ("input", "radio", "Large"), ("span", "checkbox", "Fancy"),
    ):
        assert wanted in roles, sorted(roles)
    assert sites.element("Agree")["checked"] is False and sites.element("News")["checked"] is True
    assert sites.element("Old")["value"] == "old text" and sites.element("Mail")["type"] == "email"
    assert not any("plain text" in (one["name"], one["text"]) for one in elements)
    # An index stays with its element, whatever comes before it.
    send = sites.element("Send")
    sites.value("document.body.prepend(Object.assign(document.createElement('button'), { textContent: 'newcomer' })); document.querySelector('#name').remove()")
    assert sites.element("Send")["index"] == send["index"]
    assert sites.element("newcomer")["index"] not in {one["index"] for one in elements}
    sites.page.click(index=send["index"])
    sites.until("document.querySelector('#sent').textContent")
    sites.open("/")
    assert sites.element("An article")["href"] == f"{sites.url}/article.html"
    sites.open("/waiting.html")
    waiting = {one["name"]: one for one in sites.page.get_elements().data}
    assert "hidden" not in waiting and waiting["disabled"]["disabled"] is True and waiting["plain"]["disabled"] is False


def test_console(sites: Sites) -> None:
    begun = time.time()
    sites.open("/console.html")
    wanted = {
        "plain words": "log", "a warning": "warning", "an error": "error", "for your information": "info", "thrown on purpose": "error",
        "rejected on purpose": "error",
    }

    def entries() -> list[dict[str, Any]]:
        found = sites.page.get_console().data
        return found if all(any(text in one["text"] for one in found) for text in wanted) else []

    found = soon(entries, "all that the page said")
    for text, kind in wanted.items():
        one = next(one for one in found if text in one["text"])
        assert one["type"] == kind, one
        assert begun - 5 < one["timestamp"] < time.time() + 5
        assert one["url"] == f"{sites.url}/console.html" and isinstance(one["line"], int) and isinstance(one["column"], int), one
    plain = next(one for one in found if "plain words" in one["text"])
    assert "42" in plain["text"] and "key" in plain["text"] and "value" in plain["text"]
    times = [one["timestamp"] for one in found]
    assert times == sorted(times)
    exported = sites.page.export_console(save_path="/tmp/console/said.json").data
    assert exported["save_path"] == "/tmp/console/said.json"
    kept = sites.json("/tmp/console/said.json")
    assert len(kept) == exported["count"] >= len(found) and kept[: len(found)] == found
    assert sites.page.get_console(clear=True).data[: len(found)] == found
    assert not any("plain words" in one["text"] for one in sites.page.get_console().data)
    sites.value("console.log('once more')")
    soon(lambda: any(one["text"] == "once more" for one in sites.page.get_console().data), "what was said after that")
    assert sites.page.export_console(save_path="/tmp/console/more.json", clear=True).data["count"] >= 1
    assert not any(one["text"] == "once more" for one in sites.page.get_console().data)
    failure((400, 404, 424), sites.page.export_console, save_path="/proc/no/console.json")
    failure(400, sites.page.export_console, save_path="")


def test_evaluate(sites: Sites) -> None:
    sites.open("/article.html")
    for expression, value in (
        ("1 + 1", 2), ("document.title", "On stones"), ("({a: [1, null, 'é', true, {}], b: 1.5})", {"a": [1, None, "é", True, {}], "b": 1.5}),
        ("const a = 1; a + 1", 2), ("const a = 1; a + 2", 3), ("return 5", 5), ("const b = 4;\nreturn b * 2;", 8), ("await Promise.resolve(7)", 7),
        ("Promise.resolve(8)", 8), ("const r = await fetch('/echo'); const j = await r.json(); return j.method", "GET"),
        ("(await (await fetch('/echo')).json()).path", "/echo"), ("let s = 0; for (let i = 0; i < 4; i++) s += i; s", 6),
        ("function f() { return 3 } f()", 3), ("async function g() { return 4 } await g()", 4), ("if (document.title) { return 'yes' } return 'no'", "yes"),
        ("1 + 1 // two", 2), ("'return and await'", "return and await"), ("undefined", None), ("null", None), ("void 0;", None),
        ("[...document.querySelectorAll('li')].map(li => li.textContent)", ["one stone", "two stones"]), ("'x'.repeat(1 << 20).length", 1 << 20),
        ("(function () { return this === window })()", True), ("window.kept = 11", 11), ("kept", 11), ("() => 12", 12),
    ):
        assert sites.value(expression) == value, expression
    assert len(sites.value("'é'.repeat(5 << 20)")) == 5 << 20
    for expression in (
        "document.body", "window", "Symbol('mark')", "12345678901234567890n", "NaN", "Infinity", "const c = {}; c.c = c; c", "new Map([[1, 2]])",
    ):
        assert isinstance(sites.value(expression), (str, dict)), expression
    assert sites.value("Symbol('mark')") == "Symbol(mark)" and sites.value("NaN") == "NaN"
    assert sites.value("12345678901234567890n").startswith("12345678901234567890")
    for expression, text in (
        ("throw new Error('on purpose')", "on purpose"), ("absent.thing", "absent is not defined"), ("await Promise.reject(new Error('too late'))", "too late"),
        ("Promise.reject(new Error('too late'))", "too late"), ("const = 1", "SyntaxError"), ("throw 'bare words'", "bare words"),
        ("return (", "SyntaxError"), ("document.querySelector('][')", "not a valid selector"),
    ):
        assert text in failure(424, sites.page.evaluate, expression=expression), expression
    assert sites.live.http.post("/v1/browser/page/evaluate", json={"expression": 5}).status_code == 422


def test_find_text(sites: Sites) -> None:
    sites.open("/article.html")
    found = sites.page.find_text(keyword="needle").data
    assert len(found) == 1
    one = found[0]
    assert one["tag"] == "p" and one["text"].startswith("The needle is early") and len(one["text"]) <= 200
    assert one["box"].keys() == {"x", "y", "width", "height"} and one["box"]["height"] > 0
    assert sites.value(f"document.querySelector({json.dumps(one['selector'])}).id") == "long"
    # A word of its own element is still a part of its block's text.
    assert sites.page.find_text(keyword="hard, and marble").data[0]["text"].startswith("Granite is hard, and marble is not")
    assert [one["tag"] for one in sites.page.find_text(keyword="two stones").data] == ["li"]
    assert sites.page.find_text(keyword="世界 and 😀").data[0]["selector"]
    inner = sites.page.find_text(keyword="words of article").data
    assert len(inner) == 1 and inner[0]["frame"] == f"{sites.url}/inner.html?article"
    # What scripts, styles and templates say is said to nobody, wherever they stand.
    more = "<script>const inBody = 'scripted in the body'</script><template>in a template</template><style>/* styled words */</style><!-- commented -->"
    sites.value(f"document.body.insertAdjacentHTML('beforeend', {json.dumps(more)})")
    for absent in ("no such words", "hidden words", "scripted words", "scripted in the body", "in a template", "styled words", "commented"):
        assert sites.page.find_text(keyword=absent).data == [], absent
    failure(400, sites.page.find_text, keyword="")


# Waiting.


def test_wait_for_a_selector(sites: Sites) -> None:
    sites.open("/waiting.html")
    data = sites.page.wait(type="selector", selector="#plain").data
    assert data["type"] == "selector" and isinstance(data["elapsed"], (int, float))
    wait = sites.page.wait
    sites.value("later(() => { document.querySelector('#hidden').style.visibility = 'visible' })")
    assert wait(type="selector", selector="#hidden").data["elapsed"] < PATIENCE
    assert sites.value("document.querySelector('#hidden').style.visibility") == "visible"
    sites.value("later(() => { document.querySelector('#hidden').style.visibility = 'hidden' })")
    wait(type="selector", selector="#hidden", state="hidden")
    wait(type="selector", selector="#hidden", state="attached")
    sites.value("later(() => { document.querySelector('#veil').remove() })")
    wait(type="selector", selector="#veil", state="detached")
    wait(type="selector", selector="#veil", state="hidden")
    sites.value("later(() => { document.body.append(Object.assign(document.createElement('p'), { id: 'late', textContent: 'late' })) })")
    wait(type="selector", selector="#late", state="visible")
    begun = time.monotonic()
    message = failure(424, wait, type="selector", selector="#absent", timeout=0.5)
    assert "timed out" in message and 0.5 <= time.monotonic() - begun < PATIENCE
    assert "timed out" in failure(424, wait, type="selector", selector="#plain", state="detached", timeout=0.3)
    failure(400, wait, type="selector")
    failure(400, wait, type="selector", selector="][")
    failure(400, wait, type="selector", selector="#plain", state="shiny")
    failure(400, wait, type="selector", selector="#plain", timeout=-1)


def test_wait_for_places_and_loading(sites: Sites) -> None:
    wait = sites.page.wait
    sites.open("/spa/")
    for state in (None, "load", "domcontentloaded", "networkidle"):
        data = wait(type="load", **({"state": state} if state else {})).data
        assert data["type"] == "load" and data["elapsed"] >= 0
    assert wait(type="network_idle").data["type"] == "network_idle"
    failure(400, wait, type="load", state="loaded enough")
    for pattern in (f"{sites.url}/spa/about", "**/spa/about", f"{sites.url}/*/about", "/about$/"):
        sites.open("/spa/")
        sites.value("setTimeout(() => history.pushState(null, '', '/spa/about'), 500)")
        assert wait(type="url", url=pattern).data["type"] == "url"
        assert sites.value("location.pathname") == "/spa/about"
    for pattern in (f"{sites.url}/spa", "**/absent", "/absent$/", "*"):
        assert "timed out" in failure(424, wait, type="url", url=pattern, timeout=0.3), pattern
    failure(400, wait, type="url")
    failure(400, wait, type="url", url="/(/")
    sites.value("setInterval(() => fetch('/slow?seconds=0.2'), 100)")
    assert "timed out" in failure(424, wait, type="network_idle", timeout=2)


def test_wait_for_what_a_function_says(sites: Sites) -> None:
    wait = sites.page.wait
    sites.open("/article.html")
    sites.value("setTimeout(() => { window.ready = { after: 'a while' } }, 500)")
    data = wait(type="function", expression="window.ready", polling=50).data
    assert (data["type"], data["value"]) == ("function", {"after": "a while"})
    assert wait(type="function", expression="() => document.title").data["value"] == "On stones"
    assert wait(type="function", expression="await Promise.resolve(3)").data["value"] == 3
    assert "timed out" in failure(424, wait, type="function", expression="false", timeout=0.3)
    assert "on purpose" in failure(424, wait, type="function", expression="(() => { throw new Error('on purpose') })()", timeout=1)
    failure(400, wait, type="function")
    begun = time.monotonic()
    assert wait(type="timeout", timeout=0.4).data["elapsed"] >= 0.4
    assert 0.4 <= time.monotonic() - begun < PATIENCE
    failure((400, 422), wait, type="nonsense")


def test_wait_for_requests_and_responses(sites: Sites) -> None:
    wait = sites.page.wait
    sites.open("/article.html")
    # Again and again: one of them comes after the call was understood.
    sites.value("setInterval(() => fetch('/echo?tick', { method: 'POST', body: 'x' }), 200)")
    for kind in ("request", "response"):
        for name, pattern in (("url_pattern", "**/echo?tick"), ("url", f"{sites.url}/echo?tick"), ("url_pattern", "/tick$/")):
            data = wait(type=kind, **{name: pattern}).data
            assert (data["type"], data["url"], data["method"]) == (kind, f"{sites.url}/echo?tick", "POST")
            if kind == "response":
                assert data["status"] == 200
        assert "timed out" in failure(424, wait, type=kind, url_pattern="**/absent", timeout=0.3)
        failure(400, wait, type=kind)


def test_wait_for_a_download(sites: Sites) -> None:
    wait = sites.page.wait
    sites.open("/files.html")
    sites.page.click(selector="#report")
    data = wait(type="download", save_path="/tmp/got/mine.csv").data
    assert (data["filename"], data["path"], data["url"]) == ("report.csv", "/tmp/got/mine.csv", f"{sites.url}/download/report.csv")
    assert sites.read("/tmp/got/mine.csv") == "a,b\n1,2"
    # Somebody waits for it before it begins.
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait, type="download")
        while not waiting.done():
            sites.page.click(selector="#report")
            try:
                waiting.result(1)
            except TimeoutError:
                continue
        data = waiting.result().data
    assert data["filename"].startswith("report") and sites.read(data["path"]) == "a,b\n1,2"
    sites.fresh()
    sites.open("/files.html")
    assert "timed out" in failure(424, wait, type="download", timeout=0.5)
