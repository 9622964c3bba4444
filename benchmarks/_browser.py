"""A real browser for the report's page, with a record of the errors, dialogs and requests that a page causes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
)  # fmt: skip
DESKTOP = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}


def find_browser() -> str | None:
    """Return the path of a Chromium, if there is one."""
    names = [os.environ["SLIMILAR_BROWSER"]] if os.environ.get("SLIMILAR_BROWSER") else _NAMES
    return next((path for path in map(shutil.which, names) if path), None)


@contextmanager
def started() -> Iterator[Any]:
    """Start a browser and stop it at the end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_browser(), args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class OpenPage:
    """One page, of a file or an address, with the errors, dialogs and requests that it caused."""

    def __init__(self, browser: Any, file: Path | str, *, patience: float = 10, **options: Any) -> None:
        self.context = browser.new_context(accept_downloads=True, **{"viewport": DESKTOP, **options})
        self.context.set_default_timeout(1000 * patience)  # seconds, for the first load too
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", self._on_dialog)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file if isinstance(file, str) else file.absolute().as_uri())

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _on_dialog(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def settle(self) -> None:
        """Wait until the last change is on the screen."""
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def text(self, selector: str) -> str:
        """Return the text of an element, once the last change is on the screen."""
        self.settle()
        return str(self.page.locator(selector).first.text_content())

    def widths(self) -> dict[str, int]:
        """Return the channels that stay in every group, as the page has them."""
        self.settle()
        found: dict[str, int] = self.page.evaluate(
            "() => Object.fromEntries(slimilar.network.groups.map((g, i) => [g.name, slimilar.result.kept[i]]))"
        )
        return found

    def close_quietly(self) -> None:
        """Close the page; check that it caused no error, no outside request, and ran no injected code."""
        assert self.problems == []
        assert [url for url in self.requests if not url.startswith(("file:", "blob:"))] == []
        assert self.page.evaluate("window.hacked") is None
        self.context.close()
