"""The console in a real browser, for its tests: where things are, by roles and names."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from arenite_server import REPOSITORY
from playwright.sync_api import Locator, Page, expect

#: Milliseconds for the server's work; a loaded machine takes its time.
PATIENCE = 45_000
#: Would become an element and run, if a page took it as markup.
HOSTILE = "<img src=x onerror=document.title='owned'>"
PAGES = {"read": "", "use": "", "manage": "Secrets", "admin": "Secrets, Models, Keys, Webhooks, Audit log", "operator": "Secrets, Models, Keys, Webhooks, Audit log, Nodes, Tenants"}
#: What all roles have.
ALWAYS = ["Overview", "Sandboxes", "Trajectories", "Rollouts", "Workers", "Corpora", "Images", "Templates", "Snapshots", "Volumes", "Groups", "Usage"]
AXE = REPOSITORY / "tests/clients/node_modules/axe-core/axe.min.js"
LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
LOOKS = {"light": ("light", 1280, 860), "dark": ("dark", 1280, 860), "narrow": ("light", 390, 844)}


#: Evaluated after the source of axe, since the policy of pages refuses scripts of others.
VIOLATIONS = """([levels, leftOut]) => axe.run(leftOut ? {exclude: [[leftOut]]} : document, {runOnly: levels, iframes: !leftOut})
  .then(({violations}) => violations.map(one => [one.id, one.nodes.map(node => node.html.slice(0, 200))]))
  .then(found => document.documentElement.scrollWidth > innerWidth ? [...found, 'wider than the window'] : found)"""


#: Each text in the cells of tables, except of controls and stars, as long as the longest name, until the width is known.
STRETCHED = """async () => {
  const frames = () => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  const texts = [];
  for (const cell of document.querySelectorAll('td')) {
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let text = walker.nextNode(); text; text = walker.nextNode())
      if (!text.parentElement.closest('button, select, label, .stars')) texts.push([text, text.data]);
  }
  for (const [text, before] of texts) text.data = before + 'x'.repeat(63);
  await frames();
  const { scrollWidth } = document.documentElement;
  for (const [text, before] of texts) text.data = before;
  await frames();
  return scrollWidth > innerWidth;
}"""


def violations(page: Page, left_out: str = "") -> list[Any]:
    """What axe finds on the page, and whether the page is wider than the window, now or with long texts. `left_out`: what is not looked at."""
    page.evaluate(AXE.read_text())
    found = page.evaluate(VIOLATIONS, [LEVELS, left_out])
    return found or ["wider than the window with long texts in tables"] * page.evaluate(STRETCHED)


def picture(page: Page, name: str) -> None:
    if folder := os.environ.get("ARENITE_TEST_PICTURES"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


def sign_in(page: Page, url: str, key: str, path: str = "") -> None:
    page.goto(f"{url}/{path}")
    page.fill("#key", key)
    page.get_by_role("button", name="Sign in").click()
    try:
        expect(heading(page)).not_to_have_text("Arenite")
    except AssertionError as error:
        raise AssertionError(f"the page shows {page.locator('body').inner_text()!r}") from error


def heading(page: Page) -> Locator:
    """The one of the page that is shown."""
    return page.get_by_role("main").get_by_role("heading", level=1)


def navigation(page: Page) -> Locator:
    return page.get_by_role("navigation", name="Main")


def show(page: Page, name: str) -> Locator:
    """The page of that name, by its link; on narrow windows, the links are in a drawer."""
    if (more := page.get_by_role("button", name="More", exact=True)).is_visible():
        more.click()
    navigation(page).get_by_role("link", name=name, exact=True).click()
    expect(heading(page)).to_have_text(name)
    return page.get_by_role("main")


def sentence(text: str) -> str:
    """A message of the server as pages show it: names such as `registry.invalid` stay as they are."""
    first = text[0] if re.match(r"[a-z]+[\d_./-]", text) else text[0].upper()
    return f"{first}{text[1:]}{'' if text[-1] in '.!?' else '.'}"


def row(page: Page, text: str) -> Locator:
    return page.get_by_role("row").filter(has_text=text)


def error(field: Locator) -> Locator:
    """The error that is shown at a field."""
    return field.locator("xpath=..").locator(".problem")


def notification(page: Page) -> Locator:
    """What the page reports of what was done, or refused."""
    return page.get_by_role("status", name="Notifications")


def answer(page: Page, button: str) -> None:
    """Answers the question that is asked."""
    page.get_by_role("dialog").get_by_role("button", name=button, exact=True).click()


def choose(page: Page, menu: str, item: str) -> None:
    """An item of a menu."""
    page.get_by_role("button", name=menu, exact=True).click()
    page.get_by_role("menu").get_by_text(item, exact=True).click()


def state(page: Page, text: str) -> Locator:
    """The state beside the heading."""
    return page.locator(".page-head .state").filter(has_text=re.compile(f"^{text}$"))
