"""The report in a real browser: charts are drawn, zoom, read out by keyboard, and print; nothing is fetched.

Skipped without Chromium, unless pytest is run with --require-browser, as .ci/run does.
"""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_runs import incident, make_run
from visits import Visit, open_browser, visit

import deepnet
from deepnet.lock import locked_folder
from deepnet.report.watch import ReportServer, WatchedRuns

KEPT = Path(__file__).resolve().parents[2] / "results" / "report"
HOSTILE = "<img src=x onerror=alert(1)>"
NAMES_OF_CONTROLS = """all => all.map(e =>
    e.getAttribute('aria-label') || [...(e.labels || [])].map(l => l.textContent).join('') || e.textContent.trim())"""


@pytest.fixture(scope="module")
def browser(pytestconfig: pytest.Config) -> Iterator[object]:
    yield from open_browser(pytestconfig)


@pytest.fixture(scope="module")
def one_run(browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visit]:
    folder = tmp_path_factory.mktemp("one")
    run = make_run(folder / "run", layers=6, steps=400, incidents=[incident(200, "spike")])
    seen = visit(browser, deepnet.write_report(run).path.as_uri())
    yield seen
    seen.page.close()


@pytest.fixture
def page(one_run: Visit) -> Iterator[Visit]:
    """The page of one run, with nothing zoomed before or after."""
    one_run.page.click("#reset")
    yield one_run
    one_run.page.click("#reset")


def test_every_chart_is_drawn_and_nothing_is_fetched(page: Visit) -> None:
    visible = page.page.eval_on_selector_all(
        ".plot", "all => all.filter(e => e.checkVisibility()).map(e => e.id)"
    )
    assert page.drawn() == visible
    assert len(visible) > 20
    for plot in visible:
        if page.page.get_attribute(f"#{plot}", "data-lines"):
            paths = page.page.eval_on_selector_all(
                f"#{plot} .scatterlayer .trace path.js-line",
                "all => all.map(e => e.getAttribute('d'))",
            )
            assert paths
            assert all(re.search("^M.*[LHV]", path) for path in paths if path)
            assert any(paths)
        else:
            images = page.page.eval_on_selector_all(
                f"#{plot} .heatmaplayer image", "all => all.map(e => e.getAttribute('href'))"
            )
            assert len(images) == 1
            assert images[0].startswith("data:image/png;base64,")
            assert len(images[0]) > 300
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_a_map_shows_the_numbers_it_was_given(page: Visit) -> None:
    shown, values, layers = page.page.evaluate(
        """() => { const trace = document.getElementById("plot-norm_input-encoder-0")._fullData[0];
        return [Array.from(trace.z[5]), Array.from(trace.customdata[5]), trace.z.length]; }"""
    )
    assert layers == 6
    assert shown == values, "a linear scale"
    assert all(1 < value < 10 for value in values)


def test_dragging_zooms_all_charts_and_double_click_goes_back(page: Visit) -> None:
    before, before_lr = page.x_range("plot-loss"), page.x_range("plot-lr")
    page.drag("plot-loss", 0.25, 0.5)
    low, high = page.x_range("plot-loss")
    width = before[1] - before[0]
    assert low == pytest.approx(before[0] + 0.25 * width, abs=0.03 * width)
    assert high == pytest.approx(before[0] + 0.5 * width, abs=0.03 * width)
    for other in ("plot-lr", "plot-gradient_norm-encoder-0"):
        assert page.x_range(other) == pytest.approx([low, high])
    page.page.uncheck("#linked")
    page.drag("plot-lr", 0.2, 0.4)
    assert page.x_range("plot-lr")[1] < high
    assert page.x_range("plot-loss") == pytest.approx([low, high])
    page.page.check("#linked")
    page.page.locator("#plot-loss .nsewdrag").first.dblclick()
    page.page.wait_for_timeout(400)
    assert page.x_range("plot-loss") == pytest.approx(before)
    assert page.x_range("plot-lr") == pytest.approx(before_lr)


def test_pointing_reads_values_out(page: Visit) -> None:
    area = page.page.locator("#plot-similarity-encoder-0 .nsewdrag").first
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    page.page.mouse.move(box["x"] + box["width"] / 3, box["y"] + box["height"] / 2)
    hover = page.page.wait_for_selector("#plot-similarity-encoder-0 .hovertext")
    assert re.fullmatch(r"update \d+, layer \d0?\.\d+", hover.text_content())


def test_the_keyboard_reaches_charts_and_reads_them(page: Visit) -> None:
    reached = []
    page.page.focus("#linked")
    for _ in range(40):
        page.page.keyboard.press("Tab")
        reached.append(page.page.evaluate("document.activeElement.id"))
    assert {"reset", "plot-loss", "log-loss", "plot-lr"} <= set(reached)
    page.page.focus("#plot-loss")
    for _ in range(3):
        page.page.keyboard.press("ArrowRight")
    readout = page.page.text_content("#chart-loss > .readout")
    first = page.page.evaluate("document.getElementById('plot-loss')._fullData[0].y[2]")
    assert readout.startswith(f"Update 30: training {first:.4g}"[:22])
    before = page.x_range("plot-loss")
    page.page.keyboard.press("+")
    page.page.wait_for_timeout(200)
    after = page.x_range("plot-loss")
    assert after[1] - after[0] == pytest.approx((before[1] - before[0]) / 2)
    page.page.keyboard.press("0")
    page.page.focus("#plot-sparsity-encoder-0")
    page.page.keyboard.press("End")
    page.page.keyboard.press("ArrowUp")
    assert "Update 400, layer 2: " in page.page.text_content("#plot-sparsity-encoder-0 ~ .readout")


def test_another_site_is_chosen_and_its_numbers_are_a_table(page: Visit) -> None:
    plot = "plot-gradient_norm-encoder-0"
    before = page.page.get_attribute(f"#{plot}", "aria-label")
    page.page.select_option("#choice-gradient_norm-encoder", "encoder.self.q")
    page.page.wait_for_timeout(200)
    label = page.page.get_attribute(f"#{plot}", "aria-label")
    assert "self-attention, q" in label
    assert label != before
    page.page.click("#numbers-gradient_norm-encoder-0 > summary")
    page.page.wait_for_selector("#numbers-gradient_norm-encoder-0 tr")
    rows = page.page.eval_on_selector_all(
        "#numbers-gradient_norm-encoder-0 tr", "all => all.map(e => e.innerText.split('\\t'))"
    )
    assert rows[0] == ["Update", "Lowest", "Middle", "Highest"]
    assert rows[-1][0] == "400"
    highest = page.page.evaluate(
        f"Math.max(...document.getElementById('{plot}')._fullData[0].customdata.map(r => r[r.length - 1]))"
    )
    assert float(rows[-1][3].split()[0]) == pytest.approx(highest, rel=1e-3)


def test_a_chart_can_be_saved_and_not_sent_anywhere(page: Visit) -> None:
    buttons = page.page.eval_on_selector_all(
        ".modebar-btn", "all => all.map(e => e.getAttribute('aria-label'))"
    )
    assert set(buttons) == {
        "Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"
    }  # fmt: skip
    page.page.hover("#plot-loss")
    with page.page.expect_download() as download:
        page.page.click("#plot-loss .modebar-btn >> nth=0")
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")
    assert page.complaints == []


def test_logarithmic_axes(page: Visit) -> None:
    kind = "document.getElementById('plot-loss')._fullLayout.yaxis.type"
    assert page.page.evaluate(kind) == "linear"
    page.page.check("#log-loss")
    page.page.wait_for_timeout(200)
    assert page.page.evaluate(kind) == "log"
    page.page.uncheck("#log-loss")


def test_the_last_steps_before_an_incident_open(page: Visit) -> None:
    page.page.click("#incident-0-0 > summary")
    page.page.wait_for_selector("#plot-incident-0-0-gradient_norm-encoder-0[data-drawn] image")
    assert "at encoder.2.ffn.fc1" in page.page.text_content("#incident-0-0 > summary")
    assert page.complaints == []


def test_those_who_cannot_see_the_charts_get_words(page: Visit) -> None:
    every = page.page.eval_on_selector_all
    labels = every(".plot[data-drawn]", "all => all.map(e => e.getAttribute('aria-label'))")
    assert len(labels) > 20
    assert all(re.search(r"\d", label) for label in labels)
    assert set(every("svg", "all => all.map(e => e.getAttribute('aria-hidden'))")) == {"true"}
    assert all(
        every("main button, main select, main input, main summary, main a", NAMES_OF_CONTROLS)
    )
    assert page.page.evaluate("document.documentElement.lang") == "en"


def test_buttons_for_the_mouse_are_not_in_the_way_of_the_keyboard(page: Visit) -> None:
    assert page.page.locator(".modebar-btn").count() > 20
    page.page.focus("#reset")
    for _ in range(12):
        page.page.keyboard.press("Tab")
        assert not page.page.evaluate("document.activeElement.closest('.modebar') !== null")
    page.page.focus("#plot-lr")
    with page.page.expect_download() as download:
        page.page.keyboard.press("s")
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


def test_smoothing_draws_the_mean_over_what_was_measured(page: Visit) -> None:
    values = "name => document.getElementById(name)._fullData.filter(t => t.yaxis === 'y').map(t => Array.from(t.y))"
    before = page.page.evaluate(values, "plot-gradient_norm")
    page.page.check("#smooth")
    page.page.wait_for_timeout(500)
    raw, mean = page.page.evaluate(values, "plot-gradient_norm")
    assert [raw] == before
    assert mean[10] == pytest.approx(sum(raw[8:13]) / 5)
    assert page.page.evaluate(values, "plot-lr") == [page.page.evaluate(values, "plot-lr")[0]]
    page.page.uncheck("#smooth")
    page.page.wait_for_timeout(500)
    assert page.page.evaluate(values, "plot-gradient_norm") == before


def test_tokens_and_time_are_axes_too(page: Visit) -> None:
    last = "name => document.getElementById(name)._fullData[0].x.at(-1)"
    mark = """document.getElementById('plot-loss')._fullData
        .find(t => t.marker?.symbol?.includes?.('triangle-down')).x[0]"""
    for axis, end, incident_at in (
        ("tokens", 900 * 400, 900 * 200),
        ("seconds", 0.3 * 400, 0.3 * 200),
        ("updates", 400, 200),
    ):
        page.page.select_option("#along", axis)
        page.page.wait_for_timeout(1500)
        assert page.page.evaluate(last, "plot-loss") == pytest.approx(end, rel=1e-5)
        assert page.page.evaluate(last, "plot-norm_input-encoder-0") == pytest.approx(end, rel=1e-5)
        assert page.page.evaluate(mark) == pytest.approx(incident_at, rel=1e-5)
    assert page.complaints == []


def test_layers_zoom_together(page: Visit) -> None:
    layers = "id => document.getElementById(id)._fullLayout.yaxis.range"
    page.page.evaluate(
        "() => Plotly.relayout('plot-norm_input-encoder-0', {'yaxis.range[0]': 1.5, 'yaxis.range[1]': 4.5})"
    )
    page.page.wait_for_timeout(800)
    for other in ("plot-norm_input-decoder-0", "plot-gradient_norm-encoder-0"):
        assert page.page.evaluate(layers, other) == pytest.approx([1.5, 4.5])
    assert page.page.evaluate(layers, "plot-loss")[1] > 4.5, "values are no layers"
    page.page.evaluate("document.getElementById('incident-0-0').open = true")
    profile = "plot-profile-incident-0-0-incident-0-0-gradient_norm-encoder"
    page.page.wait_for_selector(f"#{profile}[data-drawn]")
    assert page.x_range(profile) == pytest.approx([1.5, 4.5])


def test_page_up_and_down_go_over_layers(page: Visit) -> None:
    readout = "#plot-norm_input-decoder-0 ~ .readout"
    page.page.focus("#plot-norm_input-decoder-0")
    for key, layer in (("Home", 1), ("PageUp", 2), ("PageUp", 3), ("PageDown", 2)):
        page.page.keyboard.press(key)
        assert f"layer {layer}: " in page.page.text_content(readout)


def test_it_prints_on_several_pages_with_whole_charts(one_run: Visit) -> None:
    pdf = one_run.page.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    assert 4 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 30
    one_run.page.emulate_media(media="print")
    widths = one_run.page.evaluate(
        """() => [...document.querySelectorAll(".plot[data-drawn]")].filter(e => e.clientWidth).map(e =>
        e.querySelector(".main-svg").getBoundingClientRect().right - e.getBoundingClientRect().right)"""
    )
    one_run.page.emulate_media(media="screen")
    assert max(widths) <= 1


def test_runs_side_by_side_with_a_hostile_name(browser, tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / name, layers=2, seed=n) for n, name in enumerate(("plain", HOSTILE))
    ]
    seen = visit(browser, deepnet.write_report(runs, tmp_path / "r.html").path.as_uri())
    legend = seen.page.eval_on_selector_all(
        "#plot-loss .legendtext", "all => all.map(e => e.textContent)"
    )
    assert legend == ["plain", HOSTILE]
    assert seen.page.locator("img").count() == 0
    dashes = seen.page.eval_on_selector_all(
        "#plot-lr .js-line", "all => all.map(e => e.style.strokeDasharray)"
    )
    assert len(set(dashes)) == 2, "lines differ without colour"
    assert seen.complaints == []
    seen.page.close()


def test_a_phone_scrolls_one_way_and_the_first_tab_skips_to_the_summary(
    browser, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", layers=2)
    seen = visit(browser, deepnet.write_report(run).path.as_uri(), width=390)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 390
    seen.page.keyboard.press("Tab")
    assert seen.page.evaluate("document.activeElement.className") == "skip"
    seen.page.keyboard.press("Enter")
    assert seen.page.evaluate("document.activeElement.id") == "summary"
    assert seen.complaints == []
    seen.page.close()


def test_a_served_page_follows_the_run_and_keeps_the_zoom(browser, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", layers=2, steps=200, finished=False, probes=False)
    with ReportServer(WatchedRuns([run]), port=0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            follow(visit(browser, server.url), run)
        finally:
            server.shutdown()
            thread.join()


def follow(seen: Visit, run: Path) -> None:
    page = seen.page
    page.wait_for_selector("text=Ended: no process", timeout=60_000)
    page.click("#whole-recipe > summary")
    seen.drag("plot-loss", 0.25, 0.5)
    zoomed = seen.x_range("plot-loss")
    with locked_folder(run):
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"step": 210, "loss": 1.5, "lr": 0.001}\n')
        (run / "probes.jsonl").write_text(
            '{"step": 200, "norm_input": {"encoder.self": [1.0, 2.0]}}\n'
        )
        page.wait_for_selector("text=Going on.", timeout=60_000)
        page.wait_for_selector("#plot-norm_input-encoder-0[data-drawn]", timeout=60_000)
    assert page.evaluate("document.getElementById('plot-loss')._fullData[0].y.at(-1)") == 1.5
    assert seen.x_range("plot-loss") == pytest.approx(zoomed)
    assert page.evaluate("document.getElementById('whole-recipe').open")
    assert "210 updates" in page.text_content("#summary")
    page.wait_for_selector("text=Ended: no process", timeout=60_000)
    assert re.search(r"Last updated at \d\d:\d\d:\d\d", page.text_content("#live-time"))
    assert seen.complaints == []
    assert {url.split("?")[0] for url in seen.requests if url.startswith("http")} == {
        page.url, f"{page.url}live.json"
    }  # fmt: skip
    page.close()


PAGES = {
    "the demo": ("demo",),
    "four schemes at 18 + 18 layers": ("post_ln", "deepnorm", "branchnorm", "pre_ln"),
    "500 + 500 layers": ("deepnorm_500",),
}


@pytest.mark.parametrize("title", PAGES)
def test_the_pages_of_real_runs(browser, tmp_path: Path, title: str) -> None:
    """Those that docs/report.md shows, from the files of the runs that results/report keeps."""
    runs = [KEPT / name for name in PAGES[title]]
    written = deepnet.write_report(runs, tmp_path / "page.html")
    assert written.num_bytes < 5_000_000
    seen = visit(browser, written.path.as_uri())
    assert len(seen.drawn()) > 20
    assert seen.complaints == []
    assert seen.requests == [written.path.as_uri()]
    assert all(name in seen.page.inner_text("main") for name in PAGES[title])
    seen.page.close()
