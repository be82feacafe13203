"""Files that come from machines nobody vouches for, opened with bounds; and what can be wrong with them."""

from __future__ import annotations

import importlib
import zipfile
from pathlib import Path
from typing import Any, NoReturn
from xml.etree import ElementTree
from xml.parsers import expat

#: Bytes of a text that is read whole, and of an archive's content.
TEXT_LIMIT = 32 << 20
ARCHIVE_LIMIT = 512 << 20

#: Files in an archive, and levels of XML.
MEMBER_LIMIT = 20_000
DEPTH_LIMIT = 500


class File(str):
    """The path of a file that was fetched for this evaluation. A text of the evaluator's never is one."""


class Unreadable(Exception):
    """A file is not what it should be: the task is not done."""


class WrongEvaluator(Exception):
    """The evaluator makes no sense, and no machine could satisfy it."""


class Missing(Exception):
    """What the metric needs is not installed here."""


def imported(module: str, package: str) -> Any:
    """A module of a package that only some metrics need."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise Missing(f"this metric needs {package}; run: pip install {package}") from None


def file(value: Any, what: str = "result") -> File:
    """Raises Unreadable if there is none, and WrongEvaluator for what is no file at all."""
    if value is None:
        raise Unreadable(f"there is no {what}")
    if not isinstance(value, File):
        raise WrongEvaluator(f"{what} has to be a file, which getters such as vm_file give")
    return value


def content(path: File, limit: int = TEXT_LIMIT) -> bytes:
    with open(path, "rb") as stream:
        read = stream.read(limit + 1)
    if len(read) > limit:
        raise Unreadable(f"{name(path)} has more than {limit >> 20} MiB")
    return read


def text(path: File) -> str:
    # As Python's own text files: one sort of line end, and no mark of the byte order.
    decoded = content(path).decode("utf-8-sig", "replace")
    return decoded.replace("\r\n", "\n").replace("\r", "\n")


def name(path: str) -> str:
    return Path(path).name


def archive(path: File) -> zipfile.ZipFile:
    """A ZIP file whose content fits into memory, whatever its directory says of one member or the other."""
    try:
        opened = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise Unreadable(f"{name(path)} is no ZIP archive: {error}") from None
    members = opened.infolist()
    if len(members) > MEMBER_LIMIT or sum(member.file_size for member in members) > ARCHIVE_LIMIT:
        raise Unreadable(f"{name(path)} holds more than {MEMBER_LIMIT} files or {ARCHIVE_LIMIT >> 20} MiB")
    return opened


def member(opened: zipfile.ZipFile, path: str, limit: int = TEXT_LIMIT) -> bytes | None:
    """None: there is none."""
    try:
        with opened.open(path) as stream:
            read = stream.read(limit + 1)
    except KeyError:
        return None
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, OSError, ValueError) as error:
        raise Unreadable(f"{path} can't be unpacked: {error}") from None
    except Exception as error:  # zlib.error and its like
        raise Unreadable(f"{path} can't be unpacked: {error}") from None
    if len(read) > limit:
        raise Unreadable(f"{path} has more than {limit >> 20} MiB")
    return read


def xml(data: bytes) -> ElementTree.Element:
    """Documents that declare a type, and with it entities, are refused before anything is made of them."""
    depth = 0

    def refuse(*_: Any) -> NoReturn:
        raise Unreadable("the XML declares a document type")

    def down(*_: Any) -> None:
        nonlocal depth
        depth += 1
        if depth > DEPTH_LIMIT:
            raise Unreadable(f"the XML is nested deeper than {DEPTH_LIMIT} levels")

    def up(*_: Any) -> None:
        nonlocal depth
        depth -= 1

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = down
    parser.EndElementHandler = up
    try:
        parser.Parse(data, True)
        return ElementTree.fromstring(data)
    except (expat.ExpatError, ElementTree.ParseError, ValueError, LookupError) as error:
        raise Unreadable(f"the XML is broken: {error}") from None


def office(path: File) -> zipfile.ZipFile:
    """An archive of Office's whose XML libraries may be let loose on."""
    opened = archive(path)
    for info in opened.infolist():
        if info.filename.endswith((".xml", ".rels", ".vml")):
            data = member(opened, info.filename, ARCHIVE_LIMIT) or b""
            if any(mark in data for mark in _DOCTYPES):
                raise Unreadable(f"{info.filename} declares a document type")
    return opened


_ENCODINGS = ("utf-8", "utf-16-le", "utf-16-be")
_DOCTYPES = [mark.encode(encoding) for mark in ("<!DOCTYPE", "<!ENTITY") for encoding in _ENCODINGS]
