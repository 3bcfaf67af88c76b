"""Pages visited in a real browser."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def open_browser(config: pytest.Config) -> Iterator[object]:
    """Yield Debian's Chromium; skip the test without it, or fail where --require-browser was given."""
    chromium = next(filter(None, map(shutil.which, NAMES)), None)
    if chromium is None:
        message = "no Chromium on this machine; Debian: apt-get install chromium"
        if config.getoption("--require-browser"):
            pytest.fail(message)
        pytest.skip(message)
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield launched
        launched.close()


@dataclass
class Visit:
    """An open page, and what went wrong on it."""

    page: object
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def drawn(self) -> list[str]:
        return self.page.eval_on_selector_all(".plot[data-drawn]", "all => all.map(e => e.id)")

    def x_range(self, plot: str) -> list[float]:
        return self.page.evaluate("id => document.getElementById(id)._fullLayout.xaxis.range", plot)

    def drag(self, plot: str, start: float, end: float) -> None:
        """Drag from one share of the chart's width to another, half-way up."""
        area = self.page.locator(f"#{plot} .nsewdrag").first
        area.scroll_into_view_if_needed()
        box = area.bounding_box()
        height = box["y"] + box["height"] / 2
        mouse = self.page.mouse
        mouse.move(box["x"] + start * box["width"], height)
        mouse.down()
        mouse.move(box["x"] + (start + end) / 2 * box["width"], height, steps=4)
        mouse.move(box["x"] + end * box["width"], height, steps=4)
        mouse.up()
        self.page.wait_for_timeout(400)  # plotly waits for a second click


def visit(browser, address: str, *, width: int = 1280, height: int = 900) -> Visit:
    page = browser.new_page(viewport={"width": width, "height": height})
    seen = Visit(page)
    page.on("console", lambda message: seen.complaints.append(message.text))
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on("request", lambda request: seen.requests.append(request.url))
    page.goto(address)
    page.wait_for_selector("html[data-drawn=all]", timeout=120_000)
    return seen
