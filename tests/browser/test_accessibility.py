"""axe-core, the judge of accessibility that browsers' own tools use, finds no serious issue on either view."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.browser.test_chat import ANSWER, CONTEXT
from tests.support.browser import PageDriver, served_page

pytestmark = pytest.mark.slow

_AXE = Path(sys.prefix) / "share/axe-core/axe.min.js"

NAME_OF_FOCUS = "const e = document.activeElement; return e.id || e.getAttribute('aria-label') || e.textContent"


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of axe-core."""
    if not _AXE.exists():
        pytest.skip(f"there is no {_AXE} (make test-browser installs it, with npm)")
    return _AXE.read_text(encoding="utf-8")


def issues(page: PageDriver, axe: str) -> list[str]:
    """What is serious or worse, with where it is."""
    page.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": axe})  # past the page's policy, as a tool is
    found = page.driver.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    return [
        f"{each['id']}: {node['html']} {node['failureSummary']}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical", "moderate")
        for node in each["nodes"]
    ]


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_neither_view_has_a_serious_issue(browser, axe, is_dark):
    shade = "dark" if is_dark else "light"
    with served_page(ANSWER, info=CONTEXT) as served:
        page = PageDriver(browser, served.url, is_dark=is_dark)
        assert issues(page, axe) == [], "the empty page"
        page.send("How?")
        page.until(page.is_idle, "the answer")
        page.shoot(f"chat-{shade}")
        assert issues(page, axe) == [], "the chat"
        page.find("#open-settings").click()
        page.shoot(f"settings-{shade}")
        assert issues(page, axe) == [], "the settings"
        page.find("[aria-label='Close the settings']").click()
        page.find("#show-engine").click()
        page.until(lambda: page.find_all(".requests tbody tr"), "the requests")
        page.shoot(f"engine-{shade}")
        assert issues(page, axe) == [], "the engine"


def test_the_view_of_the_engine_keeps_the_focus_from_picture_to_picture(browser):
    with served_page(ANSWER, info=CONTEXT) as served:
        page = PageDriver(browser, served.url + "/#engine")
        page.run("document.querySelector('.skip').click()")
        assert page.run("return document.activeElement.id") == "main"
        page.until(lambda: page.find_all(".requests tbody tr"), "the requests")
        assert page.find("#engine").is_displayed(), "what leads to the content leaves the view as it is"
        page.run("document.querySelector('.requests-frame').focus()")
        page.run("document.querySelector('.requests tbody tr').dataset.picture = 'first'")
        page.until(lambda: not page.find_all("[data-picture]"), "the next picture")
        assert page.run(NAME_OF_FOCUS) == "Table of requests"


def test_everything_is_reached_by_keys_in_the_order_of_sight(browser):
    with served_page(ANSWER, info=CONTEXT) as served:
        page = PageDriver(browser, served.url)
        page.until(lambda: page.find_all("#model option"), "the models")
        page.send("How?")
        page.until(page.is_idle, "the answer")
        page.run("document.querySelector('.skip').focus()")
        names = []
        for _ in range(30):
            page.driver.switch_to.active_element.send_keys("\ue004")
            names.append(page.run(NAME_OF_FOCUS))
            if names[-1] == "send":
                break
        order = ["show-chat", "show-engine", "new-conversation", "open-settings", "model", "Copy the code", "prompt"]
        order.append("send")
        assert [name for name in names if name in order] == order
