"""OSWorld's metrics: each on what it is for, on what is not so, and on what machines may make to do harm."""

from __future__ import annotations

import json
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sandbox.osworld.files import File, Missing, WrongEvaluator
from sandbox.osworld.metrics import METRICS, judge
from sandbox.osworld.rules import cells, match_value, ratio, same_url

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
A = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
P = 'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"'
R = 'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
RELS = 'xmlns="http://schemas.openxmlformats.org/package/2006/relationships"'


class Files:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str, content: str | bytes) -> File:
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return File(path)

    def zip(self, name: str, **parts: str) -> File:
        return self.parts(name, parts)

    def parts(self, name: str, parts: dict[str, str]) -> File:
        path = self.folder / name
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
            for inner, content in parts.items():
                opened.writestr(inner, content)
        return File(path)

    def docx(self, name: str, body: str) -> File:
        return self.parts(name, {"word/document.xml": f"<w:document {W}><w:body>{body}</w:body></w:document>"})


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def score(func: str, result: Any, expected: Any = None, has_expected: bool = True, **options: Any) -> float:
    return judge(func, result, expected, has_expected, options)[0]


@pytest.mark.parametrize(
    ("func", "result", "expected", "wanted"),
    [
        ("exact_match", {"a": 1}, {"expected": {"a": 1}}, 1),
        ("exact_match", "1", {"expected": 1}, 0),
        ("match_in_list", "b", {"expected": ["a", "b"]}, 1),
        ("match_in_list", "c", {"expected": ["a", "b"]}, 0),
        ("is_in_list", ["a"], {"expected": "a"}, 1),
        ("is_in_list", None, {"expected": "a"}, 0),
        ("fuzzy_match", "abcd", {"expected": "abcf"}, 0.75),
        ("fuzzy_match", None, {"expected": "abcf"}, 0),
        ("check_include_exclude", "one two", {"include": ["one"], "exclude": ["three"]}, 1),
        ("check_include_exclude", "one three", {"include": ["one"], "exclude": ["three"]}, 0),
        ("check_direct_json_object", ' {"a": 1, "b": 2} ', {"expected": {"a": 1}}, 1),
        (
            "check_direct_json_object",
            {"a": "xyz", "b": [1, 2]},
            {"expect_in_result": True, "expected": {"a": "y", "b": [2, 9]}},
            1,
        ),
        ("check_direct_json_object", {"a": "xyz"}, {"expect_in_result": True, "expected": {"a": "q"}}, 0),
        ("check_direct_json_object", "no json", {"expected": {"a": 1}}, 0),
        ("compare_answer", "x", {"expected": "x"}, 1),
        ("is_extension_installed", "ms.python\n", {"type": "contain", "expected": "ms.python"}, 1),
        ("is_extension_installed", "ms.python\n", {"type": "not_contain", "expected": "ms.python"}, 0),
        ("is_expected_active_tab", {"url": "https://www.A.org/"}, {"type": "url", "url": "https://a.org"}, 1),
        ("is_expected_url", "https://a.org/x", {"type": "url", "url": "https://a.org"}, 0),
        (
            "is_expected_active_tab_approximate",
            {"url": "https://a.org/x?y=1"},
            {"type": "url", "url": "https://a.org/x"},
            1,
        ),
        ("is_expected_url_pattern_match", {"url": "https://a.org/x?y=1"}, {"expected": ["a\\.org", "y=\\d"]}, 1),
        ("is_expected_url_pattern_match", None, {"expected": ["a"]}, 0),
        (
            "is_expected_tabs",
            [{"url": "https://a.org/"}, {"url": "b.org"}],
            {"type": "url", "urls": ["http://b.org", "https://a.org"]},
            1,
        ),
        ("is_expected_tabs", [{"url": "https://a.org/"}], {"type": "url", "urls": ["https://a.org", "b"]}, 0),
        ("is_expected_search_query", {"url": "https://g.org/?q=cats"}, {"expect": {"pattern": "q=cats"}}, 1),
        ("is_expected_installed_extensions", ["a", "b"], {"expected": ["a"]}, 1),
        ("check_font_size", {"default_font_size": 20}, {"type": "range", "min": 16, "max": 99}, 1),
        ("check_enabled_experiments", ["a@1"], {"type": "names", "names": ["a"]}, 1),
        ("check_gnome_favorite_apps", "['a.desktop', 'b.desktop']", {"expected": ["b.desktop", "a.desktop"]}, 1),
        ("check_gnome_favorite_apps", "__import__('os')", {"expected": []}, 0),
        ("check_moved_jpgs", {"children": [{"type": "file", "name": "a.jpg"}]}, {"expected": ["a.jpg"]}, 1),
        ("is_in_vm_clickboard", {"expected": ["a", "b"]}, "a and b", 1),
    ],
)
def test_values(func: str, result: Any, expected: Any, wanted: float) -> None:
    assert score(func, result, expected) == pytest.approx(wanted)


def test_values_without_rules() -> None:
    said = "               Local time: Mon\n           Universal time: Mon\n                 RTC time: Mon\n"
    assert score("is_utc_0", f"{said}                Time zone: Etc/UTC (UTC, +0000)\n", has_expected=False) == 1
    assert score("is_utc_0", f"{said}                Time zone: Europe/Paris (CET, +0100)\n", has_expected=False) == 0
    assert score("check_text_enlarged", "1.25\n", has_expected=False) == 1
    assert score("check_text_enlarged", "1.0", has_expected=False) == 0
    assert score("literal_match", ["A", 1], ["a", "1"], type="list", ignore_case=True) == 1
    assert score("literal_match", "A", "a") == 0


def test_bookmarks() -> None:
    liked = {"type": "folder", "name": "Liked Authors", "children": [{"type": "url", "url": "u2"}]}
    there = {"bookmark_bar": {"children": [liked, {"type": "url", "url": "u1"}]}}
    assert (
        score("is_expected_bookmarks", there, {"type": "bookmark_bar_folders_names", "names": ["Liked Authors"]}) == 1
    )
    assert score("is_expected_bookmarks", there, {"type": "bookmark_bar_websites_urls", "urls": ["u1", "u3"]}) == 0
    assert score("is_expected_bookmarks", there, {"type": "liked_authors_websites_urls", "urls": [["u9", "u2"]]}) == 1
    assert score("is_expected_bookmarks", None, {"type": "bookmark_bar_websites_urls", "urls": []}) == 0


def test_plain_files(files: Files) -> None:
    a, b = files("a.txt", "One  two\r\nthree\n"), files("b.txt", "one two three")
    assert score("compare_text_file", a, b) == 0
    assert score("compare_text_file", a, b, ignore_blanks=True, ignore_case=True) == 1
    assert score("compare_python_pure_text", a, files("c.txt", "Onetwo three")) == 1
    assert score("diff_text_file", files("d", "a\nb\n"), files("e", "a\nc\n")) == 0.5
    assert score("file_contains", a, {"expected": ["One", "three"]}) == 1
    assert score("file_contains", a, {"expected": "four"}) == 0
    assert score("compare_config", a, {"expected": "One  two\nthree\n"}) == 1
    assert score("compare_terminal_and_txt", b, "one two three") == 1
    assert score("check_list", a, {"expect": ["^One"], "unexpect": ["four"]}) == 1
    assert score("check_list", a, {"expect": ["^two"]}) == 0
    assert score("compare_csv", files("f", "A, b \n"), files("g", "a, b\n"), strict=False, ignore_case=True) == 1
    assert score("compare_csv", files("h", "A\n"), files("i", "a\n")) == 0
    table = files("t.csv", "name,age\nann,3\nbob,4\n")
    assert score("check_csv", table, {"expect": [{"name": "ann", "age": "3"}], "unexpect": [{"name": "eve"}]}) == 1
    assert score("check_csv", table, {"expect": [{"name": "ann"}], "unexpect": [{"age": "4"}]}) == 0
    assert score("check_line_number", files("l", "at 12:34:56\nnone\n23:59:60\n"), {"expected": "2"}) == 1
    assert score("file_contains", None, {"expected": "x"}) == 0


def test_json_files(files: Files) -> None:
    data = files("a.json", json.dumps({"a": {"b": [1, "text"]}, "n": 5}))
    rules = {
        "expect": [{"key": ["a", "b", 1], "method": "re.I", "ref": "^TEXT$"}],
        "unexpect": [{"key": ["n"], "method": "gt", "ref": 5}],
    }
    assert score("check_json", data, rules) == 1
    assert score("check_json", data, {"expect": [{"key": ["a", "x"], "method": "eq", "ref": 1}]}) == 0
    assert score("check_json", files("bad", "{"), rules) == 0
    settings = files("s.json", '{\n // a comment, with "quotes"\n "a": "http://x", /* , */ "b": [1, 2,],\n}')
    assert score("check_json_settings", settings, {"expected": {"a": "http://x", "b": [1, 2]}}) == 1
    assert score("check_json_keybindings", files("k", '[{"key": "ctrl+f"},]'), {"expected": {"key": "ctrl+f"}}) == 1
    assert score("is_included_all_json_objects", files("p", '{"a": 1}'), files("w", '{"a": 1, "b": 2}')) == 1
    prefs = files("prefs.js", 'user_pref("a.b", true);\nuser_pref("c", "text");\n')
    rules = {
        "expect": {"a.b": {"method": "eq", "ref": True}, "c": {"method": "re", "ref": "^te"}},
        "unexpect": {"d": {"method": "eq", "ref": 1}},
    }
    assert score("check_thunderbird_prefs", prefs, rules) == 1


def test_queries_only_look(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "a b?.sqlite"
    with sqlite3.connect(path) as base:
        base.executescript("CREATE TABLE t (n); INSERT INTO t VALUES (1); INSERT INTO t VALUES (2);")
    base.close()
    assert score("run_sqlite3", File(path), {"sql": "SELECT count(*) = 2 FROM t"}) == 1
    assert score("run_sqlite3", File(path), {"sql": "SELECT n FROM t WHERE n > 5"}) == 0
    for hostile in ("ATTACH '/tmp/other' AS o", "DELETE FROM t", "PRAGMA user_version", "VACUUM INTO '/tmp/x'"):
        with pytest.raises(WrongEvaluator):
            score("run_sqlite3", File(path), {"sql": hostile})
    assert score("run_sqlite3", files("no", "no database"), {"sql": "SELECT 1"}) == 0


def test_archives(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.osworld.files.ARCHIVE_LIMIT", 2 << 20)
    monkeypatch.setattr("sandbox.osworld.files.TEXT_LIMIT", 1 << 20)
    a = files.zip("a.zip", x="1", y="2")
    assert score("compare_zip_files", a, files.zip("b.zip", y="2", x="1")) == 1
    assert score("compare_zip_files", a, files.zip("c.zip", x="1", y="3")) == 0
    bomb = files.zip("bomb.zip", x="0" * (3 << 20))
    assert judge("compare_zip_files", bomb, a, True)[1].startswith("bomb.zip holds more than")  # type: ignore[union-attr]
    # One whose directory lies about what is in it.
    lying = bytearray(Path(files.zip("lying.zip", x="0" * (3 << 20))).read_bytes())
    at = lying.rindex(b"PK\x01\x02")
    lying[at + 24 : at + 28] = (10).to_bytes(4, "little")
    assert score("compare_zip_files", files("lying.zip", bytes(lying)), files.zip("d.zip", x="0")) == 0


def test_only_files_that_were_fetched_are_opened(files: Files) -> None:
    for func in ("compare_text_file", "compare_docx_files", "compare_images", "compare_zip_files", "run_sqlite3"):
        with pytest.raises(WrongEvaluator, match="has to be a file"):
            score(func, "/etc/passwd", "/etc/passwd")
    with pytest.raises(WrongEvaluator, match="expected has to be a file"):
        score("compare_text_file", files("a", ""), "/etc/passwd")


def test_documents(files: Files) -> None:
    def line(said: str, props: str = "") -> str:
        return f"<w:p>{props}<w:r><w:t>{said}</w:t></w:r></w:p>"

    a = files.docx("a.docx", line("One  two") + line("") + line("three"))
    b = files.docx("b.docx", line("one two") + line("three"))
    assert score("compare_docx_files", a, b) == 0
    assert score("compare_docx_files", a, b, ignore_case=True) == 1
    assert score("compare_docx_files", a, b, ignore_blanks=False, delete_empty_lines=True) == 0
    swapped = files.docx("c.docx", line("three") + line("one two"))
    assert score("compare_docx_files", b, swapped) == 0
    assert score("compare_docx_files", b, swapped, ignore_order=True) == 1
    assert score("compare_docx_lines", b, swapped) == 1
    assert 0.5 < score("compare_docx_files", a, b, content_only=True) < 1
    assert score("compare_init_lines", a, files.docx("d.docx", line("One  two"))) == 1
    assert score("compare_docx_files", a, files("e.txt", "")) == 0
    assert score("compare_docx_files", files("f.docx", "no archive"), a) == 0
    table = "<w:tbl><w:tr><w:tc>{}</w:tc><w:tc>{}</w:tc></w:tr></w:tbl>"
    tables = [files.docx(f"{name}.docx", table.format(line("1"), line(name))) for name in ("2", "3")]
    assert score("compare_docx_tables", tables[0], tables[0]) == 1
    assert score("compare_docx_tables", tables[0], tables[1]) == 0
    broken = files.docx("g.docx", '<w:p><w:r><w:br w:type="page"/></w:r></w:p>')
    assert score("contains_page_break", broken, has_expected=False) == 1
    assert score("contains_page_break", broken, {"page_break_count": 2}) == 0
    centred = files.docx("h.docx", line("x", '<w:pPr><w:jc w:val="center"/></w:pPr>'))
    assert score("is_first_line_centered", centred, has_expected=False) == 1
    spaced = files.docx("i.docx", line("x", '<w:pPr><w:spacing w:line="480"/></w:pPr>'))
    assert score("compare_line_spacing", spaced, centred) == 0
    font = files.docx("j.docx", '<w:p><w:r><w:rPr><w:rFonts w:ascii="Arial"/></w:rPr><w:t>x</w:t></w:r></w:p>')
    assert score("compare_font_names", font, {"font_name": "Arial"}) == 1
    text = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
    odt = files.parts(
        "k.odt", {"content.xml": f'<d xmlns:text="{text}"><text:p>a <text:span>b</text:span></text:p></d>'}
    )
    assert score("compare_docx_files", odt, odt) == 1
    oor = 'xmlns:oor="http://openoffice.org/2001/registry"'
    prop = '<prop oor:name="Standard"><value>Times</value></prop>'
    item = f'<item oor:path="/org.openoffice.Office.Writer/DefaultFont">{prop}</item>'
    assert (
        score("find_default_font", files("r.xcu", f"<oor:items {oor}>{item}</oor:items>"), {"font_name": "Times"}) == 1
    )


def test_xml_that_declares_entities_is_not_read(files: Files) -> None:
    bomb = '<!DOCTYPE d [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]>'
    bad = files.parts("a.docx", {"word/document.xml": f"{bomb}<w:document {W}><w:body><w:p/></w:body></w:document>"})
    assert judge("compare_docx_files", bad, bad, True) == (0, "the XML declares a document type")
    deep = files.docx("b.docx", "<w:p>" * 1000 + "</w:p>" * 1000)
    assert "deeper" in str(judge("compare_docx_files", deep, deep, True)[1])
    with_entity = '<!DOCTYPE d [<!ENTITY x SYSTEM "file:///etc/passwd">]><d>&x;</d>'
    assert score("check_accessibility_tree", with_entity, [{"xpath": "//d"}]) == 0


def presentation(
    files: Files, name: str, text: str = "Title", bold: str = "0", left: int = 1000, slides: int = 1
) -> File:
    shape = (
        f'<p:sp><p:spPr><a:xfrm><a:off x="{left}" y="5"/><a:ext cx="7" cy="9"/></a:xfrm></p:spPr>'
        '<p:txBody><a:p><a:pPr algn="ctr"/>'
        f'<a:r><a:rPr b="{bold}" sz="1800"/><a:t>{text}</a:t></a:r></a:p></p:txBody></p:sp>'
    )
    ids = "".join(f'<p:sldId id="{at}" r:id="r{at}"/>' for at in range(slides))
    rels = "".join(f'<Relationship Id="r{at}" Type="x/slide" Target="slides/slide{at}.xml"/>' for at in range(slides))
    parts = {
        "ppt/presentation.xml": f"<p:presentation {P} {R}><p:sldIdLst>{ids}</p:sldIdLst></p:presentation>",
        "ppt/_rels/presentation.xml.rels": f"<Relationships {RELS}>{rels}</Relationships>",
    }
    for at in range(slides):
        parts[f"ppt/slides/slide{at}.xml"] = f"<p:sld {P} {A}><p:cSld><p:spTree>{shape}</p:spTree></p:cSld></p:sld>"
    return files.parts(name, parts)


def test_presentations(files: Files) -> None:
    a = presentation(files, "a.pptx")
    assert score("compare_pptx_files", a, presentation(files, "b.pptx", left=1002)) == 1
    for name, changed, option in [
        ("c", {"text": "Other"}, "examine_text"),
        ("d", {"bold": "1"}, "examine_font_bold"),
        ("e", {"left": 2000}, "examine_shape"),
        ("f", {"slides": 2}, "examine_number_of_slides"),
    ]:
        other = presentation(files, f"{name}.pptx", **changed)  # type: ignore[arg-type]
        assert score("compare_pptx_files", a, other) == 0, option
        assert score("compare_pptx_files", a, other, **{option: False}) == 1, option
    assert score("compare_pptx_files", files("g.pptx", "x"), a) == 0


def test_accessibility_trees() -> None:
    pytest.importorskip("lxml")
    pytest.importorskip("cssselect")
    state = "https://accessibility.ubuntu.example.org/ns/state"
    entry = '<entry name="Box" st:focused="true">hello</entry>'
    tree = f'<desktop xmlns:st="{state}"><application name="Calc">{entry}</application></desktop>'
    assert score("check_accessibility_tree", tree, [{"xpath": '//entry[@st:focused="true"]', "text": "hello"}]) == 1
    assert score(
        "check_accessibility_tree", tree, [{"xpath": "//entry", "text": "help", "exact": False}]
    ) == pytest.approx(ratio("help", "hello"))
    assert score("check_accessibility_tree", tree, [{"selectors": ["application[name=Calc] entry"]}]) == 1
    assert score("check_accessibility_tree", tree, [{"xpath": "//nothing"}]) == 0
    for wrong in ({"xpath": "//["}, {}):
        with pytest.raises(WrongEvaluator):
            score("check_accessibility_tree", tree, [wrong])


def test_tables(files: Files, tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")

    def book(name: str, change: Any = None) -> File:
        made = openpyxl.Workbook()
        sheet = made.active
        sheet.title = "S"
        for row in (["name", "n"], ["ann", 1], ["bob", 2.5]):
            sheet.append(row)
        sheet.freeze_panes = "A2"
        if change:
            change(sheet)
        made.save(tmp_path / name)
        return File(tmp_path / name)

    def change(sheet: Any) -> None:
        sheet["B3"] = 2.51
        sheet["A2"] = "Ann "
        sheet["A2"].font = openpyxl.styles.Font(bold=True)
        sheet.freeze_panes = None

    a, b, other = book("a.xlsx"), book("b.xlsx"), book("c.xlsx", change)
    both = {"sheet_idx0": 0, "sheet_idx1": "EI0"}

    def met(result: File, rule: dict[str, Any], expected: File | None = b) -> float:
        return score("compare_table", result, expected, has_expected=expected is not None, rules=[rule])

    for rule in (
        {"type": "sheet_data", **both},
        {"type": "freeze", **both},
        {"type": "style", "props": ["font_bold"], **both},
    ):
        assert (met(a, rule), met(other, rule)) == (1, 0), rule
    assert met(other, {"type": "sheet_data", "precision": 0, **both}) == 0
    assert met(a, {"type": "sheet_name"}) == 1
    fuzzy = {"range": ["A1:A3"], "type": "exact_match", "ignore_case": True, "trim_trailings": " "}
    assert met(other, {"type": "sheet_fuzzy", "rules": [fuzzy], **both}) == 1
    cell = {
        "type": "check_cell",
        "sheet_idx": "RNS",
        "coordinate": "B3",
        "props": {"value": {"method": "approx:0.1", "ref": 2.5}},
    }
    assert met(other, cell, None) == 1
    bold = {
        "type": "check_cell",
        "sheet_idx": 0,
        "coordinate": "A2",
        "props": {"font_bold": {"method": "eq", "ref": True}},
    }
    assert (met(other, bold, None), met(a, bold, None)) == (1, 0)
    assert met(a, {"type": "zoom", "sheet_idx": 0, "method": "eq", "ref": 100}, None) == 1
    assert met(a, {"type": "sheet_data", "sheet_idx0": "RNmissing", "sheet_idx1": "EI0"}) == 0
    files("a-S.csv", "name,n\nANN,1\n\n")
    files("b-S.csv", "name,n\nann,1\n")
    assert met(a, {"type": "sheet_print", "ignore_case": True, **both}) == 1
    for wrong in ({"type": "none"}, {"type": "sheet_data"}, {"type": "zoom", "sheet_idx": "X", "method": "eq"}):
        with pytest.raises(WrongEvaluator):
            met(a, wrong)
    assert met(files("d.xlsx", "no book"), {"type": "sheet_name"}) == 0


def test_pictures(files: Files, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    np = pytest.importorskip("numpy")

    def picture(name: str, pixels: Any) -> File:
        image.fromarray(pixels.astype("uint8")).save(tmp_path / name)
        return File(tmp_path / name)

    noise = np.random.default_rng(1).integers(40, 200, (64, 48, 3))
    a, dark = picture("a.png", noise), picture("b.png", noise * 0.6)
    other, mirrored = picture("c.png", 255 - noise), picture("d.png", noise[:, ::-1])
    assert score("compare_images", a, a) == pytest.approx(1)
    assert score("compare_images", a, other) < 0.5
    assert score("compare_images", a, a, reference_base_result=0.5) == pytest.approx(1)
    assert (score("check_structure_sim", a, a), score("check_structure_sim", a, other)) == (1, 0)
    assert (score("check_image_mirror", mirrored, a), score("check_image_mirror", a, a)) == (1, 0)
    assert score("check_brightness_decrease_and_structure_sim", dark, a) == 1
    assert score("check_brightness_decrease_and_structure_sim", a, dark) == 0
    assert score("check_image_size", a, {"width": 48, "height": 64}) == 1
    assert score("compare_image_list", [a, dark], [a, a]) == 0
    assert score("check_image_size", files("e.png", "x"), {"width": 1}) == 0
    image.new("1", (9_000, 8_000)).save(tmp_path / "bomb.png")
    assert score("check_image_size", File(tmp_path / "bomb.png"), {"width": 9_000}) == 0


def test_pdfs(files: Files, tmp_path: Path) -> None:
    pypdf = pytest.importorskip("pypdf")
    writer = pypdf.PdfWriter()
    for _ in range(2):
        writer.add_blank_page(100, 100)
    writer.write(tmp_path / "a.pdf")
    assert score("check_pdf_pages", File(tmp_path / "a.pdf"), {"relation": "eq", "ref_value": 2}) == 1
    assert score("check_pdf_pages", files("b.pdf", "x"), {"relation": "eq", "ref_value": 2}) == 0
    assert score("compare_pdfs", File(tmp_path / "a.pdf"), File(tmp_path / "a.pdf")) == 1


def test_what_is_not_installed_is_named(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    with pytest.raises(Missing, match="pip install openpyxl"):
        score("compare_table", files("a.xlsx", ""), has_expected=False, rules=[{"type": "sheet_name"}])


@pytest.mark.parametrize(
    ("func", "expected", "options", "said"),
    [
        ("none", None, {}, "there is no metric"),
        ("exact_match", {}, {}, "with expected"),
        ("exact_match", {"expected": 1}, {"x": 1}, "'x'"),
        ("check_python_file_by_test_suite", 1, {}, "does not do that"),
        ("is_extension_installed", {"expected": "a"}, {}, "contain"),
        ("is_expected_url_pattern_match", {"expected": ["("]}, {}, "regular expression"),
        ("is_expected_tabs", {"type": "url", "urls": 3}, {}, "TypeError"),
    ],
)
def test_evaluators_that_make_no_sense(func: str, expected: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(WrongEvaluator, match=said):
        score(func, "x" if func != "is_expected_tabs" else [{"url": "x"}], expected, **options)


def test_rules() -> None:
    assert match_value(5, {"method": "range.te", "ref": [4, 5]}) and not match_value(
        4, {"method": "range.te", "ref": [4, 5]}
    )
    assert match_value("'a,b'", {"method": "str_list_eq", "ref": ["a", "b"]}) and match_value(
        "b,a", {"method": "str_set_eq", "ref": ["a", "b"]}
    )
    assert match_value("A1:B4", {"method": "spreadsheet_range", "ref": ["A2:B3", "A1:C9"]})
    assert not match_value("x", {"method": "approx:1", "ref": 2}) and not match_value(
        None, {"method": "re", "ref": "a"}
    )
    for wrong in ({"method": "__class__"}, {"method": "re.compile", "ref": "a"}, {"method": "re", "ref": "("}, {}):
        with pytest.raises(WrongEvaluator):
            match_value("a", wrong)
    assert cells("A1:B2 $C$3") == {(1, 1), (1, 2), (2, 1), (2, 2), (3, 3)}
    with pytest.raises(WrongEvaluator):
        cells("A1:XFD1048576")
    assert same_url("HTTP://www.a.org/", "http://a.org") and not same_url("http://a.org", None)


def test_likeness_is_that_of_rapidfuzz(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rapidfuzz", None)
    # Its own numbers for these.
    assert ratio("kitten", "sitting") == pytest.approx(0.6153846)
    assert ratio("", "") == 1 and ratio("", "a") == 0
    assert ratio("a" * 5000, "b" + "a" * 5000) == pytest.approx(10000 / 10001)


def test_there_are_the_common_ones() -> None:
    assert len(METRICS) >= 60
