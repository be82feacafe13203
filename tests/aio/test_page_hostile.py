"""Pages that work against us, and tabs and renderers that end under our hands: each call ends in time, and the browser stays usable."""

from __future__ import annotations

import io
import json
import time
from concurrent.futures import ThreadPoolExecutor

from PIL import Image
from sites import PATIENCE, Sites, failure, soon


def usable(sites: Sites) -> None:
    """The browser does what it is told, in the tab that is current now."""
    def works() -> bool:
        answer = sites.live.http.post("/v1/browser/page/navigate", json={"url": f"{sites.url}/article.html", "timeout": 15})
        assert answer.status_code in (200, 404, 424), answer.text
        return answer.status_code == 200 and answer.json()["data"]["title"] == "On stones"

    soon(works, "a browser that can be used", 2 * PATIENCE)
    assert sites.value("1 + 1") == 2
    assert "Granite" in sites.page.get_text().data


def test_selectors_that_are_none(sites: Sites) -> None:
    sites.open("/form.html")
    http = sites.live.http
    for selector in (
        "]", "a[b=", "'", '"', "<script>", "::", ",", "(", "#", ".", "a >", "#x'); window.hacked = 1; ('", '"]; window.hacked = 1; //', "${window.hacked = 1}",
        "`${window.hacked = 1}`", "*/ window.hacked = 1 /*", "a\u2028window.hacked = 1", "\x00[", " ", "", ":nonsense(", "a{}", "[" * 5000, ":not(" * 5000,
    ):
        for path, body in (("click", {}), ("fill", {"text": "x"}), ("hover", {}), ("wait", {"type": "selector", "timeout": 1})):
            answer = http.post(f"/v1/browser/page/{path}", json={"selector": selector, **body})
            assert answer.status_code == 400, (path, selector[:50], answer.text[:500])
            assert answer.json()["message"], answer.text
    assert sites.value("typeof hacked") == "undefined"
    answer = http.post("/v1/browser/page/click", json={"selector": "a" * (1 << 20)})
    assert answer.status_code in (400, 404, 413)
    assert sites.value("1 + 1") == 2


def test_strings_that_want_to_be_code(sites: Sites) -> None:
    sites.open("/form.html")
    for text in (
        "'); window.hacked = 1; ('", '"); window.hacked = 1; ("', "`${window.hacked = 1}`", "\\u0027 \\", "</script><script>window.hacked = 1</script>",
        "a\u2028b\u2029c", "{{7*7}} %s %n",
    ):
        sites.page.fill(selector="#name", text=text)
        assert sites.value("document.querySelector('#name').value") == text
        sites.page.find_text(keyword=text)
        answer = sites.live.http.get("/v1/browser/network/requests", params={"filter": text})
        assert answer.status_code in (200, 400), answer.text
    sites.value("document.querySelector('#plain').textContent = `it's \"quoted\" \\\\ and </p>`")
    assert len(sites.page.find_text(keyword="it's \"quoted\" \\ and </p>").data) == 1
    assert sites.value("typeof hacked") == "undefined"


def test_a_tab_that_closes_under_a_call(sites: Sites) -> None:
    for call, arguments in (
        (sites.page.wait, {"type": "selector", "selector": "#absent", "timeout": 50}),
        (sites.page.evaluate, {"expression": "window.begun = 1; await new Promise(() => {})"}),
        (sites.page.click, {"selector": "#absent"}),
    ):
        sites.tabs.create(url=f"{sites.url}/form.html")
        sites.open("/form.html")
        with ThreadPoolExecutor(1) as pool:
            under_way = pool.submit(failure, (404, 424), call, **arguments)
            # The call may not have begun yet; then it works in the tab that is current after it.
            while not under_way.done():
                sites.tabs.close(len(sites.tabs.list().data) - 1)
                try:
                    under_way.result(2)
                except TimeoutError:
                    continue
            assert under_way.result()
        usable(sites)


def test_a_renderer_that_dies(sites: Sites) -> None:
    sites.open("/form.html")
    assert "crash" in failure(424, sites.page.navigate, url="chrome://crash", timeout=20)
    usable(sites)
    # And one that ends while a call works in it.
    sites.open("/form.html")
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(failure, 424, sites.page.evaluate, expression="await new Promise(() => {})")
        while not under_way.done():
            sites.live.bash("pkill -KILL -f '[-]-type=renderer'")
            try:
                under_way.result(1)
            except TimeoutError:
                continue
        assert under_way.result()
    usable(sites)
    assert len(sites.tabs.list().data) >= 1


def test_redirects_without_end(sites: Sites) -> None:
    assert "net::ERR_TOO_MANY_REDIRECTS" in failure(424, sites.page.navigate, url=f"{sites.url}/redirect/endless")
    sites.open("/article.html")
    assert sites.value("fetch('/redirect/endless').then(() => 'there', () => 'failed')") == "failed"
    usable(sites)


def test_servers_that_never_answer(sites: Sites) -> None:
    for path in ("/never/headers", "/never/body"):
        assert "timed out" in failure(424, sites.page.navigate, url=sites.url + path, timeout=1)
        usable(sites)
    assert sites.open("/never/body", wait_until="commit", timeout=20)["url"] == f"{sites.url}/never/body"
    sites.page.get_text()
    assert "Begun" in sites.page.get_html().data
    assert b"".join(sites.page.screenshot())
    usable(sites)


def test_a_large_download(sites: Sites) -> None:
    sites.open("/files.html")
    sites.page.click(selector="#zeros")
    assert sites.value("document.title") == "Files" and "Report" in sites.page.get_text().data
    began = time.monotonic()
    while True:
        answer = sites.live.http.post("/v1/browser/page/wait", json={"type": "download", "timeout": 40})
        if answer.status_code == 200:
            break
        assert "timed out" in answer.json()["message"] and time.monotonic() - began < 110, answer.text
    data = answer.json()["data"]
    assert data["filename"] == "zeros.bin" and data["url"] == f"{sites.url}/zeros?mb=500"
    assert sites.live.output(f"stat -c %s '{data['path']}' && rm '{data['path']}'") == str(500 << 20)
    # An address that is no page: said in time, and the page before it stays.
    answer = sites.live.http.post("/v1/browser/page/navigate", json={"url": f"{sites.url}/download/report.csv"})
    assert answer.status_code in (200, 424), answer.text
    usable(sites)


def test_a_very_tall_page(sites: Sites) -> None:
    sites.open("/tall.html")
    data = b"".join(sites.page.screenshot(full_page=True))
    shown = Image.open(io.BytesIO(data))
    scale = sites.value("devicePixelRatio")
    assert shown.height == round(20_000 * scale)
    pixels = shown.convert("RGB")
    for x in (0, 500):
        assert pixels.getpixel((x, shown.height - 1)) == (1, 200, 30)
        assert pixels.getpixel((x, shown.height - 10)) == (1, 200, 30)
        assert pixels.getpixel((x, 0)) == (200, 10, 20)
        red, green, blue = pixels.getpixel((x, shown.height // 2))
        assert red == green == blue and 100 < red < 156, "the middle is there, and not the beginning once more"
    assert sites.value("[innerHeight < 5000, scrollY]") == [True, 0], "the page is as it was"
    answer = sites.live.http.get("/v1/browser/page/screenshot?full_page=true&format=jpeg&quality=20")
    assert Image.open(io.BytesIO(answer.content)).height == shown.height
    # No picture has as many pixels as this.
    sites.value("document.body.style.height = '20000000px'")
    answer = sites.live.http.get("/v1/browser/page/screenshot?full_page=true")
    assert answer.status_code in (200, 400, 413, 424), answer.text
    usable(sites)


def test_dialogs_block_nothing(sites: Sites) -> None:
    sites.open("/dialogs.html")
    for selector, noted in (("#alert", "alert"), ("#confirm", "confirm false"), ("#prompt", "prompt null"), ("#many", "many")):
        sites.page.click(selector=selector)
        assert sites.until(f"noted.length && noted.at(-1) === {json.dumps(noted)}", shown="noted")
    assert sites.value("alert('from evaluate'); 5") == 5
    sites.page.click(selector="#leave")
    assert sites.until("noted.at(-1) === 'armed'")
    assert sites.open("/article.html")["title"] == "On stones"
    # The same for a tab that is closed, and one that is reloaded.
    for leave in (lambda: sites.tabs.close(0), sites.page.reload, sites.page.back):
        sites.open("/article.html?before")
        sites.open("/dialogs.html")
        sites.page.click(selector="#leave")
        sites.until("noted.length")
        leave()
        sites.value("document.title")
    # A page that asks before it is there.
    sites.page.navigate(url="data:text/html,<title>asks</title><script>window.said = confirm('may I?')</script>")
    assert sites.value("said") is False
    usable(sites)


def test_dialogs_are_answered_by_callers(sites: Sites) -> None:
    http = sites.live.http
    sites.open("/dialogs.html")
    declined = http.post("/v1/browser/page/click", json={"selector": "#confirm"}).json()
    assert 'confirm "really?" was declined' in declined["hint"] and "/v1/browser/page/dialog" in declined["hint"], declined
    # Said beforehand, for the next one alone.
    for answer, selector, noted in (({"accept": True}, "#confirm", "confirm true"), ({"accept": True, "text": "me"}, "#prompt", "prompt me")):
        said = http.post("/v1/browser/page/dialog", json=answer).json()["data"]
        assert said["dialog"] is None and said["next"]["accept"] is True
        told = http.post("/v1/browser/page/click", json={"selector": selector}).json()
        assert told["hint"] is None, told
        assert sites.until(f"noted.at(-1) === {json.dumps(noted)}", shown="noted")
    # One that comes while no call works in the page waits for an answer.
    sites.value("void setTimeout(() => { window.said = prompt('later?', 'suggested'); }, 200)")
    shown = soon(lambda: http.get("/v1/browser/page/dialog").json()["data"]["dialog"], "the dialog")
    assert shown == {"type": "prompt", "message": "later?", "default_value": "suggested"}
    state = http.post("/v1/browser/page/dialog", json={}).json()["data"]
    assert state["dialog"] is None and state["answered"][-1]["accepted"] is True
    assert sites.until("window.said") == "suggested"
    # The names of AIO's README.
    assert http.post("/v1/browser/page/evaluate", json={"script": "1 + 1"}).json()["data"] == 2
    sites.open("/form.html")
    assert http.post("/v1/browser/page/fill", json={"selector": "#name", "value": "x"}).status_code == 200
    assert http.post("/v1/browser/network/route", json={"pattern": "**/none", "abort": "true"}).status_code == 200
    assert http.request("DELETE", "/v1/browser/network/route", json={"pattern": "**/none"}).status_code == 200


def test_a_thousand_windows(sites: Sites) -> None:
    sites.open("/popups.html#now")
    sites.tabs.activate(0)
    sites.page.click(selector="#thousand")
    tabs = sites.tabs.list().data
    assert 1 <= len(tabs) <= 1002 and [tab["active"] for tab in tabs].count(True) == 1
    while len(sites.tabs.list().data) > 1:
        sites.tabs.close(len(sites.tabs.list().data) - 1)
    usable(sites)
    # Without an end: one with each click.
    sites.open("/popups.html")
    for _ in range(15):
        sites.page.click(selector="#open")
        sites.tabs.activate(0)
    assert len(sites.tabs.list().data) == 16
    usable(sites)
    sites.fresh()
    assert len(sites.tabs.list().data) == 1


def test_a_page_that_breaks_what_pages_are_made_of(sites: Sites) -> None:
    sites.open("/builtins.html")
    page = sites.page
    for read in (page.get_html, page.get_text, page.get_elements, page.get_markdown, page.get_console):
        assert read().success, read
    assert "stolen goods" in page.get_html().data and "stolen goods" in page.get_text().data
    assert "# stolen goods" in page.get_markdown().data["markdown"]
    found = page.find_text(keyword="stolen goods").data
    assert len(found) == 1 and found[0]["tag"] == "h1"
    names = {one["name"]: one for one in page.get_elements().data}
    assert {"Field", "press", "a way out", "tick"} <= names.keys()
    page.fill(selector="#field", text="filled all the same")
    assert "filled all the same" in json.dumps([one.get("value") for one in page.get_elements().data])
    page.click(selector="#press")
    page.click(index=names["press"]["index"])
    assert sites.value("pressed") == 2
    assert page.check(selector="#tick").data["checked"] is True
    assert page.select_option(selector="#choose", label="two").data["selected"] == ["two"]
    page.hover(selector="#press")
    page.wait(type="selector", selector="#press")
    assert page.scroll_to_element(selector="#press").data["y"] == 0
    assert b"".join(page.screenshot(full_page=True)).startswith(b"\x89PNG")
    assert page.fill_form(items=[{"selector": "#field", "value": "again"}]).data["filled"] == 1
    assert sites.tabs.list().data[0]["url"].endswith("/builtins.html")
    assert sites.captcha.detect().data["detected"] is False
    page.click(selector="a")
    soon(lambda: sites.tabs.list().data[0]["url"].endswith("/article.html"), "the way out")
    usable(sites)


def test_very_much_text(sites: Sites) -> None:
    sites.open("/big?lines=110000")
    text = sites.page.get_text().data
    assert len(text) > 5_000_000 and "line 0000000 of" in text and "line 0109999 of" in text and "the very end" in text
    assert len(sites.page.get_html().data) > 5_000_000
    markdown = sites.page.get_markdown().data
    assert "line 0000000 of" in markdown["markdown"] and markdown["truncated"], "it says that there is more"
    assert len(sites.page.find_text(keyword="the very end").data) == 1
    assert sites.page.get_elements().data == []
    # Found everywhere, told of so often only as somebody could read.
    sites.value("document.body.innerHTML = '<p>needle</p>'.repeat(20000) + '<button>b</button>'.repeat(3000)")
    assert 0 < len(sites.page.find_text(keyword="needle").data) <= 20_000
    assert 0 < len(sites.page.get_elements().data) <= 3_000
    sites.value("for (let i = 0; i < 5000; i++) console.log('x'.repeat(1000))")
    answer = sites.live.http.get("/v1/browser/page/console")
    assert answer.status_code == 200 and len(answer.content) < 100 << 20
    usable(sites)


def test_loops_without_end(sites: Sites) -> None:
    sites.open("/article.html")
    assert failure(424, sites.page.evaluate, expression="for (;;);")
    # The page itself lives on.
    assert sites.value("document.title") == "On stones"
    usable(sites)
    assert "timed out" in failure(424, sites.page.wait, type="function", expression="(() => { for (;;); })()", timeout=2)
    usable(sites)


def test_a_page_that_hangs(sites: Sites) -> None:
    sites.open("/loop.html")
    answer = sites.live.http.post("/v1/browser/page/click", json={"selector": "#later"})
    assert answer.status_code in (200, 424)
    for path in ("text", "elements", "screenshot"):
        answer = sites.live.http.get(f"/v1/browser/page/{path}")
        assert answer.status_code in (200, 424), answer.text
    # Another tab does not care, nor does the list of tabs; and this one can be closed.
    assert sites.tabs.create(url=f"{sites.other}/article.html").data["index"] == 1
    assert sites.value("document.title") == "On stones"
    sites.tabs.close(0)
    assert len(sites.tabs.list().data) == 1
    usable(sites)
