"""The browser's current page: going to places, and hands in them. Each method by the SDK, how it succeeds and how it fails."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from sites import PATIENCE, Sites, failure, failures


def heard(kind: str, **wanted: Any) -> str:
    """JavaScript: the events of that kind that form.html noted, with these properties."""
    tests = "".join(f" && e.{name} === {json.dumps(value)}" for name, value in wanted.items())
    return f"seen.filter(e => e.kind === '{kind}'{tests}).length"


# Going to places.


def test_navigate(sites: Sites) -> None:
    place = sites.open("/article.html")
    assert place == {"url": f"{sites.url}/article.html", "title": "On stones", "status": 200}
    assert sites.open("/status/418")["status"] == 418
    assert sites.open("/redirect/5") == {"url": f"{sites.url}/redirect/0", "title": "Arrived", "status": 200}
    for wait in ("load", "domcontentloaded", "networkidle", "commit"):
        place = sites.open(f"/form.html?{wait}", wait_until=wait)
        assert (place["url"], place["status"]) == (f"{sites.url}/form.html?{wait}", 200)
    assert sites.open("/form.html#part")["url"].endswith("/form.html#part")
    assert sites.open("/form.html?networkidle#other")["title"] == "Form"
    # What a person would type.
    bare = sites.url.removeprefix("http://")
    assert sites.page.navigate(url=f"{bare}/form.html").data["url"] == f"{sites.url}/form.html"
    assert sites.page.navigate(url=f"localhost:{bare.split(':')[1]}/").data["url"] == f"{sites.other}/"
    data = sites.page.navigate(url="data:text/html,<title>data</title>").data
    assert data["title"] == "data" and data["status"] in (None, 200)
    assert sites.page.navigate(url="about:blank").data["url"] == "about:blank"


def test_navigate_fails(sites: Sites) -> None:
    navigate = sites.page.navigate
    assert "net::ERR_CONNECTION_REFUSED" in failure(424, navigate, url="http://127.0.0.1:8009/")
    assert "net::ERR_" in failure(424, navigate, url="http://absent.invalid/")
    assert "net::ERR_" in failure(424, navigate, url="https://127.0.0.1:8003/")
    failure(400, navigate, url="javascript:document.title = 'hacked'")
    failure(400, navigate, url=" JavaScript:1")
    failure(400, navigate, url="")
    failure((400, 424), navigate, url="http://")
    failure((400, 422), navigate, url=sites.url, wait_until="whenever")
    failure(400, navigate, url=sites.url, timeout=-1)
    begun = time.monotonic()
    assert "timed out" in failure(424, navigate, url=f"{sites.url}/never/headers", timeout=1)
    assert time.monotonic() - begun < PATIENCE
    assert sites.open("/article.html")["status"] == 200
    assert sites.live.http.post("/v1/browser/page/navigate", json={}).status_code == 422
    answer = sites.live.http.post("/v1/browser/page/navigate", content="{", headers={"content-type": "application/json"})
    assert answer.status_code == 422


def test_back_forward_and_reload(sites: Sites) -> None:
    sites.open("/article.html")
    sites.open("/form.html")
    assert sites.page.back().data == {"url": f"{sites.url}/article.html", "title": "On stones"}
    assert sites.page.forward().data == {"url": f"{sites.url}/form.html", "title": "Form"}
    failure(424, sites.page.forward)
    sites.value("window.mark = 1")
    assert sites.page.reload().data == {"url": f"{sites.url}/form.html", "title": "Form"}
    assert sites.value("typeof mark") == "undefined"
    for _ in range(20):
        if sites.live.http.post("/v1/browser/page/back").status_code == 424:
            break
    else:
        pytest.fail("going back never ends")
    # Where it was it still is.
    assert isinstance(sites.value("location.href"), str)


# Hands.


def test_click(sites: Sites) -> None:
    sites.open("/form.html")
    answer = sites.page.click(selector="#agree")
    assert answer.data["url"] == f"{sites.url}/form.html" and answer.data["title"] == "Form" and not answer.hint
    box = sites.value("(() => { const r = document.querySelector('#agree').getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; })()")
    assert box[0] <= answer.data["x"] <= box[2] and box[1] <= answer.data["y"] <= box[3]
    assert sites.value("document.querySelector('#agree').checked") is True
    assert sites.value(heard("click", id="agree", trusted=True)) == 1
    x, y = sites.value("(() => { const r = document.querySelector('#pad').getBoundingClientRect(); return [r.left + 20, r.top + 30]; })()")
    sites.page.click(x=x, y=y, button="right")
    sites.until(heard("contextmenu", id="pad", x=x, y=y))
    sites.page.click(selector="#pad", button="middle")
    sites.until(heard("auxclick", id="pad", button=1))
    sites.page.click(selector="#pad", click_count=2)
    sites.until(heard("dblclick", id="pad"))
    send = sites.element("Send", tag="button")
    sites.page.click(index=send["index"])
    sites.until("document.querySelector('#sent').textContent")


def test_click_leads_elsewhere(sites: Sites) -> None:
    sites.open("/")
    sites.page.click(selector="a[href='/article.html']")
    sites.until("location.pathname === '/article.html'")
    sites.open("/popups.html")
    for selector, path in (("#blank", "/article.html"), ("#open", "/inner.html")):
        before = len(sites.tabs.list().data)
        answer = sites.page.click(selector=selector)
        assert answer.hint, "it tells of the tab that opened"
        tabs = sites.tabs.list().data
        assert len(tabs) == before + 1 and [tab["active"] for tab in tabs].count(True) == 1
        assert tabs[-1]["active"] and sites.until(f"location.pathname === '{path}'")
        sites.tabs.activate(0)
        assert sites.value("location.pathname") == "/popups.html"


def test_click_waits_until_it_can(sites: Sites) -> None:
    for ready, selector in (
        ("document.querySelector('#disabled').disabled = false", "#disabled"),
        ("document.querySelector('#hidden').style.visibility = 'visible'", "#hidden"),
        ("document.querySelector('#veil').remove()", "#covered"),
        ("still = true", "#moving"),
        ("{ const b = document.querySelector('#plain').cloneNode(true); b.id = 'new'; b.style.left = '400px'; document.body.append(b); }", "#new"),
    ):
        sites.open("/waiting.html")
        sites.value(f"later(() => {{ {ready} }})")
        sites.page.click(selector=selector)
        assert sites.until("clicked.length && clicked") == [selector[1:]]
    sites.page.click(selector="#below")
    assert sites.until("clicked.length > 1 && clicked.at(-1)") == "below"


def test_what_can_not_be_clicked_is_told_by_its_reason(sites: Sites) -> None:
    """Each of them is waited for; so all of them at once."""
    sites.open("/waiting.html")
    reasons = {"#disabled": "enabled disabled", "#hidden": "visible hidden", "#covered": "cover", "#moving": "moving still stable"}
    messages = failures(*((424, sites.page.click, {"selector": selector}) for selector in reasons))
    for message, words in zip(messages, reasons.values(), strict=True):
        assert any(word in message for word in words.split()), (words, message)
    assert sites.value("clicked") == []


def test_click_refuses(sites: Sites) -> None:
    sites.open("/form.html")
    for arguments in (
        {}, {"selector": "]["}, {"selector": ""}, {"x": 5}, {"y": 5}, {"selector": "#pad", "button": "side"},
        {"selector": "#pad", "click_count": -1}, {"x": -5, "y": 5}, {"x": 1e9, "y": 5},
    ):
        assert failure((400, 422), sites.page.click, **arguments), arguments
    failure(404, sites.page.click, index=99999)


def test_what_is_not_there_is_404(sites: Sites) -> None:
    """Each of them waits for it a while; so all of them at once."""
    sites.open("/form.html")
    page, absent = sites.page, {"selector": "#absent"}
    messages = failures(*((404, call, arguments) for call, arguments in (
        (page.click, absent), (page.fill, {**absent, "text": "x"}), (page.hover, absent), (page.select_option, {**absent, "value": "x"}),
        (page.check, absent), (page.uncheck, absent), (page.upload_file, {**absent, "files": ["/etc/hostname"]}),
        (page.scroll_to_element, absent), (page.fill_form, {"items": [{**absent, "value": "x"}]}),
    )))
    assert all("#absent" in message for message in messages), messages


def test_fill(sites: Sites) -> None:
    sites.open("/form.html")
    for selector, text in (
        ("#name", "Grüße, 世界 😀 'quoted' \"twice\" \\ <b>"), ("#old", "new text"), ("#old", ""), ("#mail", "gem@example.org"), ("#number", "-12.5"),
        ("#day", "2026-11-22"), ("#secret", "pa$$ word"), ("#story", "two\nlines\tand a tab"), ("#story", "x" * 50_000),
    ):
        place = sites.page.fill(selector=selector, text=text).data
        assert place == {"url": f"{sites.url}/form.html", "title": "Form"}
        assert sites.value(f"document.querySelector('{selector}').value") == text
    assert sites.value(heard("input", id="name")) >= 1
    sites.page.fill(selector="#rich", text="rich words")
    assert sites.value("document.querySelector('#rich').innerText.trim()") == "rich words"
    sites.page.fill(selector="#colour", text="g")
    assert sites.value("document.querySelector('#colour').value") == "g"
    sites.page.fill(selector="#colour", text="Red")
    assert sites.value("document.querySelector('#colour').value") == "r"
    assert sites.value(heard("change", id="colour")) == 2
    field = sites.element("Name")
    sites.page.fill(index=field["index"], text="by index")
    assert sites.value("document.querySelector('#name').value") == "by index"
    failure(400, sites.page.fill, selector="#plain", text="x")
    failure(400, sites.page.fill, text="x")
    failure(400, sites.page.fill, selector="][", text="x")
    failure(404, sites.page.fill, index=99999, text="x")
    sites.value("document.querySelector('#name').disabled = true")
    fill = sites.page.fill
    *_, disabled = failures((404, fill, {"selector": "#colour", "text": "Mauve"}), (424, fill, {"selector": "#name", "text": "x"}))
    assert "enabled" in disabled or "disabled" in disabled
    assert sites.value("document.querySelector('#name').value") == "by index"


def test_typing(sites: Sites) -> None:
    sites.open("/form.html")
    sites.page.click(selector="#story")
    text = "Plain words, ~!@#$%^&*()_+{}|:\"<>?`-=[]\\;',./ Grüße 世界 😀"
    assert sites.page.type_text(text=text).data == {"url": f"{sites.url}/form.html", "title": "Form"}
    assert sites.until("document.querySelector('#story').value") == text
    assert sites.value(heard("keydown", key="P", trusted=True)) == 1
    sites.page.type_text(text="\nnext")
    assert sites.value("document.querySelector('#story').value") == f"{text}\nnext"
    sites.page.click(selector="#name")
    sites.value("seen.length = 0")
    sites.page.type_text(text="slow", delay=100)
    assert sites.value("document.querySelector('#name').value") == "slow"
    times = sites.value("seen.filter(e => e.kind === 'keydown').map(e => e.time)")
    assert len(times) == 4 and times[-1] - times[0] >= 280
    failure(400, sites.page.type_text, text="x", delay=-1)
    assert sites.live.http.post("/v1/browser/page/type", json={}).status_code == 422


def test_keys(sites: Sites) -> None:
    sites.open("/form.html")
    sites.page.click(selector="#story")
    for name, key in (
        ("a", "a"), ("A", "A"), ("Enter", "Enter"), ("Return", "Enter"), ("Backspace", "Backspace"), ("BackSpace", "Backspace"), ("Tab", "Tab"),
        ("ArrowLeft", "ArrowLeft"), ("Left", "ArrowLeft"), ("Page_Down", "PageDown"), ("F2", "F2"), ("Escape", "Escape"), ("space", " "),
        ("Delete", "Delete"), ("Home", "Home"),
    ):
        sites.value("seen.length = 0; document.querySelector('#story').focus()")
        assert sites.page.press_key(key=name).data["title"] == "Form"
        sites.until(heard("keydown", key=key, trusted=True), shown="seen.map(e => [e.kind, e.key])")
    sites.value("document.querySelector('#story').focus(); document.querySelector('#story').value = 'some text'")
    for chord in ("Control+A", "ctrl+a"):
        sites.value("getSelection().removeAllRanges(); document.querySelector('#story').setSelectionRange(0, 0)")
        sites.page.press_key(key=chord)
        sites.until("document.querySelector('#story').selectionEnd === 9", shown="document.querySelector('#story').selectionEnd")
    sites.page.press_key(key="x")
    sites.until("document.querySelector('#story').value === 'x'")
    sites.value("document.querySelector('#story').value = 'other text'")
    assert sites.page.hot_key(keys=["ctrl", "a"]).data["title"] == "Form"
    sites.until("document.querySelector('#story').selectionEnd === 10")
    sites.value("seen.length = 0")
    sites.page.hot_key(keys=["Shift", "b"])
    sites.until("document.querySelector('#story').value === 'B'", shown="document.querySelector('#story').value")
    sites.page.hot_key(keys=["Control", "Shift", "ArrowLeft"])
    sites.until(heard("keydown", key="ArrowLeft", ctrl=True, shift=True))
    # None of them is held down after it.
    sites.page.press_key(key="End")
    sites.page.press_key(key="c")
    sites.until("document.querySelector('#story').value === 'Bc'", shown="document.querySelector('#story').value")
    for wrong in ("nonsense", "", "Control+nonsense"):
        failure(400, sites.page.press_key, key=wrong)
    for keys in (["ctrl", "nonsense"], [], [""]):
        failure((400, 422), sites.page.hot_key, keys=keys)


def test_enter_sends_a_form(sites: Sites) -> None:
    sites.open("/form.html")
    sites.page.fill(selector="#name", text="gem")
    sites.page.press_key(key="Enter")
    assert json.loads(sites.until("document.querySelector('#sent').textContent"))["name"] == "gem"


def test_hover(sites: Sites) -> None:
    sites.open("/form.html")
    place = sites.page.hover(selector="#pad").data
    assert (place["url"], place["title"]) == (f"{sites.url}/form.html", "Form")
    sites.until(heard("mouseover", id="pad", trusted=True))
    x, y = sites.value("(() => { const r = document.querySelector('#plain').getBoundingClientRect(); return [r.left + 3, r.top + 3]; })()")
    sites.page.hover(x=x, y=y)
    sites.until(heard("mouseover", id="plain"))
    for arguments in ({}, {"selector": "]["}, {"x": 1}, {"x": -1, "y": 1}):
        failure((400, 422), sites.page.hover, **arguments)


def test_select_option(sites: Sites) -> None:
    sites.open("/form.html")
    for arguments, value in (({"value": "r"}, "r"), ({"label": "Green"}, "g"), ({"index": 1}, "r"), ({"index": 0}, "")):
        data = sites.page.select_option(selector="#colour", **arguments).data
        assert data == {"url": f"{sites.url}/form.html", "title": "Form", "selected": [value]}
        assert sites.value("document.querySelector('#colour').value") == value
    assert sites.value(heard("change", id="colour")) == 4 and sites.value(heard("input", id="colour")) == 4
    assert sites.page.select_option(selector="#many", label="Two").data["selected"] == ["2"]
    failures(*((404, sites.page.select_option, {"selector": "#colour", **absent}) for absent in ({"value": "absent"}, {"label": "Absent"}, {"index": 99})))
    failure(400, sites.page.select_option, selector="#colour")
    failure(400, sites.page.select_option, selector="#name", value="r")
    failure(400, sites.page.select_option, selector="][", value="r")
    assert sites.value("document.querySelector('#colour').value") == ""


def test_check_and_uncheck(sites: Sites) -> None:
    sites.open("/form.html")
    for _ in range(2):
        assert sites.page.check(selector="#agree").data == {"url": f"{sites.url}/form.html", "title": "Form", "checked": True}
        assert sites.value("document.querySelector('#agree').checked") is True
    assert sites.value(heard("change", id="agree")) == 1, "what is checked stays so"
    for _ in range(2):
        assert sites.page.uncheck(selector="#news").data["checked"] is False
    assert sites.value("document.querySelector('#news').checked") is False
    assert sites.page.check(selector="#large").data["checked"] is True
    assert sites.page.check(selector="#fancy").data["checked"] is True
    assert sites.value("document.querySelector('#fancy').ariaChecked") == "true"
    for call in (sites.page.check, sites.page.uncheck):
        failure(400, call, selector="#name")
        failure(400, call, selector="][")


def test_upload_file(sites: Sites) -> None:
    sites.live.output("mkdir -p /tmp/up; echo one > /tmp/up/one.txt; echo zwei > '/tmp/up/zwei ü.txt'")
    sites.open("/files.html")
    data = sites.page.upload_file(selector="#one", files=["/tmp/up/one.txt"]).data
    assert data == {"url": f"{sites.url}/files.html", "title": "Files", "files": ["one.txt"]}
    both = ["/tmp/up/one.txt", "/tmp/up/zwei ü.txt"]
    assert sites.page.upload_file(selector="#more", files=both).data["files"] == ["one.txt", "zwei ü.txt"]
    # Sites hide the field and show a button of their own.
    sites.page.upload_file(selector="#veiled", files=["/tmp/up/one.txt"])
    assert sites.value("[...document.querySelectorAll('[type=file]')].map(f => f.files.length)") == [1, 2, 1]
    assert "/tmp/up/absent" in failure(404, sites.page.upload_file, selector="#one", files=["/tmp/up/one.txt", "/tmp/up/absent"])
    failure(400, sites.page.upload_file, selector="#text", files=["/tmp/up/one.txt"])
    failure(400, sites.page.upload_file, selector="#one", files=both)
    failure((400, 404), sites.page.upload_file, selector="#one", files=["relative.txt"])
    failure(400, sites.page.upload_file, selector="][", files=["/tmp/up/one.txt"])
    failure((400, 404), sites.page.upload_file, selector="#one", files=["/tmp/up"])
    assert sites.value("document.querySelector('#one').files.length") == 1


def test_fill_form(sites: Sites) -> None:
    sites.open("/form.html")
    mail = sites.element("Mail")
    items = [
        {"selector": "#name", "value": "gem"}, {"index": mail["index"], "text": "gem@example.org"}, {"selector": "#number", "value": 7},
        {"selector": "#agree", "value": True}, {"selector": "#news", "value": False}, {"selector": "#large", "value": True},
        {"selector": "#colour", "value": "Green"}, {"selector": "#many", "value": ["1", "3"]}, {"selector": "#story", "text": "a\nb", "type": "textarea"},
    ]
    assert sites.page.fill_form(items=items).data == {"url": f"{sites.url}/form.html", "title": "Form", "filled": 9}
    sites.page.click(selector="#send")
    sent = json.loads(sites.until("document.querySelector('#sent').textContent"))
    wanted = {"name": "gem", "mail": "gem@example.org", "number": "7", "agree": "on", "size": "l", "colour": "g"}
    assert wanted.items() <= sent.items() and "news" not in sent and sent["story"].split() == ["a", "b"]
    assert sites.value("[...document.querySelector('#many').selectedOptions].map(o => o.value)") == ["1", "3"]
    failure(400, sites.page.fill_form, items=[])
    # The first that fails stops it, and is named.
    sites.open("/form.html")
    wrong = (
        (400, {"selector": "#plain", "value": "x"}), (400, {"value": "x"}), (400, {"selector": "#story"}), (400, {"selector": "][", "value": "x"}),
        (404, {"index": 99999, "value": "x"}), (404, {"selector": "#colour", "value": "Mauve"}), (400, {"selector": "#story", "value": {"a": 1}}),
    )
    first, third = {"selector": "#name", "value": "first"}, {"selector": "#mail", "value": "third"}
    messages = failures(*((status, sites.page.fill_form, {"items": [first, item, third]}) for status, item in wrong))
    assert all("items[1]" in message for message in messages), messages
    assert sites.value("document.querySelector('#mail').value") == ""


def test_scrolling(sites: Sites) -> None:
    sites.open("/tall.html")
    sites.value("document.body.style.width = '4000px'")
    offsets = "[Math.round(scrollX), Math.round(scrollY)]"

    def where(answer: Any) -> list[int]:
        assert (answer.data["url"], answer.data["title"]) == (f"{sites.url}/tall.html", "Tall")
        found = [round(answer.data["x"]), round(answer.data["y"])]
        assert sites.value(offsets) == found, "what it says is where it stays"
        return found

    assert where(sites.page.scroll()) == [0, 300]
    assert where(sites.page.scroll(direction="down", amount=1000)) == [0, 1300]
    assert where(sites.page.scroll(direction="up", amount=200)) == [0, 1100]
    assert where(sites.page.scroll(direction="right", amount=500)) == [500, 1100]
    assert where(sites.page.scroll(direction="left", amount=100)) == [400, 1100]
    assert where(sites.page.scroll(direction="up", amount=100_000)) == [400, 0]
    assert where(sites.page.scroll_to(x=10, y=5000)) == [10, 5000]
    assert where(sites.page.scroll_to()) == [0, 0]
    assert where(sites.page.scroll_to(y=1_000_000))[1] == sites.value("document.documentElement.scrollHeight - document.documentElement.clientHeight")
    sites.page.scroll_to()
    assert where(sites.page.scroll_to_element(selector="#end"))[1] > 15_000
    assert sites.value("document.querySelector('#end').getBoundingClientRect().top < innerHeight")
    failure(400, sites.page.scroll, direction="sideways")
    failure(400, sites.page.scroll_to_element, selector="][")
    assert sites.live.http.post("/v1/browser/page/scroll", json={"amount": "far"}).status_code == 422
