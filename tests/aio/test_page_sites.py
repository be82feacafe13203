"""Whole sites worked through by calls of REST alone, as an agent does: shop, application, lists, frames, files, slow ones, a film."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from sites import PATIENCE, Sites, failure, soon


def test_log_in_and_buy(sites: Sites) -> None:
    sites.cookies.clear_cookies()
    place = sites.open("/shop/")
    assert (place["url"], place["title"]) == (f"{sites.url}/shop/login", "Login")
    fields = [{"index": sites.element("Name")["index"], "value": "gem"}, {"index": sites.element("Word")["index"], "value": "wrong"}]
    sites.page.fill_form(items=fields)
    sites.page.click(index=sites.element("Log in")["index"])
    sites.page.wait(type="selector", selector="#wrong")
    assert "Wrong name or word" in sites.page.get_text().data
    sites.page.fill(selector="input[name=user]", text="gem")
    sites.page.fill(selector="input[name=word]", text="stone & 10% more")
    sites.page.press_key(key="Enter")
    sites.page.wait(type="url", url="**/shop/")
    session = next(one for one in sites.cookies.get_cookies(urls=f"{sites.url}/shop/").data if one["name"] == "session")
    assert session["httpOnly"] is True and session["sameSite"] == "Lax" and session["path"] == "/shop"
    for count, name in enumerate(("amber", "citrine"), 1):
        sites.page.click(index=sites.element(f"Add {name}")["index"])
        sites.page.wait(type="function", expression=f"document.querySelector('#count').textContent === '{count}'")
    sites.page.click(selector="a[href='/shop/cart']")
    sites.page.wait(type="url", url=f"{sites.url}/shop/cart")
    assert sites.value("[...document.querySelectorAll('#cart li')].map(li => li.textContent)") == ["amber", "citrine"]
    sites.page.fill(selector="textarea", text="Stone Street 1\n12345 Quarry")
    sites.page.click(index=sites.element("Order")["index"])
    sites.page.wait(type="selector", selector="#order")
    assert "amber, citrine to Stone Street 1" in sites.page.get_text().data
    # Who has the saved state is logged in.
    sites.state.save(path="/tmp/shop.json")
    sites.cookies.clear_cookies()
    assert sites.open("/shop/")["title"] == "Login"
    sites.state.load(path="/tmp/shop.json")
    assert sites.open("/shop/")["title"] == "Shop"


def test_an_application_of_one_page(sites: Sites) -> None:
    sites.open("/spa/")
    sites.page.wait(type="selector", selector="h1")
    sites.page.click(index=sites.element("Items")["index"])
    sites.page.wait(type="url", url="**/spa/items")
    # Its rendering comes later than its address: a click waits for it.
    sites.page.click(selector="li:nth-child(7) .item")
    assert sites.until("document.querySelector('#chosen').textContent") == "chosen: item 6"
    sites.page.click(selector="nav a[href='/spa/about']")
    sites.page.wait(type="selector", selector="main p:not(.spinner)")
    assert "made late" in sites.page.get_text().data
    place = sites.page.back().data
    assert place["url"] == f"{sites.url}/spa/items"
    sites.page.wait(type="selector", selector=".item")
    assert sites.page.find_text(keyword="item 19").data
    assert sites.page.back().data["url"] == f"{sites.url}/spa/"
    assert sites.page.forward().data["url"] == f"{sites.url}/spa/items"
    sites.page.reload()
    sites.page.wait(type="selector", selector=".item")
    assert sites.value("document.title") == "Items"


def test_a_list_that_goes_on_as_it_is_scrolled(sites: Sites) -> None:
    sites.open("/infinite.html")
    sites.page.wait(type="selector", selector="li")
    deadline = time.monotonic() + 3 * PATIENCE
    while not sites.page.find_text(keyword="that is all").data:
        assert time.monotonic() < deadline, sites.value("document.querySelectorAll('li').length")
        sites.page.scroll(direction="down", amount=2000)
    assert sites.value("document.querySelectorAll('li').length") == 100
    sites.page.scroll_to_element(selector="li:nth-child(3)")
    assert sites.page.find_text(keyword="item 99").data[0]["box"]["y"] > 1000
    sites.page.scroll_to(y=100_000)
    assert 0 <= sites.page.find_text(keyword="item 99").data[0]["box"]["y"] < 1200


def test_frames(sites: Sites) -> None:
    place = sites.open("/frames.html")
    assert place["title"] == "Frames"
    names = ("same", "beside", "other", "nested", "sandboxed", "below")
    addresses = {
        "same": sites.url, "beside": sites.beside, "other": sites.other, "nested": sites.beside, "sandboxed": sites.url, "below": sites.other,
    }
    for name in names:
        button = sites.element(f"Press {name}")
        assert button["frame"] == f"{addresses[name]}/inner.html?{name}", button
        sites.page.click(index=button["index"])
        sites.until(f"pressed.includes('{name}')", shown="pressed")
        field = sites.element(f"Field {name}")
        sites.page.fill(index=field["index"], text=f"words for {name}")
        sites.until(f"pressed.includes('{name}=words for {name}')", shown="pressed")
    assert "frame" not in sites.element("Press top") or sites.element("Press top")["frame"] is None
    srcdoc = sites.element("Press srcdoc")
    assert srcdoc["frame"] == "about:srcdoc"
    sites.page.click(index=srcdoc["index"])
    sites.page.click(selector="button")
    assert sites.until("pressed.includes('srcdoc') && pressed.includes('top')")
    # Where things are is told in the page's own coordinates, whatever frame they are in.
    sites.page.scroll_to()
    for number, name in ((2, "other"), (3, "nested")):
        box = sites.element(f"Pressed {name}")["box"]
        frame = sites.value(f"document.querySelectorAll('iframe')[{number}].getBoundingClientRect().toJSON()")
        assert frame["left"] < box["x"] < box["x"] + box["width"] < frame["right"] and frame["top"] < box["y"] < box["y"] + box["height"] < frame["bottom"]
        sites.value("pressed.length = 0")
        sites.page.click(x=box["x"] + box["width"] / 2, y=box["y"] + box["height"] / 2)
        assert sites.until(f"pressed.includes('{name}')", shown="pressed")
        words = sites.page.find_text(keyword=f"words of {name}").data
        assert len(words) == 1 and words[0]["frame"] == f"{addresses[name]}/inner.html?{name}"
        assert abs(words[0]["box"]["x"] - box["x"]) < 60 and words[0]["box"]["y"] > box["y"]
    # A frame that is gone takes its elements with it.
    index = sites.element("Pressed same")["index"]
    sites.value("document.querySelector('iframe').remove()")
    failure(404, sites.page.click, index=index)
    assert not [one for one in sites.page.get_elements().data if one["name"] == "Pressed same"]


def test_what_stands_in_the_shadow(sites: Sites) -> None:
    sites.open("/shadow.html")
    deep = sites.element("Deep button")
    sites.page.click(index=deep["index"])
    sites.page.click(selector=deep["selector"])
    sites.page.click(selector="#deep")
    assert sites.until("pressed.length === 3", shown="pressed")
    field = sites.element("Deep field")
    sites.page.fill(index=field["index"], text="words")
    assert sites.element("Deep field")["value"] == "words"
    sites.page.fill(selector="#deeper", text="other words")
    assert sites.value("document.querySelector('x-card').shadowRoot.querySelector('x-field').shadowRoot.querySelector('input').value") == "other words"
    assert len(sites.page.find_text(keyword="words in the dark").data) == 1
    for words in ("slotted words", "words in the dark", "card"):
        assert words in sites.page.get_text().data, words


def test_files_go_up_and_come_down(sites: Sites) -> None:
    sites.live.output("mkdir -p /tmp/up; printf 'first\\n' > /tmp/up/a.txt; printf 'zweite ü' > '/tmp/up/b ü.txt'")
    sites.open("/files.html")
    sites.page.upload_file(selector="#one", files=["/tmp/up/a.txt"])
    sites.page.upload_file(selector="#more", files=["/tmp/up/a.txt", "/tmp/up/b ü.txt"])
    sites.page.click(index=sites.element("Upload", tag="button")["index"])
    sites.page.wait(type="selector", selector="#files")
    sent = [file for file in json.loads(sites.value("document.querySelector('#files').textContent")) if file["name"]]
    first, second = {"name": "a.txt", "text": "first\n"}, {"name": "b ü.txt", "text": "zweite ü"}
    assert sent == [first, first, second]
    sites.page.back()
    sites.page.click(index=sites.element("Report")["index"])
    data = sites.page.wait(type="download").data
    assert data["filename"] == "report.csv" and sites.read(data["path"]) == "a,b\n1,2"


def test_a_slow_site(sites: Sites) -> None:
    assert sites.open("/slow?seconds=1.5")["title"] == "Slow"
    page = "<title>parts</title><h1>here</h1><img src=/slow?seconds=2><script>addEventListener('load', () => document.title = 'whole')</script>"
    sites.route("**/parts", page, content_type="text/html")
    assert sites.open("/parts", wait_until="commit")["status"] == 200
    assert sites.open("/parts", wait_until="domcontentloaded")["url"].endswith("/parts")
    assert "here" in sites.page.get_text().data
    sites.page.wait(type="load")
    assert sites.value("document.readyState") == "complete"
    assert sites.open("/parts")["url"].endswith("/parts") and sites.value("document.readyState") == "complete"
    assert "timed out" in failure(424, sites.page.navigate, url=f"{sites.url}/slow?seconds=20", timeout=0.5)
    # A link to a slow page: what is there can still be read.
    sites.open("/article.html")
    sites.value("document.querySelector('a').href = '/slow?seconds=1'")
    sites.page.click(selector="a")
    sites.page.wait(type="selector", selector="h1")
    sites.page.wait(type="url", url="**/slow*")
    assert soon(lambda: "Slow but here" in sites.page.get_text().data, "the slow page")


def probe(path: Path) -> dict[str, Any]:
    show = ["-count_frames", "-show_entries", "format=duration:stream=codec_type,codec_name,width,height,nb_read_frames,avg_frame_rate", "-of", "json"]
    return json.loads(subprocess.run(["ffprobe", "-v", "error", *show, path], capture_output=True, check=True, timeout=120).stdout)


@pytest.mark.parametrize(("suffix", "codecs"), [("mp4", {"h264"}), ("webm", {"vp8", "vp9", "av1"}), ("gif", {"gif"})])
def test_a_film_of_it(sites: Sites, tmp_path: Path, suffix: str, codecs: set[str]) -> None:
    record, path = sites.page.record, f"/tmp/films/one.{suffix}"
    assert record(action="status").data["status"] in ("idle", "stopped")
    sites.open("/animation.html")
    begun = record(action="start", save_path=path, fps=10, duration=60).data
    assert (begun["status"], begun["save_path"]) == ("recording", path)
    sites.page.click(x=10, y=10)
    assert soon(lambda: record(action="status").data["duration"] >= 1, "a second of it")
    assert record(action="pause").data["status"] == "paused"
    paused = record(action="status").data
    assert paused["status"] == "paused"
    assert record(action="resume").data["status"] == "recording"
    assert soon(lambda: record(action="status").data["duration"] >= paused["duration"] + 0.5, "half a second more")
    ended = record(action="stop").data
    assert (ended["status"], ended["save_path"]) == ("stopped", path) and ended["duration"] >= 1.5
    film = sites.bytes(path)
    assert len(film) == ended["file_size_bytes"] > 1000
    copy = tmp_path / f"one.{suffix}"
    copy.write_bytes(film)
    seen = probe(copy)
    (stream,) = seen["streams"]
    assert stream["codec_type"] == "video" and stream["codec_name"] in codecs and int(stream["nb_read_frames"]) >= 5
    assert int(stream["width"]) > 300 and int(stream["height"]) > 300
    assert 0.7 <= float(seen["format"]["duration"]) <= ended["duration"] + 2


def test_a_film_at_once(sites: Sites, tmp_path: Path) -> None:
    record = sites.page.record
    sites.open("/animation.html")
    once = record(duration=1, fps=5, quality=30).data
    assert once["status"] == "stopped" and once["save_path"].endswith(".mp4") and once["save_path"].startswith("/home/gem/") and once["duration"] >= 1
    copy = tmp_path / "once.mp4"
    copy.write_bytes(sites.bytes(once["save_path"]))
    assert copy.stat().st_size == once["file_size_bytes"] > 500 and float(probe(copy)["format"]["duration"]) > 0.5
    http = sites.live.http
    for wrong in (
        {"save_path": "/tmp/films/x.avi"}, {"save_path": "/tmp/films/none"}, {"duration": 0}, {"duration": -1}, {"fps": 0}, {"quality": 101},
        {"action": "rewind"}, {"save_path": "/proc/no/x.mp4"},
    ):
        answer = http.post("/v1/browser/page/record", json={"action": "start", **wrong})
        assert answer.status_code in ((400, 404, 424) if "/proc" in wrong.get("save_path", "") else (400, 422)), (wrong, answer.text)
        assert record(action="status").data["status"] in ("idle", "stopped"), wrong
    # One at a time; and it ends by itself.
    record(action="start", duration=600, save_path="/tmp/films/long.mp4")
    failure((400, 409, 424), record, action="start", save_path="/tmp/films/second.mp4")
    record(action="stop")
    record(action="start", duration=0.5, save_path="/tmp/films/short.mp4")
    soon(lambda: record(action="status").data["status"] == "stopped", "its end")
    assert record(action="stop").data["status"] == "stopped"
    for action in ("pause", "resume"):
        failure((400, 404, 409, 424), record, action=action)
