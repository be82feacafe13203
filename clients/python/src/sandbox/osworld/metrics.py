"""The metrics that there are, and how one of them is called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from . import browser, office, pictures, slides, tables, texts
from .files import Unreadable, WrongEvaluator

_NAMES: dict[Any, str] = {
    texts: """
        exact_match match_in_list is_in_list fuzzy_match literal_match check_include_exclude
        check_direct_json_object check_json check_csv check_list file_contains diff_text_file
        compare_text_file compare_csv compare_config compare_answer compare_python_pure_text
        compare_terminal_and_txt compare_zip_files compare_result_files is_included_all_json_objects
        check_line_number check_json_settings check_json_keybindings is_extension_installed
        check_python_file_by_test_suite run_sqlite3 check_accessibility_tree check_thunderbird_prefs is_utc_0
        check_text_enlarged check_gnome_favorite_apps check_moved_jpgs is_in_vm_clickboard
    """,
    browser: """
        is_expected_active_tab is_expected_active_tab_approximate is_expected_url_pattern_match
        is_expected_tabs is_expected_search_query is_expected_installed_extensions is_expected_bookmarks
        check_font_size check_enabled_experiments
    """,
    office: """
        compare_docx_files compare_docx_tables compare_docx_lines compare_init_lines compare_line_spacing
        compare_font_names contains_page_break is_first_line_centered find_default_font compare_pdfs
        check_pdf_pages is_gold_text_included_in_pdf
    """,
    slides: "compare_pptx_files",
    tables: "compare_table",
    pictures: """
        compare_images compare_image_list check_image_size check_structure_sim check_image_mirror
        check_brightness_decrease_and_structure_sim
    """,
}

METRICS: dict[str, Callable[..., Any]] = {
    each: getattr(module, each) for module, names in _NAMES.items() for each in names.split()
}
# Other names of the same.
METRICS["is_expected_url"] = browser.is_expected_active_tab
METRICS["check_file_exists_and_structure_sim"] = pictures.check_structure_sim


def judge(
    func: str, result: Any, expected: Any = None, has_expected: bool = False, options: Any = None
) -> tuple[float, str | None]:
    """A score from 0 to 1, and why. Files are of `files.File`; no other text is ever opened.

    Raises WrongEvaluator for what no machine could satisfy, and Missing for what is not installed.
    """
    metric = METRICS.get(func)
    if metric is None:
        raise WrongEvaluator(f"there is no metric {func!r}; there are {', '.join(sorted(METRICS))}")
    given = (result, expected) if has_expected else (result,)
    options = options or {}
    try:
        inspect.signature(metric).bind(*given, **options)
    except TypeError as error:
        raise WrongEvaluator(f"{func} can't be called so: {error}") from None
    try:
        said = metric(*given, **options)
    except Unreadable as error:
        return 0.0, str(error)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        # Rules of another shape than the metric's.
        raise WrongEvaluator(f"{func} can't judge by these rules: {type(error).__name__}: {error}") from error
    score, reason = said if isinstance(said, tuple) else (said, None)
    return min(max(float(score), 0.0), 1.0), reason
