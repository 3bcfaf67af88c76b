"""Photograph a report for the documentation: python docs/report_screenshots.py RUN... --name demo [--out docs/images].

Writes NAME_training.png, NAME_depth.png and, where there are incidents, NAME_incidents.png, each under 110 KB. RUN is a
run folder or one of those that results/report keeps. Needs Chromium and playwright (`make environment` installs the
latter).
"""

import argparse
import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import deepnet

WIDTH, HEIGHT = 1280, 1350
LARGEST = 110_000
SECTIONS = {"training": "#summary", "depth": "#depth", "incidents": "#incidents"}


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--name", required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "images")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        written = deepnet.write_report(given.runs, Path(folder) / "report.html")
        print(f"{written.num_bytes / 1e6:.2f} MB of HTML")
        browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(written.path.resolve().as_uri())
        page.wait_for_selector("html[data-drawn=all]", timeout=300_000)
        for name, section in SECTIONS.items():
            if name != "incidents" or page.locator("#incidents table").count():
                save(picture(page, section), given.out / f"{given.name}_{name}.png")
        browser.close()


def picture(page: Page, section: str) -> bytes:
    """Return a picture of the page from the top of a section on, its first incident opened."""
    if section == "#incidents" and page.locator("details.window").count():
        page.evaluate("document.querySelector('details.window').open = true")
        page.wait_for_selector("details.window[open] .plot[data-drawn]")
        page.wait_for_timeout(2000)
    top = page.evaluate(
        "s => document.querySelector(s).getBoundingClientRect().top + scrollY", section
    )
    start = 0 if section == "#summary" else max(0, top - 10)
    clip = {"x": 0, "y": start, "width": WIDTH, "height": HEIGHT}
    return page.screenshot(full_page=True, clip=clip)


def save(png: bytes, path: Path) -> None:
    """Write a picture, in 256 colours where it would be too large for the repository; refuse one that still is."""
    image, buffer = Image.open(io.BytesIO(png)).convert("RGB"), io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    if buffer.tell() > LARGEST:
        buffer = io.BytesIO()
        image.quantize(256, kmeans=3).save(buffer, "PNG", optimize=True)
    if buffer.tell() > LARGEST:
        sys.exit(f"{path} would have {buffer.tell():,} bytes; the limit is {LARGEST:,}")
    path.write_bytes(buffer.getvalue())
    print(f"{path}: {buffer.tell():,} bytes")


def chromium() -> str:
    """Return the path of the browser."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    return found or sys.exit("no Chromium; Debian: apt-get install chromium")


if __name__ == "__main__":
    main()
