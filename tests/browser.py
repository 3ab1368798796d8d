"""A real Chromium for tests of pages: found, or skipped with the reason; no network but what a test serves itself."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@contextlib.contextmanager
def launched() -> Iterator[Any]:
    """A playwright Browser with a fresh profile of its own."""
    executable = next(filter(None, map(shutil.which, _NAMES)), None)
    if executable is None:
        _lacking("no Chromium is installed: scripts/install-test-tools.sh installs it")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _lacking("playwright is not installed: pip install -r requirements-dev.txt")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS, headless=True)
        try:
            yield browser
        finally:
            browser.close()


def _lacking(reason: str) -> None:
    """Skip; on CI, where it must be there, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


class Watched:
    """A page, and everything that it did which a report must not do."""

    def __init__(self, browser: Any, *, dark: bool = False, width: int = 1280, height: int = 900, **more: Any) -> None:
        self.context = browser.new_context(
            color_scheme="dark" if dark else "light", viewport={"width": width, "height": height}, **more
        )
        self.context.set_default_timeout(10_000)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", self._dialog)

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def show(self, html: str) -> Any:
        """Open a page from a file's address and wait until its timeline is drawn."""
        self.page.goto(html)
        self.page.wait_for_load_state()
        if self.page.locator("#lanes").count():
            self.page.locator("#lanes[data-ready=yes]").wait_for()
        return self.page

    def close(self) -> None:
        self.context.close()
