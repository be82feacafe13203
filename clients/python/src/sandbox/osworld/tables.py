"""Spreadsheets: what a table holds and how it looks, as rules ask for it."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .files import File, Unreadable, WrongEvaluator, file, imported, name, office, text
from .rules import cells, mapping, match_value, ratio

#: Rows and columns of a sheet that are looked at.
ROW_LIMIT, COLUMN_LIMIT = 100_000, 2_000

_Outcome = tuple[float, str]


class Book:
    """A workbook: its formulas and looks, and the values that were last computed."""

    def __init__(self, path: File) -> None:
        self.path = path
        openpyxl = imported("openpyxl", "openpyxl")
        office(path).close()
        try:
            self.looks = openpyxl.load_workbook(path)
            self.values = openpyxl.load_workbook(path, data_only=True)
        except Exception as error:  # openpyxl raises what it comes upon
            raise Unreadable(f"{name(path)} is no workbook: {error}") from None
        self.names: list[str] = self.looks.sheetnames

    def sheet(self, title: str, values: bool = False) -> Any:
        if title not in self.names:
            raise Unreadable(f"{name(self.path)} has no sheet {title!r}")
        sheet = (self.values if values else self.looks)[title]
        if getattr(sheet, "max_row", 0) > ROW_LIMIT or getattr(sheet, "max_column", 0) > COLUMN_LIMIT:
            raise Unreadable(f"sheet {title!r} has more than {ROW_LIMIT} rows or {COLUMN_LIMIT} columns")
        return sheet

    def cell(self, title: str, coordinate: str) -> Any:
        value = self.sheet(title, values=True)[coordinate].value
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value

    def table(self, title: str, digits: int) -> list[list[Any]]:
        """Values, without the empty rows and columns after the last that is not."""
        sheet = self.sheet(title, values=True)
        rows = [[_rounded(value, digits) for value in row] for row in sheet.iter_rows(values_only=True)]
        for row in rows:
            while row and row[-1] is None:
                row.pop()
        while rows and not rows[-1]:
            rows.pop()
        return rows


class Books:
    """The result's and the expected one, and how rules name their sheets."""

    def __init__(self, result: Book, expected: Book | None) -> None:
        self.result, self._expected = result, expected

    @property
    def expected(self) -> Book:
        if self._expected is None:
            raise WrongEvaluator("the rule is about an expected table, and there is none")
        return self._expected

    def sheet(self, index: Any) -> tuple[Book, str]:
        """`0`, `RI0` and `EI0` are places, `RNname` and `ENname` names; R is the result, E the expected."""
        if isinstance(index, int) and not isinstance(index, bool):
            index = f"RI{index}"
        if not isinstance(index, str) or index[:2] not in ("RI", "RN", "EI", "EN"):
            raise WrongEvaluator(f"{index!r} names no sheet")
        book = self.result if index[0] == "R" else self.expected
        if index[1] == "N":
            return book, index[2:]
        try:
            return book, book.names[int(index[2:])]
        except ValueError:
            raise WrongEvaluator(f"{index!r} names no sheet") from None
        except IndexError:
            raise Unreadable(f"{name(book.path)} has no sheet {index[2:]}") from None


def compare_table(result: Any, expected: Any = None, rules: Any = None, **_: Any) -> _Outcome:
    if not isinstance(rules, list) or not rules:
        raise WrongEvaluator("options need rules, a list")
    books = Books(Book(file(result)), None if expected is None else Book(file(expected, "expected")))
    for rule in rules:
        check = _CHECKS.get(str(mapping(rule).get("type")))
        if check is None:
            known = ", ".join(sorted(_CHECKS))
            raise WrongEvaluator(f"there is no rule {rule.get('type')!r} of tables; there are {known}")
        try:
            is_met = check(books, rule)
        except KeyError as error:
            raise WrongEvaluator(f"the rule {rule['type']} needs {error}") from None
        if not is_met:
            return 0.0, f"{rule['type']} is not as it should be"
    return 1.0, "all rules are met"


def _sheet_name(books: Books, _: dict[str, Any]) -> bool:
    return books.result.names == books.expected.names


def _sheet_data(books: Books, rule: dict[str, Any]) -> bool:
    digits = int(rule.get("precision", 4))
    return _both(books, rule, lambda book, title: book.table(title, digits))


def _sheet_print(books: Books, rule: dict[str, Any]) -> bool:
    """Of sheets that were written as CSV beside the workbook."""

    def lines(book: Book, title: str) -> list[str]:
        path = Path(book.path)
        printed = path.with_name(f"{path.stem}-{title}.csv")
        if printed.parent != path.parent or not printed.is_file():
            raise Unreadable(f"there is no {printed.name}")
        source = [line.strip() for line in text(File(printed)).splitlines()]
        while source and not source[-1]:
            source.pop()
        return [line.lower() for line in source] if rule.get("ignore_case", False) else source

    return _both(books, rule, lines)


def _sheet_fuzzy(books: Books, rule: dict[str, Any]) -> bool:
    (book, title), (other, other_title) = books.sheet(rule["sheet_idx0"]), books.sheet(rule["sheet_idx1"])
    letter = imported("openpyxl.utils", "openpyxl").get_column_letter
    for part in rule["rules"]:
        for row, column in sorted(cells(part["range"])):
            coordinate = f"{letter(column)}{row}"
            a = _plain(str(book.cell(title, coordinate)), part)
            b = _plain(str(other.cell(other_title, coordinate)), part)
            kind = part["type"]
            if kind not in _LIKE:
                raise WrongEvaluator(f"there is no comparison {kind!r}; there are {', '.join(sorted(_LIKE))}")
            if not _LIKE[kind](a, b, part):
                return False
    return True


_LIKE: dict[str, Callable[[str, str, dict[str, Any]], bool]] = {
    "includes": lambda a, b, _: b in a,
    "included_by": lambda a, b, _: a in b,
    "fuzzy_match": lambda a, b, part: ratio(a, b) * 100 >= float(part.get("threshold", 85)),
    "exact_match": lambda a, b, _: a == b,
}


def _plain(value: str, part: dict[str, Any]) -> str:
    for old, new in part.get("normalization", []):
        value = value.replace(old, new)
    value = value.lstrip(part["trim_leadings"]) if "trim_leadings" in part else value
    value = value.rstrip(part["trim_trailings"]) if "trim_trailings" in part else value
    ignored = set(part.get("ignore_chars", ""))
    value = "".join(char for char in value if char not in ignored)
    return value.lower() if part.get("ignore_case", False) else value


def _check_cell(books: Books, rule: dict[str, Any]) -> bool:
    book, title = books.sheet(rule["sheet_idx"])
    cell = book.sheet(title)[rule["coordinate"]]
    return all(
        match_value(book.cell(title, rule["coordinate"]) if what == "value" else _style(cell, what), one)
        for what, one in rule["props"].items()
    )


def _freeze(books: Books, rule: dict[str, Any]) -> bool:
    return _both(books, rule, lambda book, title: book.sheet(title).freeze_panes)


def _zoom(books: Books, rule: dict[str, Any]) -> bool:
    book, title = books.sheet(rule["sheet_idx"])
    return match_value(book.sheet(title).sheet_view.zoomScale or 100, rule)


def _data_validation(books: Books, rule: dict[str, Any]) -> bool:
    book, title = books.sheet(rule["sheet_idx"])
    there, wanted = book.sheet(title).data_validations.dataValidation, rule["dv_props"]

    def of(one: Any, what: str) -> Any:
        value = getattr(one, what, None)
        return str(value) if what == "ranges" else value

    return len(there) >= len(wanted) and all(
        any(all(match_value(of(one, what), part) for what, part in props.items()) for props in wanted) for one in there
    )


def _props_of(kind: str) -> Callable[[Books, dict[str, Any]], bool]:
    def check(books: Books, rule: dict[str, Any]) -> bool:
        def of(book: Book, title: str) -> dict[Any, list[Any]]:
            found = getattr(book.sheet(title), kind)
            props = sorted(rule.get("props", []))
            return {key: [getattr(one, prop, None) for prop in props] for key, one in found.items()}

        return _both(books, rule, of)

    return check


def _style_of_all(books: Books, rule: dict[str, Any]) -> bool:
    def of(book: Book, title: str) -> dict[str, list[Any]]:
        sheet = book.sheet(title)
        if len(sheet.conditional_formatting):
            raise WrongEvaluator("styles that hang on conditions are not judged here")
        props = rule.get("props", [])
        return {cell.coordinate: [_style(cell, prop) for prop in props] for row in sheet.iter_rows() for cell in row}

    return _both(books, rule, of)


def _chart(books: Books, rule: dict[str, Any]) -> bool:
    props = rule.get("chart_props", [])
    if unknown := [prop for prop in props if prop not in _CHART]:
        raise WrongEvaluator(f"there is no property {unknown[0]!r} of charts; there are {', '.join(sorted(_CHART))}")

    def of(book: Book, title: str) -> dict[str, list[Any]]:
        charts = {}
        for chart in book.sheet(title)._charts:
            series = ";".join(f"{_source(one.val)},{_source(getattr(one, 'cat', None))}" for one in chart.series)
            charts[series] = [_CHART[prop](chart) for prop in props]
        return charts

    return _both(books, rule, of)


def _source(data: Any) -> str:
    found = [getattr(getattr(data, kind, None), "f", None) for kind in ("numRef", "strRef")]
    return next((one for one in found if one), "")


def _title(of: Any) -> Any:
    try:
        return of.title.tx.rich.p[0].r[0].t
    except (AttributeError, IndexError, TypeError):
        return None


_CHART: dict[str, Callable[[Any], Any]] = {
    "title": _title,
    "type": lambda chart: chart.tagname,
    "legend": lambda chart: chart.legend.position if chart.legend is not None else None,
    "width": lambda chart: chart.width,
    "height": lambda chart: chart.height,
    "direction": lambda chart: getattr(chart, "barDir", None),
    "xtitle": lambda chart: _title(getattr(chart, "x_axis", None)),
    "ytitle": lambda chart: _title(getattr(chart, "y_axis", None)),
}


def _filter(books: Books, rule: dict[str, Any]) -> bool:
    def of(book: Book, title: str) -> Any:
        there = book.sheet(title).auto_filter
        columns = []
        for one in there.filterColumn:
            own = one.customFilters.customFilter if one.customFilters else []
            chosen = sorted(one.filters.filter) if one.filters else []
            columns.append((one.colId, chosen, sorted((each.operator, each.val) for each in own)))
        return there.ref, sorted(columns, key=lambda column: column[0])

    return _both(books, rule, of)


_CHECKS: dict[str, Callable[[Books, dict[str, Any]], bool]] = {
    "sheet_name": _sheet_name, "sheet_data": _sheet_data, "sheet_print": _sheet_print, "sheet_fuzzy": _sheet_fuzzy,
    "check_cell": _check_cell, "freeze": _freeze, "zoom": _zoom, "data_validation": _data_validation,
    "row_props": _props_of("row_dimensions"), "col_props": _props_of("column_dimensions"), "style": _style_of_all,
    "chart": _chart, "filter": _filter,
}


def _both(books: Books, rule: dict[str, Any], of: Callable[[Book, str], Any]) -> bool:
    return bool(of(*books.sheet(rule["sheet_idx0"])) == of(*books.sheet(rule["sheet_idx1"])))


_STYLES: dict[str, Callable[[Any], Any]] = {
    "number_format": lambda cell: cell.number_format if cell.data_type == "n" else None,
    "font_name": lambda cell: cell.font.name,
    "font_family": lambda cell: cell.font.family,
    "font_color": lambda cell: cell.font.color.rgb if cell.font.color is not None else None,
    "font_bold": lambda cell: cell.font.bold,
    "font_italic": lambda cell: cell.font.italic,
    "font_underline": lambda cell: cell.font.underline,
    "font_size": lambda cell: cell.font.size,
    "hyperlink": lambda cell: (cell.hyperlink.target or cell.hyperlink.location) if cell.hyperlink else "",
}


def _style(cell: Any, what: str) -> Any:
    if what == "merge":
        return type(cell).__name__ == "MergedCell"
    if what == "fill_type":
        return cell.fill.tagname if cell.fill is not None else None
    if what in ("bgcolor", "fgcolor"):
        return getattr(getattr(cell.fill, "fgColor", None), "rgb", None)
    if what not in _STYLES:
        raise WrongEvaluator(f"there is no property {what!r} of cells; there are {', '.join(sorted(_STYLES))}")
    # An empty cell has no text whose looks could be compared.
    return None if cell.value is None else _STYLES[what](cell)


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)):
        return round(float(value), digits)
    return value.isoformat() if isinstance(value, (datetime.date, datetime.time)) else value
