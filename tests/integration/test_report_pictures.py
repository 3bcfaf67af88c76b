"""What the report shows of runs that went wrong, in a real browser: first screen, colours, margins, print."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_runs import incident, make_run, write_lines
from visits import open_browser, visit

import deepnet


@pytest.fixture(scope="module")
def browser(pytestconfig: pytest.Config) -> Iterator[object]:
    yield from open_browser(pytestconfig)


def test_theory_does_not_flatten_what_was_measured(browser, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", layers=2)
    readings = [json.loads(line) for line in (run / "probes.jsonl").read_text().splitlines()]
    for number, found in enumerate(readings):
        found["predicted_update"]["output"] = [1e6 * (number + 1)]
        found["model_update"].update(encoder=[0.1, 0.1], decoder=[0.1, 0.2], output=[0.3])
    readings[0]["model_update"]["output"] = [0.0]
    write_lines(run / "probes.jsonl", readings)
    seen = visit(browser, deepnet.write_report(run).path.as_uri())
    low, high = seen.page.evaluate(
        "document.getElementById('plot-model_update')._fullLayout.yaxis.range"
    )
    assert low <= 0.0
    assert 0.3 < high < 0.4
    seen.page.check("#log-model_update")
    seen.page.wait_for_timeout(300)
    low, high = seen.page.evaluate(
        "document.getElementById('plot-model_update')._fullLayout.yaxis.range"
    )
    assert -1.0 < low + 0.1 < -0.5, "0.2 and 0.3 are what a logarithmic axis has a place for"
    assert high < 0
    zero = seen.page.evaluate(
        """document.getElementById('plot-model_update')._fullData
        .find(t => t.marker?.symbol === 'triangle-down-open').x"""
    )
    assert zero == [10]
    seen.page.close()


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
def test_the_first_screen_says_what_happened(
    browser, tmp_path: Path, width: int, height: int
) -> None:
    fatal = incident(
        200, "nan", "stop", where="decoder.3.cross.q",
        message="loss nan, gradient norm nan: not finite; over the 50 updates before, the loss was at most 8.8",
    )  # fmt: skip
    run = make_run(tmp_path / "run", layers=6, steps=400, incidents=[fatal], finished=False)
    seen = visit(browser, deepnet.write_report(run).path.as_uri(), width=width, height=height)
    for text in ("diverged", "Not a number in decoder layer 3", "decoder layer 3, cross-attention, q",
                 "update 200 of 400", "stopped", "the loss was at most 8.8", "See that moment"):  # fmt: skip
        box = seen.page.locator("#summary").get_by_text(text).last.bounding_box()
        assert box["y"] + box["height"] <= height, text
        assert box["x"] + box["width"] <= width, text
    seen.page.click("text=See that moment")
    seen.page.wait_for_timeout(1500)
    top = seen.page.locator("#incident-0-0 > summary").bounding_box()["y"]
    assert 0 <= top < height / 2
    assert seen.complaints == []
    seen.page.close()


def test_what_is_not_finite_has_a_colour_and_is_said(browser, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", layers=6, steps=400, probes=False)
    rows = [[1.0 + n / 10 + layer / 7 for layer in range(6)] for n in range(20)]
    rows[-1][3:] = [None] * 3
    rows[5][0] = 1e4
    write_lines(
        run / "probes.jsonl",
        [{"step": 20 * n, "norm_input": {"encoder.self": row}} for n, row in enumerate(rows, 1)],
    )
    seen = visit(browser, deepnet.write_report(run).path.as_uri())
    traces = seen.page.evaluate(
        """document.getElementById("plot-norm_input-encoder-0")._fullData.filter(t => t.type === "heatmap")
        .map(t => [t.colorscale[0][1], t.z.map(row => Array.from(row).at(-1)), t.zmax])"""
    )
    (_, shown, brightest), (colour, wrong, _) = traces
    assert wrong == [None, None, None, 1, 1, 1]
    assert all(shown[:3])
    assert brightest < 4, "one value of 10,000 does not darken the others (logarithmic)"
    legend = seen.page.inner_text("#plot-norm_input-encoder-0 ~ .legend")
    assert "not finite (3 values)" in legend
    assert (
        "1 of 117 values lie beyond, at 10,000" in legend or "1 of 117 values lie beyond" in legend
    )
    assert colour == "#d4145a"
    seen.page.close()


def test_labels_fit_their_margins(browser, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", layers=6, steps=400, probes=False)
    readings = [
        {
            "step": 200 * number,
            "norm_input": {"encoder.self": [10.0 ** -(number + 3 * layer) for layer in range(6)]},
            "similarity": {"decoder": [0.99990 + 0.00001 * (number + layer) for layer in range(6)]},
            "sparsity": {"decoder.ffn": [123456.0 + number + layer for layer in range(6)]},
        }
        for number in (1, 2)
    ]
    write_lines(run / "probes.jsonl", readings)
    for width in (1400, 390):
        seen = visit(browser, deepnet.write_report(run).path.as_uri(), width=width)
        outside = seen.page.evaluate(
            """() => [...document.querySelectorAll(".plot")].flatMap(plot => {
            const frame = plot.getBoundingClientRect();
            return [...plot.querySelectorAll(".xtick text, .ytick text, .cbaxis text, .xtitle, .ytitle, .legendtext")]
              .map(e => [e.getBoundingClientRect(), plot.id + " " + e.textContent])
              .filter(([box]) => box.width && (box.left < frame.left - 1 || box.right > frame.right + 1))
              .map(([, text]) => text); })"""
        )
        assert outside == []
        ticks = seen.page.eval_on_selector_all(
            "#plot-similarity-decoder-0 .cbaxis text", "all => all.map(e => e.textContent)"
        )
        assert len(set(ticks)) == len(ticks) >= 3, "each says its own value"
        seen.page.close()


def test_print_cuts_no_map_and_no_table(browser, tmp_path: Path) -> None:
    wide = incident(200, "nan", "stop", where="decoder.3.cross.q" * 6, message="m" * 300)
    runs = [
        make_run(
            tmp_path / f"a_run_with_quite_a_long_name_{n}", layers=60, steps=400, incidents=[wide]
        )
        for n in range(4)
    ]
    page_path = deepnet.write_report(runs, tmp_path / "r.html").path
    seen = visit(browser, page_path.as_uri(), width=703)  # A4 between its margins
    seen.page.emulate_media(media="print")
    seen.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    seen.page.wait_for_timeout(2000)
    cut = seen.page.evaluate(
        """() => [...document.querySelectorAll("table, .plot, .main-svg, .legend")].filter(e => e.checkVisibility())
        .filter(e => e.getBoundingClientRect().right > 704 || e.scrollWidth > e.clientWidth + 1 && e.tagName === "TABLE"
            || e.getBoundingClientRect().height > 1000 && e.tagName !== "TABLE")
        .map(e => `${e.tagName} ${e.id} ${e.className.baseVal ?? e.className}`)"""
    )
    assert cut == []
    kept_whole = seen.page.eval_on_selector_all(
        ".plot, tr", "all => all.map(e => getComputedStyle(e).breakInside)"
    )
    assert set(kept_whole) == {"avoid"}
    seen.page.close()
