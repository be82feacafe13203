"""Documents made by the usual Python packages: views in the editor, and Markdown from files, data URIs and pages."""

from __future__ import annotations

import base64
import io
import json
import threading
import time
import zipfile
from collections.abc import Callable
from datetime import datetime
from typing import Any

import docx
import httpx
import nbformat
import openpyxl
import pptx
import pytest
from agent_sandbox import Sandbox as Client
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from pptx.util import Inches
from reportlab.lib.pagesizes import A4
from reportlab.pdfgen import canvas
from sandboxes import LiveSandbox

# The smallest picture that is one.
PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


def pdf() -> bytes:
    out = io.BytesIO()
    page = canvas.Canvas(out, pagesize=A4)
    page.setTitle("Quarterly report")
    page.setAuthor("Ada")
    for number in range(1, 6):
        page.drawString(72, 720, f"This is page {number} of the report")
        page.showPage()
    page.save()
    return out.getvalue()


def workbook() -> bytes:
    book = openpyxl.Workbook()
    sales = book.active
    sales.title = "Sales"
    sales.append(["Region", "Units", "Date"])
    for number in range(1, 101):
        sales.append([f"region {number}", number * 1.5, datetime(2026, 1, 1 + number % 28)])
    book.create_sheet("Notes | more").append(["a note"])
    book.properties.title = "Sales of 2026"
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def slides() -> bytes:
    show = pptx.Presentation()
    for number in range(1, 4):
        slide = show.slides.add_slide(show.slide_layouts[1])
        slide.shapes.title.text = f"Title {number}"
        body = slide.placeholders[1].text_frame
        body.text = f"first point {number}"
        inner = body.add_paragraph()
        inner.text, inner.level = "inner point", 1
        slide.notes_slide.notes_text_frame.text = f"say this {number}"
    table = show.slides[2].shapes.add_table(2, 2, Inches(1), Inches(4), Inches(4), Inches(1)).table
    table.cell(0, 0).text, table.cell(1, 1).text = "head", "cell"
    out = io.BytesIO()
    show.save(out)
    return out.getvalue()


def word() -> bytes:
    document = docx.Document()
    document.core_properties.author = "Ada"
    document.add_heading("A study", 0)
    document.add_heading("Results", 2)
    paragraph = document.add_paragraph("It was ")
    paragraph.add_run("very").bold = True
    paragraph.add_run(" good")
    document.add_paragraph("one", style="List Bullet")
    document.add_paragraph("first", style="List Number")
    document.add_paragraph("second", style="List Number")
    table = document.add_table(rows=2, cols=2)
    for at, text in enumerate(["a", "b", "c", "d"]):
        table.cell(at // 2, at % 2).text = text
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def notebook() -> bytes:
    ran = new_code_cell("print('hi')", execution_count=1, outputs=[new_output("stream", text="hi\n")])
    book = new_notebook(cells=[new_markdown_cell("# Study"), ran, new_code_cell("x = 1")])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.writes(book).encode()


Put = Callable[[str, bytes], str]


@pytest.fixture
def put(client: Client, folder: str) -> Put:
    """Stores a file in the sandbox and gives its path."""

    def put(name: str, content: bytes) -> str:
        answer = client.file.write_file(file=f"{folder}/{name}", content=base64.b64encode(content).decode(), encoding="base64")
        assert answer.success, answer
        return f"{folder}/{name}"

    return put


def view(client: Client, path: str, **arguments: Any) -> Any:
    answer = client.file.str_replace_editor(command="view", path=path, **arguments)
    assert answer.success is True, answer
    return answer.data


def convert(client: Client, uri: str) -> str:
    answer = client.util.convert_to_markdown(uri=uri)
    assert answer.success is True, answer
    return answer.data


class TestViews:
    def test_pages_of_a_pdf(self, client: Client, put: Put) -> None:
        path = put("report.pdf", pdf())
        whole = view(client, path).output
        assert all(f"This is page {number} of" in whole for number in range(1, 6))
        shown = view(client, path, page_range=[2, 3], enable_metadata=True)
        assert "## Page 2" in shown.output and "This is page 3" in shown.output
        assert "page 1 of" not in shown.output and "page 4 of" not in shown.output
        assert (shown.metadata["total_pages"], shown.metadata["title"], shown.metadata["author"]) == (5, "Quarterly report", "Ada")
        assert shown.prev_exist is True and view(client, path).metadata is None
        assert "page 5 of" in view(client, path, page_range=[5, -1]).output

    def test_sheets_and_rows(self, client: Client, put: Put) -> None:
        path = put("sales.xlsx", workbook())
        shown = view(client, path, sheet_name="Sales", row_range=[1, 3], enable_metadata=True)
        assert "| 1 | Region | Units | Date |" in shown.output
        assert "| 3 | region 2 | 3 | 2026-01-03 |" in shown.output and "region 3" not in shown.output
        assert shown.metadata["sheet_names"] == ["Sales", "Notes | more"]
        assert (shown.metadata["total_sheets"], shown.metadata["title"]) == (2, "Sales of 2026")
        both = view(client, path).output
        assert "region 100" in both and "a note" in both

    def test_slides(self, client: Client, put: Put) -> None:
        path = put("show.pptx", slides())
        shown = view(client, path, slide_range=[2, 3], enable_metadata=True)
        assert "# Title 2" in shown.output and "- first point 3\n    - inner point" in shown.output
        assert "Title 1" not in shown.output and "Notes: say this 2" in shown.output
        assert "| head |  |" in shown.output and shown.metadata["total_slides"] == 3

    def test_word(self, client: Client, put: Put) -> None:
        shown = view(client, put("study.docx", word()), enable_metadata=True)
        for part in ["# A study", "## Results", "It was **very** good", "- one", "1. first", "2. second", "| a | b |"]:
            assert part in shown.output, shown.output
        assert shown.metadata["author"] == "Ada"

    def test_cells_of_a_notebook(self, client: Client, put: Put) -> None:
        path = put("study.ipynb", notebook())
        assert '"cells": [' in view(client, path).output
        shown = view(client, path, page_range=[2, 3], enable_metadata=True)
        assert "```python\nprint('hi')\n```" in shown.output and "```\nhi\n```" in shown.output
        assert "# Study" not in shown.output and shown.metadata["total_cells"] == 3

    def test_rows_of_a_table(self, client: Client, put: Put) -> None:
        path = put("t.csv", "".join(f"{n},x{n}\n" for n in range(1, 51)).encode())
        assert "     7\t7,x7" in view(client, path).output
        assert "| 49 | 49 | x49 |" in view(client, path, row_range=[49, 60]).output

    @pytest.mark.parametrize(
        ("name", "arguments", "words"),
        [
            ("report.pdf", {"page_range": [6, 7]}, "there are 5 pages"),
            ("report.pdf", {"page_range": [3, 2]}, "ends before"),
            ("report.pdf", {"page_range": [1, 2, 3]}, "two numbers"),
            ("report.pdf", {"row_range": [1, 2]}, "spreadsheets"),
            ("report.pdf", {"view_range": [1, 2]}, "page_range"),
        ],
    )
    def test_ranges_that_are_not_there(self, client: Client, put: Put, name: str, arguments: Any, words: str) -> None:
        answer = client.file.str_replace_editor(command="view", path=put(name, pdf()), **arguments)
        assert answer.success is False and words in answer.message, answer

    def test_an_unknown_sheet_names_those_there_are(self, client: Client, put: Put) -> None:
        answer = client.file.str_replace_editor(command="view", path=put("s.xlsx", workbook()), sheet_name="Sale")
        assert answer.success is False and '"Sales"' in answer.message

    @pytest.mark.parametrize("command", ["create", "str_replace", "insert"])
    def test_documents_are_not_edited_as_text(self, client: Client, put: Put, command: str) -> None:
        path = put("study.docx", word())
        texts = {"file_text": "x", "old_str": "a", "new_str": "b", "insert_line": 0}
        answer = client.file.str_replace_editor(command=command, path=path, **texts)
        assert answer.success is False and "binary file" in answer.message, answer
        assert "It was" in view(client, path).output


class TestMarkdown:
    @pytest.mark.parametrize(
        ("name", "content", "parts"),
        [
            ("a.pdf", pdf(), ["This is page 1", "This is page 5"]),
            ("a.xlsx", workbook(), ["## Sales", "| Region | Units | Date |\n| --- |", "| region 2 | 3 | 2026-01-03 |"]),
            ("a.pptx", slides(), ["# Title 1", "- first point 1", "| head |  |"]),
            ("a.docx", word(), ["# A study", "**very**", "2. second", "| c | d |"]),
            ("a.ipynb", notebook(), ["# Study", "```python\nprint('hi')\n```"]),
            ("a.csv", b"x;y\n1;2\n", ["| x | y |\n| --- | --- |\n| 1 | 2 |"]),
            ("a.html", b"<title>T</title><h1>H</h1><script>bad()</script><p>a <a href='/b'>b</a>", ["# H", "a [b](/b)"]),
            ("a.json", json.dumps({"k": [1, "\u00e9"]}).encode(), ['{"k": [1, "\\u00e9"]}']),
            ("a.xml", b"<a><b>c</b></a>", ["<a><b>c</b></a>"]),
            ("a.png", PNG, ["- Format: PNG", "- Size: 1 x 1 pixels"]),
            ("plain", b"just text", ["just text"]),
        ],
    )
    def test_files(self, client: Client, put: Put, name: str, content: bytes, parts: list[str]) -> None:
        text = convert(client, f"file://{put(name, content)}")
        assert all(part in text for part in parts), text
        assert "bad()" not in text

    def test_data(self, client: Client) -> None:
        assert convert(client, "data:text/html,<h2>Head</h2>") == "## Head\n"
        assert "This is page 3" in convert(client, f"data:application/pdf;base64,{base64.b64encode(pdf()).decode()}")

    @pytest.mark.parametrize(
        "uri",
        [
            "http://2130706433:8080/",
            "http://169.254.169.254/latest/meta-data/",
            "http://10.0.0.1/",
            "https://192.168.1.1/",
        ],
    )
    def test_private_addresses_are_not_fetched(self, client: Client, uri: str) -> None:
        answer = client.util.convert_to_markdown(uri=uri)
        assert answer.success is False and "not on the public internet" in answer.message, answer

    @pytest.mark.parametrize("uri", ["http://127.0.0.1:8080/v1/sandbox", "http://localhost:8080/v1/sandbox", "http://[::1]:8080/"])
    def test_the_sandboxs_own_api_is_not_fetched(self, client: Client, uri: str) -> None:
        answer = client.util.convert_to_markdown(uri=uri)
        assert answer.success is False and "own API" in answer.message, answer

    def test_servers_of_the_sandbox_are_fetched(self, sandbox: Callable[..., LiveSandbox]) -> None:
        """Two rows of AIO's own evaluation: a page that a server in the sandbox serves, over REST and as a tool."""
        live = sandbox()
        live.output("mkdir ~/www; echo '<h1>Served here</h1><p>by <a href=x>us</a></p>' > ~/www/page.html")
        live.bash("cd ~/www; exec python3 -m http.server 4567 --bind 127.0.0.1", async_mode=True)
        live.output("until curl -so /dev/null 127.0.0.1:4567; do sleep 0.05; done")
        for host in ("127.0.0.1", "localhost", "0.0.0.0"):
            uri = f"http://{host}:4567/page.html"
            assert "# Served here" in convert(live.client, uri)
            said = live.http.post("/v1/mcp/sandbox/tools/sandbox_convert_to_markdown", json={"uri": uri}).json()["data"]
            assert said["isError"] is False and "# Served here" in said["content"][0]["text"], said

    @pytest.mark.parametrize("uri", ["", "nonsense", "ftp://a.example/", "file:///no/such", "file:///etc/shadow", "data:x"])
    def test_what_is_no_document(self, client: Client, uri: str) -> None:
        answer = client.util.convert_to_markdown(uri=uri)
        assert answer.success is False and answer.message and answer.data is None, answer

    def test_a_page_by_the_proxy(self, sandbox: Callable[..., LiveSandbox]) -> None:
        """A proxy inside the sandbox, which answers for a name that only it knows, and redirects to the guest's port."""
        live = sandbox(env={"HTTP_PROXY": "http://127.0.0.1:3128"})
        live.client.file.write_file(file="/tmp/proxy.py", content=PROXY)
        live.bash("python3 /tmp/proxy.py >/tmp/log 2>&1 &")
        live.output("until grep -q listening /tmp/log; do sleep 0.05; done")
        assert convert(live.client, "http://pages.arenite.invalid/page") == "# By the proxy\n"
        answer = live.client.util.convert_to_markdown(uri="http://pages.arenite.invalid/away")
        assert answer.success is False and "not on the public internet" in answer.message, answer


PROXY = """
import socket, threading
def serve(c):
    f = c.makefile('rwb')
    def head():
        line = f.readline()
        while f.readline().strip(): pass
        return line.decode().split()
    head()
    f.write(b'HTTP/1.1 200 OK\\r\\n\\r\\n'); f.flush()
    path = head()[1]
    if path == '/page':
        body = b'<h1>By the proxy</h1>'
        f.write(b'HTTP/1.1 200 OK\\r\\nContent-Type: text/html\\r\\nContent-Length: %d\\r\\n\\r\\n%s' % (len(body), body))
    else:
        f.write(b'HTTP/1.1 302 Found\\r\\nLocation: http://127.0.0.1:8080/v1/sandbox\\r\\nContent-Length: 0\\r\\n\\r\\n')
    f.flush(); c.close()
s = socket.create_server(('127.0.0.1', 3128))
print('listening', flush=True)
while True:
    threading.Thread(target=serve, args=(s.accept()[0],)).start()
"""


class TestHostile:
    def test_a_bomb_costs_one_call(self, client: Client, put: Put) -> None:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("[Content_Types].xml", "<Types/>")
            archive.writestr("word/document.xml", b" " * (300 << 20))
        path = put("bomb.docx", out.getvalue())
        started = time.monotonic()
        answer = client.util.convert_to_markdown(uri=path)
        assert answer.success is False and "larger than" in answer.message, answer
        assert time.monotonic() - started < 20
        assert convert(client, "data:,alive") == "alive\n"

    def test_a_reader_that_eats_memory_is_ended(self, client: Client, put: Put) -> None:
        book = io.BytesIO(workbook())
        out = io.BytesIO()
        with zipfile.ZipFile(book) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
            for name in source.namelist():
                if not name.endswith("sharedStrings.xml"):
                    target.writestr(name, source.read(name))
            target.writestr("xl/sharedStrings.xml", '<sst uniqueCount="4000000000"><si><t>x</t></si></sst>')
        answer = client.util.convert_to_markdown(uri=put("liar.xlsx", out.getvalue()))
        assert answer.success is False and "reader" in answer.message, answer
        assert convert(client, "data:,alive") == "alive\n"

    @pytest.mark.parametrize("name", ["a.pdf", "a.docx", "a.xlsx", "a.pptx", "a.ipynb"])
    def test_documents_cut_off(self, client: Client, put: Put, name: str) -> None:
        whole = {"pdf": pdf, "docx": word, "xlsx": workbook, "pptx": slides, "ipynb": notebook}[name[2:]]()
        path = put(name, whole[: len(whole) // 2])
        answer = client.util.convert_to_markdown(uri=path)
        # A reader of PDFs may find some of the pages.
        assert answer.success is (name == "a.pdf") or (answer.success is False and answer.message), answer

    def test_many_at_once(self, base_url: str) -> None:
        content = f"data:application/pdf;base64,{base64.b64encode(pdf()).decode()}"
        answers: list[Any] = []

        def call() -> None:
            answers.append(httpx.post(f"{base_url}/v1/util/convert_to_markdown", json={"uri": content}, timeout=60).json())

        threads = [threading.Thread(target=call) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 16 and all("This is page 5" in answer["data"] for answer in answers), answers
