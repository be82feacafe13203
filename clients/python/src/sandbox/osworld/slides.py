"""Presentations: whether one looks as another does, in what is asked about."""

from __future__ import annotations

import posixpath
import zipfile
from collections.abc import Callable
from typing import Any
from xml.etree.ElementTree import Element

from .files import File, Unreadable, archive, file, member, name, xml

_A = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_P = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_R = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}"

#: How far places may be apart, as a part of the larger.
_TOLERANCE = 0.005


class Deck:
    """The slides of a presentation, in their order, with their notes."""

    def __init__(self, path: File) -> None:
        with archive(path) as opened:
            self.slides: list[Element] = []
            self.notes: list[str] = []
            main = "ppt/presentation.xml"
            listed = _read(opened, main, path).find(f"{_P}sldIdLst")
            targets = _targets(opened, main)
            for one in [] if listed is None else listed:
                place = targets.get(one.get(f"{_R}id", ""), ("", ""))[1]
                self.slides.append(_read(opened, place, path))
                notes = [target for kind, target in _targets(opened, place).values() if kind == "notesSlide"]
                self.notes.append(_texts(_read(opened, notes[0], path)) if notes else "")


def _read(opened: zipfile.ZipFile, place: str, path: File) -> Element:
    data = member(opened, place)
    if data is None:
        raise Unreadable(f"{name(path)} has no {place or 'slides'}")
    return xml(data)


def _targets(opened: zipfile.ZipFile, place: str) -> dict[str, tuple[str, str]]:
    """What a part refers to: kind and place, by id."""
    folder, _, base = place.rpartition("/")
    data = member(opened, f"{folder}/_rels/{base}.rels")
    found: dict[str, tuple[str, str]] = {}
    for one in [] if data is None else xml(data):
        target = posixpath.normpath(posixpath.join("/" + folder, one.get("Target", "")))
        found[one.get("Id", "")] = (one.get("Type", "").rpartition("/")[2], target.lstrip("/"))
    return found


def _texts(root: Element) -> str:
    return "\n".join("".join(run.text or "" for run in one.iter(f"{_A}t")) for one in root.iter(f"{_A}p")).strip()


def _shapes(slide: Element) -> list[Element]:
    """All of a slide, those of groups too, from the lowest to the highest."""
    kinds = {f"{_P}sp", f"{_P}pic", f"{_P}graphicFrame", f"{_P}cxnSp"}
    return [one for one in slide.iter() if one.tag in kinds]


def _box(shape: Element) -> tuple[int, int, int, int] | None:
    """Left, top, width and height; none: those of the layout."""
    for path in (f"{_P}spPr/{_A}xfrm", f"{_P}xfrm"):
        frame = shape.find(path)
        at, size = (None, None) if frame is None else (frame.find(f"{_A}off"), frame.find(f"{_A}ext"))
        if at is not None and size is not None:
            try:
                return int(at.get("x", 0)), int(at.get("y", 0)), int(size.get("cx", 0)), int(size.get("cy", 0))
            except ValueError:
                raise Unreadable("a shape is at no place") from None
    return None


def _is_near(a: int, b: int) -> bool:
    return abs(a - b) <= max(abs(a), abs(b)) * _TOLERANCE


def _same_box(a: Element, b: Element) -> bool:
    one, other = _box(a), _box(b)
    return one == other if one is None or other is None else all(map(_is_near, one, other))


def _paragraphs(shape: Element) -> list[Element]:
    return list(shape.iter(f"{_A}p"))


def _of_paragraph(attribute: str, default: str | None) -> Callable[[Element], Any]:
    def of(paragraph: Element) -> Any:
        props = paragraph.find(f"{_A}pPr")
        return default if props is None else props.get(attribute, default)

    return of


def _bullet(paragraph: Element) -> Any:
    props = paragraph.find(f"{_A}pPr")
    marks = (f"{_A}buNone", f"{_A}buChar", f"{_A}buAutoNum")
    return [(one.tag, one.get("char"), one.get("type")) for one in ([] if props is None else props) if one.tag in marks]


def _run(of: Callable[[Element], Any]) -> Callable[[Element], Any]:
    """Of each run with text; what is the same in neighbours counts once, since programs part runs as they like."""

    def all_runs(paragraph: Element) -> Any:
        found: list[Any] = []
        for run in paragraph.findall(f"{_A}r"):
            if not (run.findtext(f"{_A}t") or "").strip():
                continue
            props = run.find(f"{_A}rPr")
            value = None if props is None else of(props)
            if not found or found[-1] != value:
                found.append(value)
        return found

    return all_runs


def _flag(attribute: str) -> Callable[[Element], Any]:
    return _run(lambda props: props.get(attribute, "0") in ("1", "true"))


def _line(attribute: str, none: str) -> Callable[[Element], Any]:
    return _run(lambda props: None if props.get(attribute, none) == none else props.get(attribute))


def _font(props: Element) -> Any:
    font = props.find(f"{_A}latin")
    return None if font is None else font.get("typeface")


def _color(props: Element) -> Any:
    color = props.find(f"{_A}solidFill/{_A}srgbClr")
    return None if color is None else color.get("val", "").upper()


#: What is asked of each paragraph.
_PARAGRAPH: dict[str, Callable[[Element], Any]] = {
    "text": lambda paragraph: "".join(one.text or "" for one in paragraph.iter(f"{_A}t")),
    "indent": _of_paragraph("lvl", "0"),
    "alignment": _of_paragraph("algn", "l"),
    "bullets": _bullet,
    "font_name": _run(_font),
    "font_size": _run(lambda props: props.get("sz")),
    "font_bold": _flag("b"),
    "font_italic": _flag("i"),
    "font_underline": _line("u", "none"),
    "strike_through": _line("strike", "noStrike"),
    "color_rgb": _run(_color),
}


def _background(slide: Element) -> Any:
    color = slide.find(f"{_P}cSld/{_P}bg/{_P}bgPr/{_A}solidFill/{_A}srgbClr")
    return None if color is None else color.get("val", "").upper()


def compare_pptx_files(result: Any, wanted: Any, **options: Any) -> tuple[float, str]:
    a, b = Deck(file(result)), Deck(file(wanted, "expected"))

    def asked(what: str) -> bool:
        return bool(options.get(f"examine_{what}", True))

    if asked("number_of_slides") and len(a.slides) != len(b.slides):
        return 0.0, f"there are {len(a.slides)} slides, and not {len(b.slides)}"
    for number, (one, other, note, other_note) in enumerate(zip(a.slides, b.slides, a.notes, b.notes), 1):
        odd = _difference(one, other, asked)
        if odd is None and asked("note") and note != other_note:
            odd = "note"
        if odd is not None:
            return 0.0, f"slide {number} differs in its {odd}"
    return 1.0, "the slides are the same in what was asked about"


def _difference(a: Element, b: Element, asked: Callable[[str], bool]) -> str | None:
    if asked("background_color") and _background(a) != _background(b):
        return "background_color"
    shapes, others = _shapes(a), _shapes(b)
    if len(shapes) != len(others):
        return "number of shapes"
    for shape, other in zip(shapes, others):
        if asked("shape") and not _same_box(shape, other):
            return "shape"
        lines, other_lines = _paragraphs(shape), _paragraphs(other)
        if asked("text") and len(lines) != len(other_lines):
            return "text"
        for what, of in _PARAGRAPH.items():
            if asked(what) and [of(line) for line in lines] != [of(line) for line in other_lines]:
                return what
    return None
