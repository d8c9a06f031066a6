"""A headless Chromium, and a server of the page on a loop of its own: selenium waits, so that it can't share one."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.http_server import Running, running_server

SCREENSHOTS = os.environ.get("PAGEWIRE_SCREENSHOTS")
_WAIT_S = 60.0  # for what takes milliseconds on a machine that has time

VIEW = {
    "stats": {"num_running": 1, "num_waiting": 1, "num_blocks": 64, "num_used_blocks": 9, "num_steps": 40},
    "num_blocks": 64,
    "num_used_blocks": 9,
    "num_findable_blocks": 14,
    "blocks_per_cell": 1,
    "samples_per_cell": 1,
    "cells": "3322222221111111" + "0" * 48,
    "num_children": 2,
    "requests": [
        {
            "arrival": 7, "child": 0, "status": "running", "num_prompt_tokens": 90, "num_cached_tokens": 32,
            "num_computed_tokens": 120, "num_output_tokens": 31, "max_output_tokens": 100, "num_blocks": 8,
        },
        {
            "arrival": 8, "child": 0, "status": "waiting", "num_prompt_tokens": 400, "num_cached_tokens": 0,
            "num_computed_tokens": 0, "num_output_tokens": 0, "max_output_tokens": 50, "num_blocks": 0,
        },
    ],
}  # fmt: skip


class MissingBrowser(Exception):
    """What these tests need is not there; the text says what."""


@contextmanager
def chromium() -> Iterator[Any]:  # Any: selenium may be missing where this is type checked
    """Start a headless Chromium.

    Raises:
        MissingBrowser: there is none, or nothing to drive it by.
    """
    try:
        from selenium import webdriver
    except ImportError:
        raise MissingBrowser("selenium is not installed (make test-browser installs it)") from None
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        raise MissingBrowser("there is no Chromium to drive (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    running.set_script_timeout(_WAIT_S)
    try:
        yield running
    finally:
        running.quit()


class PageDriver:
    """The page in a browser, as a person meets it.

    Args:
        driver: the browser.
        url: of the server; nothing is kept of what was done there before.
    """

    def __init__(self, driver: Any, url: str, *, width: int = 1280, is_dark: bool = False) -> None:  # Any: as above
        self.driver = driver
        self.url = url
        driver.get_log("browser")
        size = {"width": width, "height": 860, "deviceScaleFactor": 1, "mobile": width < 600}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}  # nothing slides away below a click
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme, still]})
        driver.get(url)
        driver.execute_script("localStorage.clear(); sessionStorage.clear()")
        driver.refresh()

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def find_all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait until a condition holds, whatever stale elements it met on the way; return what it gave."""
        end = time.monotonic() + _WAIT_S
        while True:
            try:
                found = condition()
            except Exception as error:
                if "Stale" not in type(error).__name__ and "NoSuchElement" not in type(error).__name__:
                    raise
                found = None
            if found:
                return found
            assert time.monotonic() < end, f"{what} did not come; the browser says {self.driver.get_log('browser')}"
            threading.Event().wait(0.05)

    @contextmanager
    def prepared(self, script: str) -> Iterator[None]:
        """Load the page again, with a script that runs before those of its own."""
        added = self.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
        self.driver.refresh()
        try:
            yield
        finally:
            self.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)

    @contextmanager
    def without_storage(self) -> Iterator[None]:
        """Load the page again, in a browser that refuses to keep anything for it."""
        refusal = "get() { throw new DOMException('denied', 'SecurityError') }"
        names = ("localStorage", "sessionStorage")
        script = "".join(f"Object.defineProperty(window, '{name}', {{ {refusal} }});" for name in names)
        with self.prepared(script):
            yield

    def send(self, text: str) -> None:
        """Type a message and send it by Enter."""
        self.find("#prompt").send_keys(text, "\ue007")

    def answer(self) -> str:
        """The last answer's text as it is seen."""
        return self.find(".message[data-role=assistant]:last-child .markdown").text

    def is_idle(self) -> bool:
        """Whether no answer comes."""
        return self.find("#send").is_displayed()

    def shoot(self, name: str) -> None:
        """Keep a picture, where pictures are wanted."""
        if SCREENSHOTS:
            Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            self.driver.save_screenshot(str(Path(SCREENSHOTS) / f"{name}.png"))

    def complaints(self) -> list[str]:
        """What the browser complained about, failed requests (which the tests make on purpose) aside."""
        return [each["message"] for each in self.driver.get_log("browser") if "status of" not in each["message"]]


@contextmanager
def served_page(*texts: str, **options: Any) -> Iterator[ServedPage]:
    """Serve the page over a scripted core in a thread; arguments as those of `running_server`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    context = running_server(*texts, **options)

    def wait(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(_WAIT_S)

    try:
        running = wait(context.__aenter__())
        running.core.answers["view"] = VIEW
        try:
            yield ServedPage(running, loop)
        finally:
            wait(context.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class ServedPage:
    """What `served_page` serves."""

    def __init__(self, running: Running, loop: asyncio.AbstractEventLoop) -> None:
        self.url = running.url
        self.core = running.core
        self._loop = loop

    def allow_steps(self, num_steps: int | None) -> None:
        """See `FakeCore.allow_steps`."""
        self._loop.call_soon_threadsafe(self.core.allow_steps, num_steps)

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Have the server do nothing at all meanwhile."""
        goes_on = threading.Event()
        self._loop.call_soon_threadsafe(goes_on.wait)
        try:
            yield
        finally:
            goes_on.set()
