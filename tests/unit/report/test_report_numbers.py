"""The numbers of the page are those of the files: lines, maps, incidents, and what is thinned out of them."""

import base64
import json
import lzma
import math
import random
import zlib
from pathlib import Path

import numpy as np
import pytest
from made_runs import incident, make_run, reading, write_lines

from deepnet.report.folder import read_runs
from deepnet.report.page import Report, page_of, report_data
from deepnet.report.rounding import thinned


def data_of(*folders: Path) -> dict:
    return report_data(Report.of(read_runs(folders)))


def lines_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def cells_of(found: dict, place: str, *, run: int = 0) -> np.ndarray:
    """Decode as figures.js does, written again from the format's description."""
    part = found["runs"][run]
    scale = next(option["scale"] for option in found["options"] if option["place"] == place)
    raw = zlib.decompress(base64.b64decode(part["cells"][place]))
    planes = np.frombuffer(raw, dtype=np.uint8).reshape(2, -1).astype(int)
    levels = (planes[0] + 256 * planes[1]).reshape(-1, len(part["steps"]))
    shown = scale["low"] + (levels - 3) / 4092 * (scale["high"] - scale["low"])
    values = 10**shown if scale["log"] else shown
    special = {0: np.nan, 1: 0.0, 2: np.inf}
    return np.select([levels == level for level in special], list(special.values()), values)


@pytest.mark.parametrize(
    ("chart", "series", "key"),
    [
        ("loss", 0, "loss"),
        ("loss", 1, "validation_loss"),
        ("bleu", 0, "validation_bleu"),
        ("lr", 0, "lr"),
        ("gradient_norm", 0, "gradient_norm"),
        ("tokens_per_second", 0, "tokens_per_second"),
    ],
)
def test_lines_hold_the_records(tmp_path: Path, chart: str, series: int, key: str) -> None:
    run = make_run(tmp_path / "a")
    recorded = [r for r in lines_of(run / "metrics.jsonl") if key in r]
    found = data_of(run)["lines"][chart]["series"][series]
    assert found["steps"] == [r["step"] for r in recorded]
    assert found["values"] == pytest.approx([r[key] for r in recorded], rel=1e-5)


def test_the_test_score_stands_at_the_last_update(tmp_path: Path) -> None:
    star = data_of(make_run(tmp_path / "a"))["lines"]["bleu"]["series"][1]
    assert (star["steps"], star["values"], star["look"]) == ([40], [20.5], "star")


def test_model_update_and_theory_are_in_one_chart(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    read = lines_of(run / "probes.jsonl")
    logits, layer, theory = data_of(run)["lines"]["model_update"]["series"]
    assert logits["values"] == pytest.approx([r["model_update"]["output"][0] for r in read])
    assert layer["values"] == pytest.approx([r["model_update"]["decoder"][-1] for r in read])
    assert theory["values"] == pytest.approx([r["predicted_update"]["output"][0] for r in read])
    assert theory["look"] == "dotted"


def test_places_outside_the_layers_are_not_lost(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    found = data_of(run)["lines"]["outside-gradient_norm"]["series"][0]
    values = [r["gradient_norm"]["embedding"][0] for r in lines_of(run / "probes.jsonl")]
    assert (found["label"], found["values"]) == ("embedding", pytest.approx(values))


def test_every_map_holds_its_readings(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", layers=5)
    read, maps = lines_of(run / "probes.jsonl"), data_of(run)["maps"]
    compared = 0
    for probe in ("gradient_norm", "norm_input", "similarity", "sparsity", "branch_ratio",
                  "attention_entropy", "token_mean_energy", "update_ratio", "model_update", "step_update"):  # fmt: skip
        for place in (
            name for name in read[0][probe] if name.split(".")[0] in ("encoder", "decoder")
        ):
            found = maps[f"{probe}-{place.split('.')[0]}"]
            assert found["runs"][0]["steps"] == [r["step"] for r in read]
            written = np.array([r[probe][place] for r in read]).T
            np.testing.assert_allclose(cells_of(found, place), written, rtol=2e-3)
            compared += 1
    assert compared == 16 + 5 + 2 + 2 + 5 + 3 + 12 + 16 + 2 + 2


def test_all_weights_together_are_the_norm_over_roles(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    first = lines_of(run / "probes.jsonl")[0]["gradient_norm"]
    roles = [
        first[f"encoder.{name}"][1]
        for name in ("self.q", "self.k", "self.v", "self.out", "ffn.fc1", "ffn.fc2")
    ]
    found = cells_of(data_of(run)["maps"]["gradient_norm-encoder"], "together")
    assert found[1, 0] == pytest.approx(math.sqrt(sum(x * x for x in roles)), rel=2e-3)


def test_null_zero_and_missing_layers_stay_what_they_are(tmp_path: Path) -> None:
    """A null of a layer that has values elsewhere is not finite; a layer of nothing but nulls has no such site."""
    run = make_run(tmp_path / "a", probes=False)
    rows = [[1e-6, None, 10.0, None], [0.0, 0.5, 10.0, None], [1e-3]]
    records = [{"step": 10 * n, "sparsity": {"encoder.ffn": row}} for n, row in enumerate(rows)]
    write_lines(run / "probes.jsonl", records)
    found = data_of(run)["maps"]["sparsity-encoder"]
    assert found["options"][0]["scale"]["log"]
    nan, inf = math.nan, math.inf
    expected = np.array([[1e-6, 0.0, 1e-3], [inf, 0.5, nan], [10.0, 10.0, nan], [nan, nan, nan]])
    np.testing.assert_allclose(cells_of(found, "encoder.ffn"), expected, rtol=3e-3)


def test_one_layer_does_not_darken_the_others(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", probes=False)
    draw = np.random.default_rng(1)
    values = draw.uniform(1.0, 2.0, (500, 20))
    values[123] = 1e7
    records = [
        {"step": n, "norm_input": {"encoder.self": values[:, n].tolist()}} for n in range(20)
    ]
    write_lines(run / "probes.jsonl", records)
    found = data_of(run)["maps"]["norm_input-encoder"]
    scale = found["options"][0]["scale"]
    assert scale["log"]
    assert scale["darkest"] == pytest.approx(0.0, abs=0.01)
    assert scale["brightest"] < math.log10(10.0), "the colours are for the 499"
    np.testing.assert_allclose(cells_of(found, "encoder.self"), values, rtol=3e-3)


def test_a_tenth_of_the_layers_is_seen_whatever_the_others_are(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", probes=False)
    column = [1e-5] * 6 + [1.0 + 0.001 * n for n in range(44)]
    write_lines(run / "probes.jsonl", [{"step": 1, "norm_input": {"encoder.self": column}}])
    scale = data_of(run)["maps"]["norm_input-encoder"]["options"][0]["scale"]
    assert scale["darkest"] == pytest.approx(-5.0)


def test_packed_readings_are_read_as_plain_ones(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    plain = data_of(run)["maps"]
    for name in ("probes.jsonl", "metrics.jsonl"):
        packed = lzma.compress((run / name).read_bytes())
        (run / f"{name}.xz").write_bytes(packed)
        (run / name).unlink()
    read = read_runs([run])[0]
    assert len(read.metrics) == 4
    assert data_of(run)["maps"] == plain
    assert "depth" not in read.notes
    (run / "probes.jsonl.xz").write_bytes(packed[: len(packed) // 2])
    assert "probes.jsonl.xz cannot be read: damaged" in read_runs([run])[0].notes["depth"][0]


def test_a_probe_of_the_future_is_shown_too(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", probes=False)
    write_lines(run / "probes.jsonl", [{"step": 1, "new_probe": {"encoder.ffn": [1.0, 2.0]}}])
    assert data_of(run)["maps"]["new_probe-encoder"]["title"] == "New probe"


def test_equal_colours_are_equal_values_in_all_runs(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, probes=False) for name in ("a", "b")]
    for run, value in zip(runs, (1.0, 3.0), strict=True):
        write_lines(
            run / "probes.jsonl", [{"step": 1, "norm_input": {"encoder.self": [value, 2.0]}}]
        )
    found = data_of(*runs)["maps"]["norm_input-encoder"]
    scale = found["options"][0]["scale"]
    assert (scale["low"], scale["high"], scale["log"]) == (1.0, 3.0, False)
    assert (scale["darkest"], scale["brightest"]) == (1.0, 3.0)
    assert cells_of(found, "encoder.self", run=1)[:, 0] == pytest.approx([3.0, 2.0], abs=1e-3)


def test_what_going_back_undid_is_a_line_of_its_own_and_its_columns_are_replaced(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "a", probes=False)
    steps = [10, 20, 30, 20, 30]
    write_lines(run / "metrics.jsonl", [{"step": s, "loss": float(n)} for n, s in enumerate(steps)])
    write_lines(
        run / "probes.jsonl",
        [{"step": s, "norm_input": {"encoder.self": [float(n)]}} for n, s in enumerate(steps)],
    )
    data = data_of(run)
    stands, undone = data["lines"]["loss"]["series"]
    assert (stands["steps"], stands["values"]) == ([10, 20, 30], [0.0, 3.0, 4.0])
    assert (undone["steps"], undone["values"]) == ([10, 20, 30], [0.0, 1.0, 2.0])
    assert undone["look"] == "undone"
    found = data["maps"]["norm_input-encoder"]
    assert found["runs"][0]["steps"] == [10, 20, 30]
    np.testing.assert_allclose(cells_of(found, "encoder.self"), [[0.0, 3.0, 4.0]], atol=1e-3)


def test_the_last_steps_before_going_back_stay_where_nothing_else_is_recorded(
    tmp_path: Path,
) -> None:
    """The guard takes what it undid out of metrics.jsonl; the incident's file has its last 50 updates."""
    back = incident(35, "spike", "roll_back", back_to=20)
    run = make_run(tmp_path / "a", incidents=[back, incident(39)])
    series = data_of(run)["lines"]["loss"]["series"]
    undone = [one for one in series if one["look"] == "undone"]
    assert [one["steps"] for one in undone] == [list(range(21, 36))]
    assert undone[0]["values"][:2] == pytest.approx([7.20, 7.21])
    write_lines(run / "undone.jsonl", [{"step": 30, "loss": 6.5}, {"step": 40, "loss": 6.25}])
    (undone,) = [one for one in data_of(run)["lines"]["loss"]["series"] if one["look"] == "undone"]
    assert (undone["steps"], undone["values"]) == ([30, 40], [6.5, 6.25])


def test_a_single_zero_does_not_forbid_a_logarithmic_axis(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", probes=False)
    for zeros, starts_log in ((0, True), (1, True), (20, False)):
        values = [0.0] * zeros + [10.0 ** -(n % 5) for n in range(20)]
        records = [{"step": n, "gradient_norm": v} for n, v in enumerate(values, start=1)]
        write_lines(run / "metrics.jsonl", records)
        assert data_of(run)["lines"]["gradient_norm"]["log"] is starts_log


def test_the_page_knows_tokens_and_time_at_each_update(tmp_path: Path) -> None:
    clock = data_of(make_run(tmp_path / "a"))["runs"][0]["clock"]
    assert clock["steps"] == [0, 10, 20, 30, 40]
    assert clock["tokens"] == [0, 9000, 18000, 27000, 36000]
    assert clock["seconds"] == pytest.approx([0, 3, 6, 9, 12])


def test_what_the_probes_read_at_an_incident_is_a_column_of_the_maps(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", layers=2, incidents=[incident(33), incident(37, back_to=20)])
    for number, value in ((1, 5.0), (2, 7.0)):
        path = run / "incidents" / f"000{number}.json"
        probes = {"norm_input": {"encoder.self": [value, None]}}
        path.write_text(json.dumps({**json.loads(path.read_text()), "probes": probes}))
    found = data_of(run)["maps"]["norm_input-encoder"]
    assert found["runs"][0]["steps"] == [10, 20, 30, 33, 40], "37 was undone"
    assert cells_of(found, "encoder.self")[:, 3] == pytest.approx([5.0, math.inf], rel=1e-3)


def test_thinned_lines_keep_their_spikes(tmp_path: Path) -> None:
    values = [1.0 + 0.001 * (n % 7) for n in range(40_000)]
    values[12_345], values[23_456], values[30_000] = 99.0, 0.01, math.nan
    kept = thinned(values, 1500)
    assert {0, 12_345, 23_456, 30_000, 39_999} <= set(kept)
    assert kept == sorted(kept)
    assert len(kept) < 1500
    assert thinned(values[:1500], 1500) == list(range(1500))
    run = make_run(tmp_path / "a", probes=False)
    write_lines(
        run / "metrics.jsonl", [{"step": n, "loss": v} for n, v in enumerate(values[:6000])]
    )
    chart = data_of(run)["lines"]["loss"]
    left_out = 6000 - len(chart["series"][0]["values"])
    assert f"{left_out:,} points are not drawn" in chart["notes"][0]


def test_incidents_and_their_last_steps(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", incidents=[incident(30, "spike", "roll_back", back_to=20)])
    data = data_of(run)
    (shown,) = data["incidents"]
    assert (shown["run"], shown["step"], shown["kind"]) == (0, 30, "spike")
    assert shown["action"] == "rolled back to update 20"
    assert shown["where"] == "encoder layer 2, feed-forward, fc1"
    assert (shown["stack"], shown["layer"]) == ("encoder", 2)
    window = json.loads((run / "incidents" / "0001.json").read_text())
    loss = data["lines"]["incident-0-0-loss"]["series"][0]
    assert (loss["steps"], loss["values"]) == (window["steps"], window["loss"])
    found = data["maps"]["incident-0-0-gradient_norm-encoder"]
    assert [option["place"] for option in found["options"]] == ["together", "encoder.ffn.fc1"]
    written = np.array(window["gradient"]["encoder.ffn.fc1"]).T
    np.testing.assert_allclose(cells_of(found, "encoder.ffn.fc1"), written, rtol=2e-3)
    inputs = data["maps"]["incident-0-0-norm_input-encoder"]["options"]
    assert [option["place"] for option in inputs] == ["encoder.ffn"]


def test_a_thousand_layers_of_noise_fit_into_five_megabytes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "deep", layers=500, incidents=[incident(33)], probes=False)
    draw = np.random.default_rng(1)
    shape = reading(1, 2, random.Random(1))
    write_lines(run / "probes.jsonl", [noise(step, shape, draw) for step in range(1, 71)])
    report = Report.of(read_runs([run]))
    assert len(page_of(report)) < 5_000_000
    maps = {one.key: one.runs[0] for one in report.maps}
    assert maps["gradient_norm-decoder"].layers == maps["norm_input-encoder"].layers == 500
    steps = maps["gradient_norm-decoder"].steps
    assert len(steps) >= 40
    assert {1, 32, 33, 70} <= set(steps), "the ends and both sides of the incident"
    assert f"{len(steps)} of 70 readings are drawn" in page_of(report)


def test_twelve_incidents_at_a_thousand_layers_fit_too(tmp_path: Path) -> None:
    incidents = [incident(10 * n, where="decoder.321.cross.q") for n in range(6, 18)]
    run = make_run(tmp_path / "deep", layers=500, incidents=incidents, probes=False)
    draw = np.random.default_rng(1)
    shape = reading(1, 2, random.Random(1))
    write_lines(run / "probes.jsonl", [noise(step, shape, draw) for step in range(1, 181, 3)])
    report = Report.of(read_runs([run]))
    page = page_of(report)
    assert len(page) < 5_000_000
    assert len(report.windows) == 12
    for window in report.windows:
        steps = window.maps[0].runs[0].steps
        last = window.incident.step
        assert {last - 49, last - 1, last} <= set(steps), "the first, the last and the one before"
        assert all(part.layers == 500 for one in window.maps for part in one.runs)
    assert "The maps of 12 incidents leave out some of the earlier steps" in page


def noise(step: int, shape: dict, draw: np.random.Generator) -> dict:
    """Return a reading of the same places with 500 layers of values that no packing can make smaller."""
    probes = {probe: places for probe, places in shape.items() if probe != "step"}
    return {
        "step": step,
        **{
            probe: {place: draw.lognormal(0, 1, 500).round(5).tolist() for place in places}
            for probe, places in probes.items()
        },
    }
