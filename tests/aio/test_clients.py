"""Clients from npm in a sandbox's browser, while the REST API drives another tab."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from sites import Sites

CLIENTS = Path(__file__).parent.parent / "clients"


@pytest.mark.parametrize("client", ["playwright", "puppeteer"])
def test_a_client_from_npm(sites: Sites, client: str) -> None:
    assert (CLIENTS / "node_modules").is_dir(), f"run: npm ci, in {CLIENTS}"
    url = sites.live.client.browser.get_info().data.cdp_url
    assert "/sandbox/" in url
    command = ["node", str(CLIENTS / "visit.mjs"), client, url, sites.url]
    visit = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    rounds = 0
    try:
        while visit.poll() is None or not rounds:
            assert sites.open("/form.html")["title"] == "Form"
            sites.page.fill(selector="#story", text=f"round {rounds}")
            assert sites.value("document.querySelector('#story').value") == f"round {rounds}"
            rounds += 1
        seen, said = visit.communicate(timeout=30)
    finally:
        visit.kill()
    assert visit.returncode == 0, said
    assert json.loads(seen) == {"title": "Shop", "download": "report.csv", "picture": "PNG"}
    assert [tab["title"] for tab in sites.tabs.list().data] == ["Form"], "what it opened is its own, and gone"
