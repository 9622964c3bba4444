"""Walk through every page of the built site in a browser: screenshots to look at, and what can be checked by itself.

    make docs && PYTHONPATH=benchmarks python scripts/site_walk.py [FOLDER]     default: site-screenshots

Desktop (1280 px), phone (390 px) and dark. A page must cause no error and no request to another server, load all its
images, and be no wider than the window; what is wider inside of it must scroll.
"""

from __future__ import annotations

import functools
import http.server
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from _browser import PHONE, OpenPage, started

SITE = Path(__file__).parents[1] / "site"
VIEWS: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1280, "height": 900}},
    "phone": {"viewport": PHONE, "is_mobile": True, "has_touch": True},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
}
# Elements that reach beyond the window although none of their parents scrolls, and images that did not load.
_FAULTS = """() => {
    const scrolls = e => e && (/auto|scroll|hidden/.test(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
    const wide = [...document.querySelectorAll('.md-content *')].filter(e => {
        const box = e.getBoundingClientRect();
        return box.width > 0 && box.right > innerWidth + 1 && !scrolls(e.parentElement);
    });
    const missing = [...document.images].filter(i => i.complete && i.naturalWidth === 0);
    const page = document.documentElement.scrollWidth - document.documentElement.clientWidth;
    return [...(page > 0 ? [`the page is ${page} px wider than the window`] : []),
            ...wide.slice(0, 3).map(e => `${e.tagName} reaches beyond the window: ${e.textContent.slice(0, 40)}`),
            ...missing.map(i => `${i.src} did not load`)];
}"""


def pages() -> list[Path]:
    """Return the pages of the site."""
    return sorted(file for file in SITE.rglob("index.html") if "project" not in file.parts)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def served() -> Iterator[str]:
    """Serve the site on this machine, as search needs it, and yield its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()


def main(folder: Path) -> int:
    """Take the screenshots; return 1 if a page has a fault."""
    folder.mkdir(parents=True, exist_ok=True)
    faults = []
    with served() as address, started() as browser:
        for page in pages():
            name = page.parent.name if page.parent != SITE else "index"
            for view, options in VIEWS.items():
                url = address + str(page.parent.relative_to(SITE)) + "/"
                opened = OpenPage(browser, url, patience=120, reduced_motion="reduce", **options)
                opened.page.wait_for_load_state("networkidle")
                outside = [u for u in opened.requests if not u.startswith((address, "data:", "blob:"))]
                found = [*opened.page.evaluate(_FAULTS), *opened.problems, *outside]
                faults += [f"{name} ({view}): {fault}" for fault in found]
                opened.page.screenshot(path=folder / f"{name}-{view}.png", full_page=True)
                opened.context.close()
    print("\n".join([*faults, f"{len(pages())} pages in {len(VIEWS)} views, {len(faults)} faults"]))
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else SITE.with_name("site-screenshots")))
