"""Reports tests that passed only at their second try and why the first failed, and fails a run that needed too many of them.

`ARENITE_SECOND_TRIES` names a file that gets this report, a test a line, for the summary of `cargo xtask test`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

#: Second tries that a run may need: more mean a defect, not a busy host.
MOST = 2
#: Of a first failure's message, the report gets the first line, up to this many characters.
REASON_CHARACTERS = 500


def second_tries(config: pytest.Config) -> list[str]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return sorted({f"{report.nodeid}: {reason(report)}" for report in reporter.stats.get("rerun", [])}) if reporter else []


def reason(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return report.longreprtext[-REASON_CHARACTERS:].replace("\n", " ")
    # The test's own line, and then where the exception came from.
    entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", [])
    places = [place for entry in entries if (place := getattr(entry, "reprfileloc", None))]
    own = [f"line {place.lineno}, " for place in places[:1] if place.lineno != crash.lineno]
    return f"{''.join(own)}line {crash.lineno} of {Path(crash.path).name}: {crash.message.partition(chr(10))[0][:REASON_CHARACTERS]}"


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    lines = second_tries(session.config)
    if len(lines) > MOST and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if lines and (file := os.environ.get("ARENITE_SECOND_TRIES")):
        with Path(file).open("a") as log:
            log.writelines(f"{line}\n" for line in lines)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = second_tries(config)
    if len(lines) > MOST:
        terminalreporter.write_line(f"FAILED: {len(lines)} tests needed a second try, and at most {MOST} may", red=True)
    elif lines:
        terminalreporter.write_line(f"second tries: {len(lines)} of at most {MOST}", yellow=True)
    for line in lines:
        terminalreporter.write_line(f"  {line}")
