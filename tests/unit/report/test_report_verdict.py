"""What a report says first: how a run stands, what happened, where, when, what was done, and why."""

import json
import re
from pathlib import Path

import pytest
from made_runs import incident, make_run, write, write_lines

from deepnet.lock import locked_folder
from deepnet.report.folder import read_runs
from deepnet.report.page import Report, main_of
from deepnet.report.places import blamed_of
from deepnet.report.verdict import Verdict

KEPT = Path(__file__).resolve().parents[3] / "results"


def verdict_for(run: Path) -> Verdict:
    return Report.of(read_runs([run])).verdicts[0]


def set_losses(run: Path, losses: list[float | None]) -> None:
    write_lines(
        run / "metrics.jsonl",
        [{"step": n, "loss": loss} for n, loss in enumerate(losses, start=1)],
    )


@pytest.mark.parametrize(
    ("finished", "incidents", "badge"),
    [
        (True, [], "finished"),
        (True, [incident(20, "spike", "warn")], "finished, with incidents"),
        (False, [incident(20, "nan", "stop")], "diverged"),
        (False, [incident(10, "spike", "warn"), incident(20, "explosion", "stop")], "diverged"),
        (False, [incident(20, "plateau", "stop")], "did not learn"),
        (False, [], "interrupted"),
        (False, [incident(20, "spike", "stop")], "interrupted"),
        (False, [incident(20, "nan", "skip")], "interrupted"),
    ],
)
def test_badges(tmp_path: Path, finished: bool, incidents: list[dict], badge: str) -> None:
    run = make_run(tmp_path / "a", finished=finished, incidents=incidents)
    assert verdict_for(run).badge == badge
    with locked_folder(run):
        assert verdict_for(run).badge == "running"


@pytest.mark.parametrize(
    ("losses", "badge"),
    [
        ([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.5], "finished"),
        ([8.0, 7.0, 6.0, 5.0, 4.0, 7.0, 7.5, 8.0], "diverged"),
        ([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, None], "diverged"),
        ([8.0, 7.0, 6.0, 9.0, 4.0, 3.0, 2.5], "finished"),
        ([8.0, 7.99, 8.01, 8.0, 7.98, 7.97, 7.99], "did not learn"),
    ],
)
def test_the_losses_tell_where_the_guard_does_not(
    tmp_path: Path, losses: list[float | None], badge: str
) -> None:
    run = make_run(tmp_path / "a")
    set_losses(run, losses)
    verdict = verdict_for(run)
    assert verdict.badge == badge
    assert verdict.link == ("" if badge == "finished" else "chart-loss")


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize(
    ("losses", "badge"),
    [
        ([8.0, 7.0, 6.0, 5.0, 4.0, 7.0, 7.5, 8.0], "diverged"),
        ([8.0, 6.0, 4.0, 3.0, 2.0, 2.1, 2.2, 2.1], "finished"),
        ([8.0, 8.1, 7.9, 8.0, 8.2, 8.0, 8.1, 8.0], "did not learn"),
        ([8.0, 8.1, 7.9, 8.0, 9.2, 9.5, 9.6, 9.7], "diverged"),
    ],
)
def test_a_loss_of_any_unit_tells_the_same(
    tmp_path: Path, unit: float, losses: list[float], badge: str
) -> None:
    run = make_run(tmp_path / "a")
    set_losses(run, [unit * loss for loss in losses])
    assert verdict_for(run).badge == badge


def test_a_plateau_that_nothing_was_done_about(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", incidents=[incident(2, "plateau", "warn", where="decoder.1")])
    set_losses(run, [8.0, 8.0, 7.0, 6.0, 5.6, 5.6, 5.6])
    assert verdict_for(run).badge == "did not learn"
    set_losses(run, [8.0, 8.0, 7.0, 6.0, 3.0, 2.5, 2.4])
    assert verdict_for(run).badge == "finished, with incidents", "it learned all the same"


def test_a_translator_that_translates_nothing_did_not_learn(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    write(run / "outputs" / "test.scores.json", {"bleu": 0.004, "chrf": 5.0, "sentences": 40})
    assert verdict_for(run).badge == "did not learn"


@pytest.mark.parametrize(
    ("name", "badge"),
    [
        ("report/post_ln", "did not learn"),
        ("report/deepnorm", "finished"),
        ("report/branchnorm", "finished"),
        ("report/demo", "finished, with incidents"),
        ("report/deepnorm_500", "finished, with incidents"),
        ("demo/first/seed1/post_ln", "did not learn"),
        ("demo/second/seed11/deepnorm", "finished"),
        ("multi30k_de_en/seed1", "finished"),
    ],
)
def test_the_runs_that_the_repository_keeps(name: str, badge: str) -> None:
    assert verdict_for(KEPT / name).badge == badge


def test_what_where_when_and_what_was_done(tmp_path: Path) -> None:
    fatal = incident(
        30,
        "nan",
        "stop",
        where="decoder.3.cross.q",
        message="loss nan, gradient norm nan: not finite",
    )
    run = make_run(tmp_path / "a", finished=False, incidents=[incident(20, "spike", "warn"), fatal])
    verdict = verdict_for(run)
    assert verdict.headline == ("Not a number in decoder layer 3, cross-attention, q at update 30")
    assert dict(verdict.facts)["Where"] == "decoder layer 3, cross-attention, q"
    assert dict(verdict.facts)["When"] == "update 30 of 40"
    assert dict(verdict.facts)["Done"] == "stopped"
    assert verdict.cause == "Loss nan, gradient norm nan: not finite."
    assert (verdict.link, verdict.others) == ("incident-0-1", 1)
    main = main_of(Report.of(read_runs([run])))
    first = main.partition('id="training"')[0]
    assert 'href="#incident-0-1"' in first
    assert "and 1 other" in first
    assert re.search(r'<details class="window" id="incident-0-1" open>', main)
    assert '<details class="window" id="incident-0-0">' in main


def test_the_gravest_kind_is_told_first_and_the_first_of_it(tmp_path: Path) -> None:
    kinds = ("spike", "explosion", "nan", "nan", "spike")
    found = [incident(5 * n, kind, "skip") for n, kind in enumerate(kinds, start=1)]
    assert verdict_for(make_run(tmp_path / "a", incidents=found)).link == "incident-0-2"


def test_what_fired_is_the_cause_where_it_is_recorded(tmp_path: Path) -> None:
    recorded = incident(
        20, "spike", "roll_back", back_to=10, sign="norm_input", value=31.25, limit=8.0,
        measure="root mean square of what enters the norm of encoder.2.ffn",
        limit_from="4 times the highest of the 19 updates before", found_by="where it was measured",
    )  # fmt: skip
    run = make_run(tmp_path / "a", incidents=[recorded])
    verdict = verdict_for(run)
    assert verdict.cause == (
        "Root mean square of what enters the norm of encoder.2.ffn: 31.25; the limit was 8, "
        "4 times the highest of the 19 updates before."
    )
    assert dict(verdict.facts)["Done"] == "rolled back to update 10"
    assert "The place: where it was measured." in main_of(Report.of(read_runs([run])))


def test_an_incident_beyond_those_drawn_is_linked_in_the_table(tmp_path: Path) -> None:
    many = [incident(n, "spike", "warn") for n in range(1, 15)] + [incident(20, "nan", "skip")]
    run = make_run(tmp_path / "a", incidents=many)
    assert verdict_for(run).link == "row-incident-0-14"
    assert 'id="row-incident-0-14"' in main_of(Report.of(read_runs([run])))


@pytest.mark.parametrize(
    ("where", "words", "layer"),
    [
        ("encoder.3.ffn.fc1", "encoder layer 3, feed-forward, fc1", 3),
        ("decoder.1", "decoder layer 1", 1),
        ("decoder.1,200.self", "decoder.1,200.self", None),
        ("embedding", "embedding", None),
        ("h.3.mlp.weight", "h.3.mlp.weight", None),
        (None, "", None),
        (7, "", None),
    ],
)
def test_places(where: object, words: str, layer: int | None) -> None:
    blamed = blamed_of(where)
    assert (blamed.words, blamed.layer) == (words, layer)


def test_a_window_without_last_steps_has_profiles_of_the_readings(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", incidents=[incident(20, "spike", "warn")])
    (run / "incidents" / "0001.json").write_text(json.dumps({}))
    main = main_of(Report.of(read_runs([run])))
    assert re.findall(r'data-profile="(.*?)"', main) == [
        "gradient_norm-encoder", "gradient_norm-decoder", "norm_input-encoder", "norm_input-decoder"
    ]  # fmt: skip
    (run / "probes.jsonl").unlink()
    assert 'class="window"' not in main_of(Report.of(read_runs([run])))
