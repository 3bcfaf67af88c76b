"""What the page says of whole, unfinished, old and hostile run folders, and that it asks nothing of any network."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from made_runs import incident, make_run, write, write_lines

import deepnet
from deepnet.bundle import model_tensors, write_tensors
from deepnet.errors import ConfigError, DataError
from deepnet.lock import locked_folder
from deepnet.report.folder import distinct_names, read_runs
from deepnet.report.page import ASSETS, Report, main_of, page_of, styles_of
from deepnet.report.summary import summary_of

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


class Outline(HTMLParser):
    """Every tag with its attributes, and the text of the scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "script" and self.cdata_elem == "script":
            self.scripts[-1] += data


def page_for(*folders: Path) -> str:
    return page_of(Report.of(read_runs(folders)))


def text_for(*folders: Path) -> str:
    main = main_of(Report.of(read_runs(folders)))
    return " ".join(re.sub(r"<[^>]*>", " ", main).split())


def test_nothing_is_loaded_from_anywhere(tmp_path: Path) -> None:
    outline = Outline(page_for(make_run(tmp_path / "a", incidents=[incident(20)])))
    for tag, attributes in outline.tags:
        assert tag not in ("link", "iframe", "object", "embed", "img", "base")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)
    for style in ASSETS.glob("*.css"):
        assert "@import" not in style.read_text()
        assert "url(" not in style.read_text()


def test_only_the_scripts_that_were_written_may_run(tmp_path: Path) -> None:
    outline = Outline(page_for(make_run(tmp_path / "a")))
    policy = next(a["content"] for t, a in outline.tags if t == "meta" and "http-equiv" in a)
    data, *scripts = outline.scripts
    digests = [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts]
    assert re.findall(r"'sha256-(.*?)'", policy) == digests
    assert len(digests) == 2
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert json.loads(data)["runs"][0]["name"] == "a"


def test_the_drawing_library_is_the_recorded_one() -> None:
    record = json.loads((ASSETS / "plotly.json").read_text())
    content = (ASSETS / record["file"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == record["sha256"]
    assert f"v{record['version']}\n".encode() in content[:200]
    assert b"</script" not in content
    assert "Permission is hereby granted" in (ASSETS / "plotly.LICENSE").read_text()


def test_its_licence_goes_with_every_page(tmp_path: Path) -> None:
    page = page_for(make_run(tmp_path / "a"))
    assert "Permission is hereby granted, free of charge" in page


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    texts = {name: [HOSTILE, "b", "c"] for name in ("source", "reference", "translation")}
    evil = incident(20, kind=HOSTILE, action=HOSTILE, where=HOSTILE, message=HOSTILE)
    run = make_run(
        tmp_path / "<script>alert(0)<" / HOSTILE.replace("/", "\u2215"),
        scheme=HOSTILE, sentences=texts, incidents=[evil],
    )  # fmt: skip
    write(run / "environment.json", {HOSTILE: HOSTILE})
    plain = Outline(page_for(make_run(tmp_path / "plain", incidents=[incident(20)])))
    outline = Outline(page_for(run, run.parent.parent / "plain"))
    assert len(outline.scripts) == len(plain.scripts) == 3
    assert not any(tag == "img" or "onerror" in attributes for tag, attributes in outline.tags)
    assert HOSTILE in json.loads(outline.scripts[0])["incidents"][0]["where"]


def test_a_reference_out_of_the_run_folder_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    write(secret, {"steps": [1], "loss": [123.456]})
    run = make_run(tmp_path / "a")
    write_lines(run / "incidents.jsonl", [{**incident(20), "details": "../secret.json"}])
    page = page_for(run)
    assert "123.456" not in page
    assert "../secret.json is not in the run folder" in page


def test_a_finished_run_in_a_paragraph(tmp_path: Path) -> None:
    summary = summary_of(read_runs([make_run(tmp_path / "a", layers=18, steps=2000)])[0])
    for words in (
        "deepnorm, 18 + 18 layers of width 16",
        "2,000 updates, 1.8 million target tokens, 10 min 00 s",
        "Finished: training.max_steps = 2,000 was reached.",
        "at update 2,000.",
        "Test part: BLEU 20.5, chrF 41.2 over 40 sentences.",
    ):
        assert words in summary


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", finished=False)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 50, "lo')
    with locked_folder(run):
        text = text_for(run)
    assert "Going on: 100% done." in text
    assert "damaged" not in text
    assert (
        "no outputs/test.translation.txt: the test part is translated when training has ended"
        in text
    )


def test_a_run_that_stopped_without_a_model(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", finished=False)
    assert "Ended without a finished model" in text_for(run)
    guarded = make_run(tmp_path / "b", finished=False, incidents=[incident(30, action="stop")])
    assert "Stopped by the guard at update 30." in text_for(guarded)


def test_what_is_missing_is_said_with_how_to_get_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", finished=False, probes=False)
    (run / "environment.json").unlink()
    (run / "metrics.jsonl").unlink()
    text = text_for(run)
    for words in (
        "no metrics.jsonl", "train with probes.every=100", "no incidents.jsonl", "no environment.json",
        "no outputs/test.translation.txt", "Nothing is recorded yet.",
    ):  # fmt: skip
        assert words in text


def test_damaged_files_cost_their_own_part_only(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    metrics = run / "metrics.jsonl"
    metrics.write_text('not json\n[1]\n{"loss": 1.0}\n{"step": true}\n' + metrics.read_text())
    (run / "environment.json").write_text("{")
    (run / "outputs" / "test.source.txt").write_text("one line\n")
    text = text_for(run)
    assert "4 damaged lines of metrics.jsonl are left out" in text
    assert "environment.json cannot be read" in text
    assert "different numbers of lines" in text
    assert "40 updates" in text


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run"):
        deepnet.write_report(tmp_path)
    with pytest.raises(ConfigError, match="at least one"):
        deepnet.write_report([])
    (tmp_path / "recipe.json").write_text('{"format_version": 1, "recipe": []}')
    with pytest.raises(DataError, match="has no recipe"):
        deepnet.write_report(tmp_path)


def test_where_the_page_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    written = deepnet.write_report(one)
    assert written.path == one / "report.html"
    assert written.path.stat().st_size == written.num_bytes
    assert deepnet.write_report([one, two]).path.resolve() == tmp_path / "report.html"
    assert deepnet.write_report(one, tmp_path / "c.html").path == tmp_path / "c.html"


def test_runs_side_by_side_show_what_differs_first(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, scheme=name) for name in ("post_ln", "deepnorm")]
    section = (
        main_of(Report.of(read_runs(runs))).partition('id="recipe"')[2].partition("<details")[0]
    )
    assert re.findall(r'<th scope="row">(.*?)</th>', section) == ["scheme.name"]
    same = text_for(runs[0], runs[0])
    assert "The recipes are the same." in same


def test_names_tell_runs_apart() -> None:
    paths = [Path(text) for text in ("/r/seed1/deepnorm", "/r/seed2/deepnorm", "/r/seed1/post_ln")]
    assert distinct_names(paths) == ["seed1/deepnorm", "seed2/deepnorm", "seed1/post_ln"]
    assert distinct_names([paths[0]]) == ["deepnorm"]
    assert distinct_names([paths[0], paths[0]]) == ["deepnorm", "deepnorm"]


def test_runs_differ_without_colour() -> None:
    looks = {(style.dash, style.symbol) for style in styles_of(12)}
    assert len(looks) == 12


def test_translations_of_the_same_text_stand_together(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name) for name in ("a", "b")]
    other = {name: ["Hallo .", "Ja ."] for name in ("source", "reference", "translation")}
    runs.append(make_run(tmp_path / "c", sentences=other))
    main = main_of(Report.of(read_runs(runs)))
    assert main.count("A sentence 2 .") == 2
    assert main.count(">Satz 2 .<") == 1
    assert "8 of the 40 sentences" in main
    assert "2 of the 2 sentences" in main


def test_every_chart_has_words_and_every_control_a_name(tmp_path: Path) -> None:
    tags = Outline(page_for(make_run(tmp_path / "a", incidents=[incident(20)]))).tags
    ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    plots = [attributes for _, attributes in tags if attributes.get("class") == "plot"]
    assert len(plots) > 25
    for plot in plots:
        assert plot["tabindex"] == "0"
        assert set(plot["aria-describedby"].split()) <= set(ids)
    headings = [int(tag[1]) for tag, _ in tags if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(headings))
    names = {tag for tag, _ in tags}
    assert {"header", "nav", "main", "footer"} <= names


def test_parameters_are_counted_in_the_model_file(tmp_path: Path, make_model) -> None:
    run = make_run(tmp_path / "a", finished=False)
    assert read_runs([run])[0].parameters is None
    model = make_model()
    (run / "checkpoints" / "step_00000010").mkdir(parents=True)
    write_tensors(run / "checkpoints" / "step_00000010" / "model.safetensors", model_tensors(model))
    assert read_runs([run])[0].parameters == sum(p.numel() for p in model.parameters())


def test_loops_stand_behind_the_layers(tmp_path: Path) -> None:
    (run,) = read_runs([make_run(tmp_path / "a", layers=6)])
    run.recipe["model"]["loops"] = 3
    assert "deepnorm, 6 + 6 layers x 3 of width 16" in summary_of(run)
