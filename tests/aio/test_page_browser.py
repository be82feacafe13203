"""What belongs to the browser and not to one page: tabs, cookies, the saved state, and captchas."""

from __future__ import annotations

import json
import time

import pytest
from agent_sandbox.core.api_error import ApiError
from playwright.sync_api import Browser, Playwright
from sites import PATIENCE, Sites, failure, soon


def test_tabs(sites: Sites) -> None:
    first = sites.tabs.list().data
    assert [(tab["index"], tab["active"]) for tab in first] == [(0, True)]
    sites.open("/")
    made = sites.tabs.create(url=f"{sites.url}/article.html").data
    assert (made["index"], made["url"], made["active"]) == (1, f"{sites.url}/article.html", True)
    soon(lambda: sites.tabs.list().data[1]["title"] == "On stones", "its title")
    assert sites.value("document.title") == "On stones", "it became the current one"
    third = sites.tabs.create().data
    assert third["index"] == 2 and third["active"]
    tabs = sites.tabs.list().data
    assert [tab["index"] for tab in tabs] == [0, 1, 2] and [tab["active"] for tab in tabs] == [False, False, True]
    assert len({tab["id"] for tab in tabs}) == 3 and tabs[0]["title"] == "Home"
    activated = sites.tabs.activate(0).data
    assert (activated["index"], activated["id"], activated["title"], activated["active"]) == (0, tabs[0]["id"], "Home", True)
    assert sites.value("document.visibilityState") == "visible" and sites.value("document.title") == "Home"
    # What is closed in front of the current one does not change which one that is.
    sites.tabs.activate(1)
    assert sites.tabs.close(0).data == {"index": 0, "tabs": 2}
    assert sites.value("document.title") == "On stones"
    assert [tab["id"] for tab in sites.tabs.list().data] == [tabs[1]["id"], tabs[2]["id"]]
    assert sites.tabs.close(0).data["tabs"] == 1
    assert [tab["id"] for tab in sites.tabs.list().data if tab["active"]] == [tabs[2]["id"]]
    # There is always one.
    sites.tabs.close(0)
    left = sites.tabs.list().data
    assert len(left) == 1 and left[0]["active"] and left[0]["id"] != tabs[2]["id"]
    assert sites.open("/")["title"] == "Home"
    for call in (sites.tabs.close, sites.tabs.activate):
        for index in (1, 99, -1):
            with pytest.raises(ApiError) as refused:
                call(index)
            assert refused.value.status_code in ((400, 404) if index < 0 else (404,)), refused.value
    failure(400, sites.tabs.create, url="javascript:1")
    # A tab that leads nowhere is there, or it is said why not.
    answer = sites.live.http.post("/v1/browser/tabs", json={"url": "http://127.0.0.1:8009/"})
    assert answer.status_code == 200 or answer.status_code == 424 and "net::ERR_" in answer.json()["message"], answer.text


def test_tabs_of_others(sites: Sites, playwright: Playwright) -> None:
    assert sites.live.http.put("/cdp/json/new?about:blank").status_code == 200
    soon(lambda: len(sites.tabs.list().data) == 2, "a tab that another client opened for the person")
    remote = playwright.chromium.connect_over_cdp(sites.live.client.browser.get_info().data.cdp_url)
    context = remote.new_context()
    page = context.new_page()
    page.goto(f"{sites.url}/article.html")
    # In a profile of the client's own it is not the person's.
    assert len(sites.tabs.list().data) == 2
    context.close()
    remote.close()
    assert len(sites.tabs.list().data) == 2


def test_a_tab_that_closes_itself(sites: Sites) -> None:
    sites.open("/popups.html")
    sites.page.click(selector="#open")
    sites.until("location.pathname === '/inner.html'")
    sites.value("setTimeout(() => window.close(), 200)")
    soon(lambda: len(sites.tabs.list().data) == 1, "one tab left")
    assert sites.value("document.title") == "Popups"
    assert sites.page.click(selector="#blank").hint


def test_cookies(sites: Sites) -> None:
    cookies = sites.cookies
    cookies.clear_cookies()
    assert cookies.get_cookies().data == []
    sites.open("/cookies?plain=1&secret=2;HttpOnly;SameSite=Strict;Path=/echo&lasting=3;Max-Age=1000")
    found = {one["name"]: one for one in cookies.get_cookies().data}
    assert found.keys() == {"plain", "secret", "lasting"}
    for one in found.values():
        assert {"name", "value", "domain", "path", "expires", "httpOnly", "secure", "sameSite"} <= one.keys()
        assert one["domain"] == "127.0.0.1" and one["secure"] is False and one["sameSite"] in ("Strict", "Lax", "None")
    assert found["plain"]["expires"] == -1 and found["plain"]["httpOnly"] is False
    assert (found["secret"]["httpOnly"], found["secret"]["sameSite"], found["secret"]["path"]) == (True, "Strict", "/echo")
    assert abs(found["lasting"]["expires"] - time.time() - 1000) < 120
    later = time.time() + 5000
    given = [
        {"name": "by_url", "value": "a=b+c", "url": f"{sites.url}/form.html"},
        {"name": "by_domain", "value": "", "domain": "localhost", "path": "/", "expires": later, "httpOnly": True, "sameSite": "Lax"},
        {"name": "safe", "value": "3", "domain": ".example.org", "path": "/deep", "secure": True, "sameSite": "None", "expires": -1},
    ]
    assert cookies.set_cookies(cookies=given).data == {"count": 3}
    found = {one["name"]: one for one in cookies.get_cookies().data}
    assert found["by_url"]["value"] == "a=b+c" and found["by_url"]["domain"] == "127.0.0.1"
    assert abs(found["by_domain"]["expires"] - later) < 2 and found["by_domain"]["httpOnly"] is True
    assert (found["safe"]["domain"], found["safe"]["path"], found["safe"]["secure"]) == (".example.org", "/deep", True)
    assert {one["name"] for one in cookies.get_cookies(urls=f"{sites.other}/").data} == {"by_domain"}
    both = {one["name"] for one in cookies.get_cookies(urls=f"{sites.url}/,https://sub.example.org/deep/er").data}
    assert both == {"plain", "lasting", "by_url", "safe"}
    # The page and its server have them.
    sites.open("/echo")
    assert "by_url=a=b+c" in json.loads(sites.value("document.body.innerText"))["headers"]["Cookie"]
    # What is given again is changed.
    cookies.set_cookies(cookies=[{"name": "by_url", "value": "new", "url": sites.url}])
    assert [one["value"] for one in cookies.get_cookies().data if one["name"] == "by_url"] == ["new"]
    before = cookies.get_cookies().data
    good = {"name": "good", "value": "1", "url": sites.url}
    for wrong in (
        {"name": "x", "value": "1"}, {"value": "1", "url": sites.url}, {"name": "x", "url": sites.url}, {"name": "x", "value": "1", "url": "nonsense"},
        {"name": "x", "value": "1", "path": "/"}, {"name": "x", "value": "1", "url": sites.url, "sameSite": "Sometimes"},
        {"name": "x", "value": "1", "url": sites.url, "expires": "soon"}, {"name": "x", "value": 5, "url": sites.url},
        {"name": "x;y", "value": "1", "url": sites.url}, {"name": "x", "value": "1\n2", "url": sites.url},
    ):
        answer = sites.live.http.post("/v1/browser/cookies", json={"cookies": [good, wrong]})
        assert answer.status_code == 400, (wrong, answer.text)
        assert len(cookies.get_cookies().data) == len(before), (wrong, "none is set if one is bad")
    failure(400, cookies.get_cookies, urls="nonsense")
    assert cookies.clear_cookies().data == {"count": len(before)}
    assert cookies.get_cookies().data == [] and cookies.clear_cookies().data == {"count": 0}


def test_the_state_is_saved_and_comes_back(sites: Sites, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> None:
    sites.cookies.clear_cookies()
    sites.open("/cookies?state=kept")
    sites.value("localStorage.setItem('stone', 'agate ü'); sessionStorage.setItem('turn', '7')")
    saved = sites.state.save(path="/tmp/states/one.json").data
    assert (saved["path"], saved["cookies"]) == ("/tmp/states/one.json", 1) and saved["origins"] >= 1
    state = sites.json("/tmp/states/one.json")
    assert [one["name"] for one in state["cookies"]] == ["state"]
    origin = next(one for one in state["origins"] if one["origin"] == sites.url)
    assert {"name": "stone", "value": "agate ü"} in origin["localStorage"]
    assert {"name": "turn", "value": "7"} in origin["sessionStorage"]
    # It is what Playwright calls a storage state, in both directions.
    copy = tmp_path_factory.mktemp("states") / "one.json"
    copy.write_text(json.dumps(state))
    context = browser.new_context(storage_state=copy)
    assert context.cookies()[0]["name"] == "state"
    theirs = context.storage_state()
    assert {"name": "stone", "value": "agate ü"} in next(one for one in theirs["origins"] if one["origin"] == sites.url)["localStorage"]
    context.close()

    def restored(path: str) -> None:
        sites.cookies.clear_cookies()
        sites.open("/")
        sites.value("localStorage.clear(); sessionStorage.clear(); localStorage.setItem('stone', 'another')")
        sites.fresh()
        loaded = sites.state.load(path=path).data
        assert (loaded["cookies"], loaded["origins"] >= 1) == (1, True)
        sites.open("/")
        assert sites.value("localStorage.getItem('stone')") == "agate ü"
        assert [one["value"] for one in sites.cookies.get_cookies().data] == ["kept"]

    restored("/tmp/states/one.json")
    sites.live.client.file.write_file(file="/tmp/states/theirs.json", content=json.dumps(theirs))
    restored("/tmp/states/theirs.json")
    sites.live.client.file.write_file(file="/tmp/states/none.json", content='{"cookies": 5}')
    sites.live.client.file.write_file(file="/tmp/states/text.json", content="no JSON")
    before = sites.cookies.get_cookies().data
    failure(404, sites.state.load, path="/tmp/states/absent.json")
    for wrong in ("/tmp/states/none.json", "/tmp/states/text.json", "/tmp/states", ""):
        failure((400, 404) if wrong == "/tmp/states" else 400, sites.state.load, path=wrong)
    failure(400, sites.state.save, path="")
    failure((400, 404, 424), sites.state.save, path="/proc/no/state.json")
    assert sites.cookies.get_cookies().data == before
    sites.cookies.clear_cookies()


@pytest.mark.parametrize("kind", ["recaptcha", "hcaptcha", "turnstile"])
def test_captchas(sites: Sites, kind: str) -> None:
    sites.open("/captcha.html?none")
    assert sites.captcha.detect().data == {"detected": False, "type": None, "captchas": []}
    assert sites.captcha.wait(timeout=5, poll_interval=0.2).data.resolved is True, "there is none left"
    sites.open(f"/captcha.html?{kind}")

    def found() -> dict:
        data = sites.captcha.detect().data
        return data if data["detected"] and data["captchas"] else {}

    data = soon(found, "the captcha")
    assert data["type"] == kind
    for one in data["captchas"]:
        assert one["type"] == kind and one["box"].keys() == {"x", "y", "width", "height"} and isinstance(one["url"], str), one
    path = {"recaptcha": "/recaptcha/", "hcaptcha": "/captcha/", "turnstile": "/turnstile/"}[kind]
    assert any(path in one["url"] for one in data["captchas"]), data
    begun = time.monotonic()
    assert sites.captcha.wait(timeout=1, poll_interval=0.1).data.resolved is False
    assert 1 <= time.monotonic() - begun < PATIENCE
    # Its place has the answer: what a person did.
    sites.value("setTimeout(() => { document.querySelector('[name$=-response]').value = '03AFcWeA_token' }, 700)")
    assert sites.captcha.wait(timeout=PATIENCE, poll_interval=0.1).data.resolved is True
    sites.open(f"/captcha.html?{kind}")
    soon(found, "the captcha again")
    sites.value("setTimeout(() => document.querySelector('#place').remove(), 700)")
    assert sites.captcha.wait(timeout=PATIENCE, poll_interval=0.1).data.resolved is True
    failure((400, 422), sites.captcha.wait, timeout=-1)
    failure((400, 422), sites.captcha.wait, poll_interval=-1)
