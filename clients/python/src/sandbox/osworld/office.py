"""Texts and slides of office programs, and PDF."""

from __future__ import annotations

import json
import operator
import re
from typing import Any
from xml.etree.ElementTree import Element

from .files import File, Unreadable, WrongEvaluator, archive, content, file, imported, member, name, text, xml
from .rules import mapping, ratio

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"

_Outcome = tuple[float, str]


def _part(path: File, inner: str) -> Element:
    with archive(path) as opened:
        data = member(opened, inner)
    if data is None:
        raise Unreadable(f"{name(path)} has no {inner}")
    return xml(data)


def _body(path: File) -> Element:
    body = _part(path, "word/document.xml").find(f"{_W}body")
    if body is None:
        raise Unreadable(f"{name(path)} has no body")
    return body


def _said(paragraph: Element) -> str:
    """Of the runs of a paragraph, also those of a link."""
    parts: list[str] = []
    for run in _runs(paragraph):
        for node in run:
            if node.tag == f"{_W}t":
                parts.append(node.text or "")
            elif node.tag == f"{_W}tab":
                parts.append("\t")
            elif node.tag in (f"{_W}br", f"{_W}cr") and node.get(f"{_W}type", "textWrapping") == "textWrapping":
                parts.append("\n")
    return "".join(parts)


def _runs(paragraph: Element) -> list[Element]:
    runs: list[Element] = []
    for node in paragraph:
        if node.tag == f"{_W}r":
            runs.append(node)
        elif node.tag == f"{_W}hyperlink":
            runs.extend(node.findall(f"{_W}r"))
    return runs


def _paragraphs(path: File) -> list[str]:
    if path.endswith(".odt"):
        return ["".join(one.itertext()) for one in _part(path, "content.xml").iter(f"{_TEXT}p")]
    return [_said(one) for one in _body(path).findall(f"{_W}p")]


def compare_docx_files(
    result: Any,
    wanted: Any,
    ignore_blanks: bool = True,
    ignore_case: bool = False,
    ignore_order: bool = False,
    content_only: bool = False,
    fuzzy_match: bool = False,
    delete_empty_lines: bool = False,
    **_: Any,
) -> _Outcome:
    a, b = file(result), file(wanted, "expected")
    if a.rpartition(".")[2] != b.rpartition(".")[2] or not a.endswith((".docx", ".odt")):
        return 0.0, "the files are not both .docx or both .odt"
    texts = [_paragraphs(a), _paragraphs(b)]
    if ignore_order:
        texts = [sorted(one) for one in texts]
    if delete_empty_lines:
        texts = [[line for line in one if line.strip()] for one in texts]
    if ignore_case:
        texts = [[line.lower() for line in one] for one in texts]
    if content_only or ignore_blanks:
        wholes = [re.sub(r"\s+", " ", "\n".join(one)).strip() for one in texts]
        if content_only or fuzzy_match:
            return ratio(*wholes), "how alike the texts are"
        return float(wholes[0] == wholes[1]), "the texts are compared without blanks"
    if len(texts[0]) != len(texts[1]):
        return 0.0, f"there are {len(texts[0])} paragraphs, and not {len(texts[1])}"
    if fuzzy_match:
        return sum(map(ratio, *texts)) / max(len(texts[0]), 1) if texts[0] else 1.0, "how alike the paragraphs are"
    odd = next((at for at, (one, other) in enumerate(zip(*texts), 1) if one != other), None)
    return (1.0, "the paragraphs are the same") if odd is None else (0.0, f"paragraph {odd} differs")


def compare_docx_tables(result: Any, wanted: Any) -> float:
    def tables(path: File) -> list[list[list[str]]]:
        def cell(one: Element) -> str:
            return "\n".join(_said(paragraph) for paragraph in one.findall(f"{_W}p")).strip()

        return [
            [[cell(one) for one in row.findall(f"{_W}tc")] for row in table.findall(f"{_W}tr")]
            for table in _body(path).findall(f"{_W}tbl")
        ]

    return float(tables(file(result)) == tables(file(wanted, "expected")))


def compare_init_lines(result: Any, wanted: Any) -> float:
    """As far as the shorter one goes."""
    return float(all(a == b for a, b in zip(_paragraphs(file(result)), _paragraphs(file(wanted, "expected")))))


def compare_docx_lines(result: Any, wanted: Any) -> float:
    """In any order, without empty ones and what surrounds them."""

    def lines(path: File) -> list[str]:
        return sorted(line.strip() for line in _paragraphs(path) if line.strip())

    return float(lines(file(result)) == lines(file(wanted, "expected")))


def compare_line_spacing(result: Any, wanted: Any) -> float:
    def spacings(path: File) -> list[tuple[str | None, str | None]]:
        found = []
        for paragraph in _body(path).findall(f"{_W}p"):
            spacing = paragraph.find(f"{_W}pPr/{_W}spacing")
            found.append((None, None) if spacing is None else (spacing.get(f"{_W}line"), spacing.get(f"{_W}lineRule")))
        return found

    score, _ = compare_docx_files(result, wanted)
    return float(score == 1.0 and spacings(file(result)) == spacings(file(wanted, "expected")))


def compare_font_names(result: Any, rules: Any) -> float:
    wanted = mapping(rules).get("font_name")

    def font(run: Element) -> str | None:
        fonts = run.find(f"{_W}rPr/{_W}rFonts")
        return None if fonts is None else fonts.get(f"{_W}ascii")

    return float(all(font(run) == wanted for one in _body(file(result)).findall(f"{_W}p") for run in _runs(one)))


def contains_page_break(result: Any, rules: Any = None) -> float:
    breaks = _body(file(result)).iter(f"{_W}br")
    found = sum(one.get(f"{_W}type") == "page" for one in breaks)
    wanted = (rules or {}).get("page_break_count")
    return float(found > 0 if wanted is None else found == wanted)


def is_first_line_centered(result: Any) -> float:
    paragraph = _body(file(result)).find(f"{_W}p")
    aligned = None if paragraph is None else paragraph.find(f"{_W}pPr/{_W}jc")
    return float(aligned is not None and aligned.get(f"{_W}val") == "center")


def find_default_font(result: Any, rules: Any) -> float:
    """Of LibreOffice Writer, in its registrymodifications.xcu."""
    oor = "{http://openoffice.org/2001/registry}"
    for item in xml(content(file(result))).iter("item"):
        if item.get(f"{oor}path") == "/org.openoffice.Office.Writer/DefaultFont":
            for prop in item.findall("prop"):
                if prop.get(f"{oor}name") == "Standard":
                    return float(prop.findtext("value") == mapping(rules).get("font_name"))
    return 0.0


def _pdf(path: File) -> Any:
    pypdf = imported("pypdf", "pypdf")
    try:
        return pypdf.PdfReader(path)
    except Exception as error:  # pypdf raises what it comes upon
        raise Unreadable(f"{name(path)} is no PDF: {error}") from None


def _pdf_text(path: File) -> str:
    try:
        return "".join(page.extract_text() for page in _pdf(path).pages).strip()
    except Unreadable:
        raise
    except Exception as error:
        raise Unreadable(f"{name(path)} can't be read: {error}") from None


def compare_pdfs(result: Any, wanted: Any) -> float:
    pairs = list(zip(result, wanted)) if isinstance(wanted, list) and isinstance(result, list) else [(result, wanted)]
    return sum(ratio(_pdf_text(file(a)), _pdf_text(file(b, "expected"))) for a, b in pairs) / len(pairs)


def check_pdf_pages(result: Any, rules: Any) -> float:
    relation = mapping(rules).get("relation")
    if relation not in ("eq", "ne", "lt", "le", "gt", "ge"):
        raise WrongEvaluator(f"there is no relation {relation!r}")
    return float(getattr(operator, relation)(len(_pdf(file(result)).pages), rules.get("ref_value")))


def is_gold_text_included_in_pdf(result: Any, wanted: Any) -> float:
    try:
        texts = mapping(json.loads(text(file(wanted, "expected")))).values()
    except ValueError as error:
        raise WrongEvaluator(f"what is expected is no JSON: {error}") from None
    there = _pdf_text(file(result))
    return float(all(str(one) in there for one in texts))
