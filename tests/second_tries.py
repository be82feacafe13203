"""Reports tests that passed only at their second try, and fails a run that needed too many of them.

`ARENITE_SECOND_TRIES` names a file that gets their names, one a line, for the summary of `cargo xtask test`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

#: Second tries that a run may need: more mean a defect, not a busy host.
MOST = 2


def second_tries(config: pytest.Config) -> list[str]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return sorted({report.nodeid for report in reporter.stats.get("rerun", [])}) if reporter else []


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    names = second_tries(session.config)
    if len(names) > MOST and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    if names and (file := os.environ.get("ARENITE_SECOND_TRIES")):
        with Path(file).open("a") as log:
            log.writelines(f"{name}\n" for name in names)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    names = second_tries(config)
    if len(names) > MOST:
        terminalreporter.write_line(f"FAILED: {len(names)} tests needed a second try, and at most {MOST} may", red=True)
    elif names:
        terminalreporter.write_line(f"second tries: {len(names)} of at most {MOST}", yellow=True)
