"""Operations in a page that goes elsewhere meanwhile: each has its answer soon after the page has come to rest, and says nothing of
how the browser is spoken to."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest
from sites import Sites, soon

#: An answer that the browser owed to a page that was gone took 20 s and more.
SOON = 15
#: What the browser says of its own objects.
INTERNAL = ("uniqueContextId", "execution context", "Cannot find context", "Inspected target", "Page.", "Runtime.", "Input.", "-32000")


def get(path: str, **params: Any) -> Callable[[Sites], httpx.Response]:
    return lambda sites: sites.live.http.get(f"/v1/browser/page/{path}", params=params)


def post(path: str, **body: Any) -> Callable[[Sites], httpx.Response]:
    return lambda sites: sites.live.http.post(f"/v1/browser/page/{path}", json=body)


def tool(name: str, **arguments: Any) -> Callable[[Sites], httpx.Response]:
    return lambda sites: sites.live.http.post(f"/v1/mcp/browser/tools/{name}", json=arguments)


LOOKS = {
    "screenshot": get("screenshot"),
    "full screenshot": get("screenshot", full_page=True),
    "elements": get("elements"),
    "text": get("text"),
    "html": get("html"),
    "markdown": get("markdown"),
    "find_text": post("find_text", keyword="a"),
    "scroll": post("scroll", amount=10),
    "hover": post("hover", x=5, y=5),
    "press_key": post("press_key", key="Tab"),
    "tool's screenshot": tool("browser_vision_screen_capture"),
    "tool's elements": tool("browser_get_clickable_elements"),
}


def asked(sites: Sites, call: Callable[[Sites], httpx.Response]) -> httpx.Response:
    begun = time.monotonic()
    answer = call(sites)
    took = time.monotonic() - begun
    assert took < SOON, f"{took} s: {answer.text[:300]}"
    if answer.headers["content-type"].startswith("application/json"):
        assert not any(words in answer.text for words in INTERNAL), answer.text[:500]
    return answer


@pytest.mark.parametrize("call", LOOKS.values(), ids=LOOKS.keys())
def test_looking_while_the_page_leaves(sites: Sites, call: Callable[[Sites], httpx.Response]) -> None:
    for delay, page in ((0, "/article.html"), (15, "/form.html"), (40, f"{sites.other}/article.html")):
        sites.open("/index.html")
        sites.value(f"void setTimeout(() => location = {page!r}, {delay})")
        answer = asked(sites, call)
        assert answer.status_code == 200, answer.text[:500]
        assert "isError\":true" not in answer.text.replace(" ", ""), answer.text[:500]
        soon(lambda page=page: sites.place()["url"].endswith(page), page)


def test_acting_makes_the_page_leave(sites: Sites) -> None:
    acts = {
        "<button id=x onclick=\"location='/article.html'\">x</button>": post("click", selector="#x"),
        "<button id=x onmousedown=\"location='/article.html'\">x</button>": post("click", selector="#x"),
        "<input id=x type=checkbox onchange=\"location='/article.html'\">": post("check", selector="#x"),
        "<select id=x onchange=\"location='/article.html'\"><option>a<option>b</select>": post("select_option", selector="#x", value="b"),
        "<input id=x oninput=\"location='/article.html'\">": post("fill", selector="#x", text="y"),
        "<input id=x autofocus onkeydown=\"location='/article.html'\">": post("press_key", key="a"),
        "<p id=x onmouseover=\"location='/article.html'\">x</p>": post("hover", selector="#x"),
    }
    for body, act in acts.items():
        sites.open("/index.html")
        sites.value(f"document.body.innerHTML = {body!r}; document.querySelector('#x').focus()")
        answer = asked(sites, act)
        assert answer.status_code == 200, (body, answer.text[:500])
        picture = asked(sites, LOOKS["screenshot"])
        assert picture.status_code == 200, (body, picture.text[:500])
        soon(lambda: sites.place()["url"].endswith("/article.html"), body)


def test_what_a_page_that_left_has_begun_is_not_repeated(sites: Sites) -> None:
    sites.open("/index.html")
    answer = asked(sites, post("evaluate", expression="location = '/article.html'; await new Promise(() => {})"))
    assert answer.status_code == 424 and "went to another document" in answer.json()["message"], answer.text


def test_the_page_that_was_requested_last_stays(sites: Sites) -> None:
    """The calls wait for a browser that starts, and the first one's caller has left."""
    for _ in range(4):
        sites.live.bash("pkill -KILL -o chromium")
        for page in ("/form.html", "/index.html", "/form.html"):
            with suppress(httpx.TimeoutException):
                sites.live.http.post("/v1/browser/page/navigate", json={"url": sites.url + page}, timeout=0.1)
        answer = asked(sites, post("navigate", url=sites.url + "/article.html"))
        assert answer.status_code == 200, answer.text
        time.sleep(1)
        assert sites.place()["url"].endswith("/article.html")


def test_a_page_that_never_rests(sites: Sites) -> None:
    """It is told of, in the time that an element is waited for."""
    sites.open("/index.html")
    loop = "data:text/html,<script>setTimeout(() => location.reload(), 10)</script>"
    sites.page.navigate(url=loop, wait_until="commit")
    begun = time.monotonic()
    answer = sites.live.http.get("/v1/browser/page/screenshot")
    assert answer.status_code in (200, 424) and time.monotonic() - begun < 2 * SOON, answer.text[:300]
    assert sites.open("/article.html")["title"] == "On stones"
