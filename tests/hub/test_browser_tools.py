"""The tools that work in the browser and on its screen, by REST: each how it succeeds, and how it fails."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from arenite_server import Server
from PIL import Image
from sandboxes import LiveSandbox
from sites import Sites, soon

#: In the order in which they are listed.
TOOLS = [
    "browser_navigate", "browser_go_back", "browser_go_forward", "browser_get_markdown", "browser_get_text",
    "browser_read_links", "browser_tab_list", "browser_close_tab", "browser_get_download_list",
    "browser_get_clickable_elements", "browser_close", "browser_vision_screen_capture", "browser_form_input_fill",
    "browser_new_tab", "browser_switch_tab", "browser_evaluate", "browser_vision_screen_click", "browser_screenshot",
    "browser_click", "browser_select", "browser_hover", "browser_scroll", "browser_press_key",
]
SCREEN = ["sandbox_get_browser_info", "sandbox_browser_screenshot", "sandbox_browser_execute_action"]


class Told:
    """What a tool answered."""

    def __init__(self, result: dict[str, Any]):
        self.failed = bool(result.get("isError"))
        blocks = result["content"]
        self.text = "\n".join(block["text"] for block in blocks if block["type"] == "text")
        self.images = [block for block in blocks if block["type"] == "image"]
        self.structured = result.get("structuredContent")

    @property
    def picture(self) -> Image.Image:
        (block,) = self.images
        image = Image.open(io.BytesIO(base64.b64decode(block["data"])))
        assert block["mimeType"] == f"image/{image.format.lower()}"
        assert (self.structured["width"], self.structured["height"]) == image.size
        return image


class Tools:
    def __init__(self, sites: Sites):
        self.http, self.sites = sites.live.http, sites

    def __call__(self, name: str, /, **arguments: Any) -> Told:
        told = self.any(name, **arguments)
        assert not told.failed, told.text
        return told

    def any(self, name: str, /, **arguments: Any) -> Told:
        answer = self.http.post(f"/v1/mcp/hub/tools/{name}", json=arguments)
        assert answer.status_code == 200, answer.text
        envelope = answer.json()
        assert envelope["success"], envelope
        return Told(envelope["data"])

    def fails(self, name: str, /, *parts: str, **arguments: Any) -> str:
        """What it says of a failure, which has these parts."""
        told = self.any(name, **arguments)
        assert told.failed, told.text
        for part in parts:
            assert part in told.text, told.text
        return told.text

    def open(self, path: str) -> Told:
        return self("browser_navigate", url=self.sites.url + path)

    def value(self, script: str) -> Any:
        return self("browser_evaluate", script=script).structured["result"]

    def index(self, **wanted: Any) -> int:
        """Of the first element like this."""
        elements = self("browser_get_clickable_elements").structured["elements"]
        return next(one["index"] for one in elements if wanted.items() <= one.items())

    def until(self, script: str) -> Any:
        return soon(lambda: self.value(script), script)


@pytest.fixture(scope="module")
def made(server: Server) -> Iterator[Sites]:
    """One sandbox for all tests of the file, with the sites in it."""
    answer = httpx.post(f"{server.url}/api/v2/sandboxes", json={"name": "t-browser-tools", "image": "browser"}, timeout=120)
    assert answer.status_code in (200, 201), answer.text
    live = LiveSandbox(server.url, "t-browser-tools", 120)
    sites = Sites(live)
    sites.serve()
    yield sites
    live.delete()


@pytest.fixture
def tools(made: Sites) -> Tools:
    made.fresh()
    return Tools(made)


def test_they_are_listed_with_whole_schemas(tools: Tools) -> None:
    listed = tools.http.get("/v1/mcp/hub/tools").json()["data"]["tools"]
    names = [tool["name"] for tool in listed]
    assert [name for name in names if name in SCREEN] == SCREEN
    assert [name for name in names if name in TOOLS] == TOOLS
    assert names.index(SCREEN[0]) < names.index(TOOLS[0])
    for tool in listed:
        if tool["name"] not in TOOLS + SCREEN:
            continue
        assert len(tool["description"]) > 30 and tool["annotations"]["title"], tool
        schema = tool["inputSchema"]
        assert schema["type"] == "object" and "$ref" not in json.dumps(schema), tool
        for name, argument in schema["properties"].items():
            assert argument.get("description"), (tool["name"], name)
    schemas = {tool["name"]: tool["inputSchema"] for tool in listed}
    assert schemas["browser_navigate"]["required"] == ["url"]
    assert schemas["browser_form_input_fill"]["required"] == ["value"]
    assert schemas["browser_form_input_fill"]["properties"]["clear"]["default"] is False
    assert "required" not in schemas["browser_screenshot"]
    keys = schemas["browser_press_key"]["properties"]["key"]["enum"]
    assert len(keys) == 40 and {"Enter", "Tab", "F12", "ContextMenu", "ShiftLeft"} <= set(keys)
    variants = schemas["sandbox_browser_execute_action"]["properties"]["action"]["oneOf"]
    assert len(variants) == 16
    for variant in variants:
        fields = variant["properties"]
        assert fields.pop("action_type")["const"] and variant["description"], variant
        assert all(field.get("description") for field in fields.values()), variant


# The screen.


def test_browser_info(tools: Tools) -> None:
    info = tools("sandbox_get_browser_info")
    told = info.structured
    assert json.loads(info.text) == told
    url = tools.sites.live.url
    assert told["cdp_url"].startswith(f"{url.replace('http', 'ws')}/cdp/devtools/browser/")
    assert told["vnc_url"].startswith(f"{url}/vnc/")
    assert told["viewport"] == {"width": 1280, "height": 1024} and "Chrome" in told["user_agent"]


def test_screen_and_hands_on_it(tools: Tools) -> None:
    tools.open("/form.html")
    shot = tools("sandbox_browser_screenshot")
    assert shot.structured == {"width": 1280, "height": 1024} and shot.picture.size == (1280, 1024)
    act = "sandbox_browser_execute_action"
    done = tools(act, action={"action_type": "HOTKEY", "keys": ["ctrl", "l"]})
    assert done.structured == {"status": "success", "action_performed": "HOTKEY"}
    # Keys are a page's first, and what comes before it has let this one go is typed into the page, as from a person.
    tools(act, action={"action_type": "WAIT", "duration": 0.5})
    tools(act, action={"action_type": "TYPING", "text": tools.sites.url + "/article.html"})
    tools(act, action={"action_type": "PRESS", "key": "Return"})
    tools.until("location.pathname === '/article.html'")
    tools(act, action={"action_type": "WAIT", "duration": 0.01})
    tools.fails(act, "action", "JUMP", action={"action_type": "JUMP"})
    tools.fails(act, "x", action={"action_type": "MOVE_TO"})
    tools.fails(act, "nonsense", action={"action_type": "PRESS", "key": "nonsense"})
    tools.fails(act, "action")


# From page to page.


def test_navigate(tools: Tools) -> None:
    there = tools.open("/form.html")
    told = there.structured
    assert (told["url"], told["title"], told["status"], told["complete"]) == (f"{tools.sites.url}/form.html", "Form", 200, True)
    assert "Title: Form" in there.text and "<button>Send</button>" in there.text
    assert told["elements"][0]["index"] == 0 and told["elements_left"] == 0
    many = "".join(f"<button>b{n}</button>" for n in range(700))
    there = tools("browser_navigate", url=f"data:text/html,{many}")
    assert (len(there.structured["elements"]), there.structured["elements_left"]) == (50, 650)
    assert "650 more" in there.text
    tools.fails("browser_navigate", "net::ERR_CONNECTION_REFUSED", "Hint: ", url="http://127.0.0.1:8009/")
    tools.fails("browser_navigate", "empty", url=" ")
    tools.fails("browser_navigate", "url")
    tools.fails("browser_navigate", "javascript", url="javascript:1")


def test_back_and_forward(tools: Tools) -> None:
    tools.open("/article.html")
    tools.open("/form.html")
    back = tools("browser_go_back")
    assert back.structured == {"url": f"{tools.sites.url}/article.html", "title": "On stones"}
    assert "On stones" in back.text
    assert tools("browser_go_forward").structured["title"] == "Form"
    tools.fails("browser_go_forward", "no page to go forward to", "browser_navigate")
    tools("browser_new_tab", url=f"{tools.sites.url}/form.html")
    for _ in range(5):
        if (told := tools.any("browser_go_back")).failed:
            break
    assert told.failed and "no page to go back to" in told.text


# Reading.


def test_text_and_markdown(tools: Tools) -> None:
    tools.open("/article.html")
    markdown = tools("browser_get_markdown")
    for part in ("# On stones", "**hard**", "[marble](", "| talc"):
        assert part in markdown.text
    text = tools("browser_get_text").text
    assert "Granite is hard" in text and "hidden words" not in text
    long = "() => { document.body.textContent = 'word '.repeat(20000) + 'the end'; }"
    assert tools.value(long) is None
    for name in ("browser_get_text", "browser_get_markdown"):
        told = tools(name)
        assert len(told.text) < 31_000 and "the end" in told.text and "sandbox_file_operations" in told.text
        path = told.text.split("all of it is in ")[1].split(":")[0]
        assert int(tools.sites.live.output(f"wc -c < {path}")) > 100_000


def test_links(tools: Tools) -> None:
    tools.open("/")
    told = tools("browser_read_links")
    assert {"text": "An article", "href": f"{tools.sites.url}/article.html"} in told.structured["links"]
    assert f"[A form]({tools.sites.url}/form.html)" in told.text
    tools.open("/frames.html")
    assert tools("browser_read_links").structured["links_left"] == 0
    tools("browser_navigate", url="about:blank")
    assert tools("browser_read_links").structured["links"] == []


def test_downloads(tools: Tools) -> None:
    tools.open("/files.html")
    tools("browser_click", selector="#report")
    told = soon(
        lambda: [d for d in tools("browser_get_download_list").structured["downloads"] if d["status"] == "completed"], "a file"
    )
    assert told[-1]["filename"].startswith("report") and told[-1]["url"].endswith("/download/report.csv")
    assert tools.sites.read(told[-1]["path"])
    assert "report" in tools("browser_get_download_list").text


def test_clickable_elements(tools: Tools) -> None:
    tools.open("/form.html")
    told = tools("browser_get_clickable_elements")
    elements = told.structured["elements"]
    assert [one["index"] for one in elements] == list(range(len(elements)))
    send = tools.index(tag="button", name="Send")
    assert f"[{send}]<button>Send</button>" in told.text.splitlines()
    assert '<input type="text" value="old text">Old</input>' in told.text
    tools.open("/frames.html")
    assert "Press srcdoc" in tools("browser_get_clickable_elements").text
    tools("browser_navigate", url="about:blank")
    assert tools("browser_get_clickable_elements").structured["elements"] == []


# Scripts.


def test_evaluate(tools: Tools) -> None:
    tools.open("/article.html")
    for script, value in [
        ("() => document.title", "On stones"),
        ("() => document.title;", "On stones"),
        ("// the title\n() => document.title // of the page", "On stones"),
        ("async () => { await null; return [1, {a: null}]; }", [1, {"a": None}]),
        ("function () { return 5; }", 5),
        ("async function () { return 6; };", 6),
        ("function twice(n) { return 2 * n; } twice(4)", 8),
        ("document.title", "On stones"),
        ("1 + 1;", 2),
        ("await Promise.resolve(7)", 7),
        ("const rows = document.querySelectorAll('tr'); rows.length", 2),
        ("const rows = document.querySelectorAll('tr');\nrows.length + 1;", 3),
        ("const two = 2; return two;", 2),
        ("const got = await Promise.resolve(8);\nreturn got", 8),
        ("if (document.title) { return 'yes'; } return 'no';", "yes"),
        ("{a: 1, b: [2]}", {"a": 1, "b": [2]}),
        ("{ let inside = 3; inside }", 3),
        ("undefined", None),
        ("document.querySelectorAll('li').length > 1", True),
    ]:
        told = tools.any("browser_evaluate", script=script)
        assert told.structured == {"result": value}, (script, told.text)
        assert json.loads(told.text) == value
    tools.fails("browser_evaluate", "TypeError: no luck", script="() => { throw new TypeError('no luck') }")
    tools.fails("browser_evaluate", "ReferenceError", script="absent.value")
    tools.fails("browser_evaluate", "SyntaxError", script="const = 5")
    # What fails while it runs is not run again.
    tools.fails("browser_evaluate", "SyntaxError", script="window.runs = (window.runs ?? 0) + 1; JSON.parse('{')")
    assert tools.value("runs") == 1
    tools.fails("browser_evaluate", "SyntaxError", script="{ window.runs += 1; JSON.parse('{') }")
    assert tools.value("runs") == 2
    told = tools("browser_evaluate", script="'x'.repeat(100000)")
    assert len(told.text) < 31_000 and "Hint: " in told.text and told.structured is None


# Hands.


def test_click(tools: Tools) -> None:
    tools.open("/form.html")
    told = tools("browser_click", index=tools.index(tag="button", name="Send"))
    assert told.structured["title"] == "Form" and "Clicked element" in told.text
    tools.until("document.querySelector('#sent').textContent")
    tools("browser_click", selector="#agree", index=None)
    assert tools.value("document.querySelector('#agree').checked") is True
    tools("browser_click", selector="", index=tools.index(name="News"))
    assert tools.value("document.querySelector('#news').checked") is False
    tools.fails("browser_click", "999", "browser_get_clickable_elements", index=999)
    tools.fails("browser_click", "selector or an index")
    tools.fails("browser_click", "not both", index=0, selector="#agree")
    tools.fails("browser_click", "no element matches", "browser_get_clickable_elements", selector="#absent")
    tools.open("/popups.html")
    told = tools("browser_click", selector="#blank")
    assert "browser_switch_tab" in told.text and "browser_switch_tab" in told.structured["hint"]


def test_fill(tools: Tools) -> None:
    tools.open("/form.html")
    name = tools.index(name="Name")
    told = tools("browser_form_input_fill", index=name, value="Ada")
    assert told.structured["value"] == "Ada" and "It has now: Ada" in told.text
    assert tools("browser_form_input_fill", index=name, value=" L.").structured["value"] == "Ada L."
    assert tools("browser_form_input_fill", index=name, value="Bob", clear=True).structured["value"] == "Bob"
    assert tools("browser_form_input_fill", selector="#number", value="4").structured["value"] == "4"
    assert tools("browser_form_input_fill", selector="#number", value="2").structured["value"] == "42"
    assert tools("browser_form_input_fill", selector="#day", value="2025-12-31").structured["value"] == "2025-12-31"
    assert tools("browser_form_input_fill", selector="#rich", value=" and new").structured["value"] == "old words and new"
    assert tools("browser_form_input_fill", selector="#rich", value="new", clear=True).structured["value"] == "new"
    assert tools("browser_form_input_fill", selector="#colour", value="Green").structured["value"] == "g"
    secret = tools("browser_form_input_fill", selector="#secret", value="s3cret")
    assert secret.structured["value"] is None and "s3cret" not in secret.text
    assert tools.value("document.querySelector('#secret').value") == "s3cret"
    tools.fails("browser_form_input_fill", "takes no text", "browser_click", selector="#agree", value="x")
    tools.fails("browser_form_input_fill", "value", selector="#name")


def test_select(tools: Tools) -> None:
    tools.open("/form.html")
    assert tools("browser_select", selector="#colour", value="g").structured["selected"] == ["g"]
    index = tools.index(tag="select", selector="#colour")
    assert tools("browser_select", index=index, value="Red").structured["selected"] == ["r"]
    tools.fails("browser_select", "no such option", "browser_evaluate", index=index, value="Mauve")
    tools.fails("browser_select", "no select element", selector="#name", value="x")


def test_hover(tools: Tools) -> None:
    tools.open("/form.html")
    tools("browser_hover", selector="#pad")
    tools.until("seen.some(e => e.kind === 'mouseover' && e.id === 'pad')")
    tools("browser_hover", index=tools.index(tag="button", name="Send"))
    tools.until("seen.some(e => e.kind === 'mouseover' && e.id === 'send')")
    tools.fails("browser_hover", "999", index=999)


def test_scroll(tools: Tools) -> None:
    tools.open("/tall.html")
    told = tools("browser_scroll", amount=500)
    assert told.structured["pixels_above"] == 500 and "below" in told.text
    assert tools("browser_scroll", amount=-200).structured["pixels_above"] == 300
    told = tools("browser_scroll")
    assert told.structured["pixels_below"] == 0 and "end is reached" in told.text
    assert tools.value("scrollY") > 18_000
    tools.fails("browser_scroll", "amount", amount="far")
    tools.fails("browser_scroll", "amount", amount=5_000_000)


def test_press_key(tools: Tools) -> None:
    tools.open("/form.html")
    tools("browser_click", selector="#name")
    tools("browser_form_input_fill", selector="#name", value="ab")
    tools("browser_press_key", key="Backspace")
    assert tools.value("document.querySelector('#name').value") == "a"
    assert "Pressed Tab" in tools("browser_press_key", key="Tab").text
    assert tools.value("document.activeElement.id") == "old"
    tools("browser_press_key", key="Enter")
    tools.until("document.querySelector('#sent').textContent")
    listed = tools.http.get("/v1/mcp/hub/tools").json()["data"]["tools"]
    (schema,) = [tool["inputSchema"] for tool in listed if tool["name"] == "browser_press_key"]
    names = schema["properties"]["key"]["enum"]
    # What opens the browser's own windows is left out.
    for name in sorted(set(names) - {"F1", "F3", "F5", "F6", "F10", "F11", "F12", "F7", "PrintScreen"}):
        tools("browser_press_key", key=name)
    tools("browser_press_key", key="Control")
    tools.fails("browser_press_key", "Hyper", key="Hyper")


# Pictures.


def test_vision(tools: Tools) -> None:
    tools.open("/tall.html")
    shot = tools("browser_vision_screen_capture")
    assert shot.picture.convert("RGB").getpixel((5, 5)) == (200, 10, 20)
    assert list(shot.picture.size) == tools.value("[innerWidth, innerHeight]")
    tools.open("/form.html")
    x, y = tools.value("(() => { const r = document.querySelector('#pad').getBoundingClientRect(); return [r.x + 20, r.y + 30]; })()")
    clicked = "() => seen.filter(e => e.kind === 'click' && e.id === 'pad').length"
    tools("browser_vision_screen_click", x=x, y=y)
    tools.until(f"({clicked})() === 1")
    tools("browser_vision_screen_click", x=x / 2, y=y / 4, factors=[2, 4])
    tools.until(f"({clicked})() === 2")
    tools("browser_vision_screen_click", x=x / 2, y=y / 2, factors=[2])
    tools.until(f"({clicked})() === 3")
    tools.fails("browser_vision_screen_click", "outside", "browser_vision_screen_capture", x=5000, y=5)
    tools.fails("browser_vision_screen_click", "factors", x=1, y=1, factors=[1, 2, 3])
    tools.fails("browser_vision_screen_click", "y", x=5)


def test_screenshot(tools: Tools) -> None:
    tools.open("/form.html")
    size = tools.value("[innerWidth, innerHeight]")
    shot = tools("browser_screenshot", name="the form")
    assert list(shot.picture.size) == size and shot.text.startswith("the form: ")
    pad = tools("browser_screenshot", selector="#pad").picture
    assert pad.size == (120, 120) and pad.convert("RGB").getpixel((100, 100)) == (0xDD, 0xDD, 0xDD)
    send = tools.index(tag="button", name="Send")
    assert tools("browser_screenshot", index=send).picture.size[0] < 120
    small = tools("browser_screenshot", width=500, height=400)
    assert small.picture.size == (500, 400)
    assert tools.value("[innerWidth, innerHeight]") == size
    marked = tools("browser_screenshot", highlight=True).picture
    assert marked.size == shot.picture.size and marked.tobytes() != shot.picture.tobytes()
    assert tools.value("document.documentElement.children.length") == 2
    assert tools("browser_screenshot").picture.tobytes() == shot.picture.tobytes()
    tools.open("/tall.html")
    whole = tools("browser_screenshot", fullPage=True)
    assert whole.picture.size[1] == 20_000
    end = tools("browser_screenshot", selector="#end").picture
    assert end.size[1] == 20 and end.convert("RGB").getpixel((5, 5)) == (1, 200, 30)
    tools.fails("browser_screenshot", "no element matches", "browser_get_clickable_elements", selector="#absent")
    tools.fails("browser_screenshot", "width", width=10)


# Tabs.


def test_tabs(tools: Tools) -> None:
    tools.open("/")
    opened = tools("browser_new_tab", url=f"{tools.sites.url}/article.html")
    assert (opened.structured["index"], opened.structured["title"], opened.structured["active"]) == (1, "On stones", True)
    told = tools("browser_tab_list")
    assert [tab["title"] for tab in told.structured["tabs"]] == ["Home", "On stones"]
    assert told.text.splitlines()[1].endswith("(current)")
    assert tools("browser_switch_tab", index=0).structured["title"] == "Home"
    assert tools.value("document.title") == "Home"
    tools.fails("browser_switch_tab", "no tab 7", "browser_tab_list", index=7)
    tools.fails("browser_new_tab", "net::ERR_", url="http://127.0.0.1:8009/")
    left = tools("browser_close_tab")
    assert [tab["title"] for tab in left.structured["tabs"]] == ["On stones"]
    last = tools("browser_close_tab").structured["tabs"]
    assert [tab["url"] for tab in last] == ["about:blank"] and last[0]["active"]
    tools.open("/form.html")


def test_close(tools: Tools) -> None:
    tools.open("/form.html")
    assert "starts it again" in tools("browser_close").text
    tools("browser_close")
    assert tools.open("/article.html").structured["title"] == "On stones"


def test_aliases(tools: Tools) -> None:
    tools("sandbox_browser_navigate", url=f"{tools.sites.url}/form.html")
    tools("sandbox_browser_element_click", selector="#agree")
    assert tools("browser_gui_screenshot").images
    assert tools("browser_get_info").structured["viewport"]
