"""`deepnet report` on real runs: a finished one, one that is interrupted, and a served one until Ctrl-C."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from deepnet.record import read_jsonl


def test_the_report_of_a_real_run(cli, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    result = cli("report", finished, "--out", out)
    assert result.code == 0, result.err
    assert str(out) in result.out
    page = out.read_text(encoding="utf-8")
    best = min(
        r["validation_loss"]
        for r in read_jsonl(finished / "metrics.jsonl")
        if "validation_loss" in r
    )
    assert f"Best validation loss {best:.4g} at update" in page
    assert "deepnorm, 2 + 2 layers of width 16" in page
    assert "training.max_steps = 30 was reached" in page
    translations = (finished / "outputs" / "test.translation.txt").read_text().splitlines()
    assert translations[len(translations) // 16] in page


def test_json_for_machines(cli, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    result = json.loads(cli("report", finished, "--out", out, "--json").out)
    assert result["report"] == str(out)
    assert result["bytes"] == out.stat().st_size
    assert result["runs"] == ["finished"]


def test_what_is_missing_is_said(cli, finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(
        finished, run, ignore=shutil.ignore_patterns("outputs", "bundle", "probes.jsonl")
    )
    result = cli("report", run)
    assert result.code == 0, result.err
    assert "no outputs/test.translation.txt" in result.out
    assert "no probes.jsonl" in result.out
    assert (run / "report.html").exists()
    assert cli("train", run, "--out", run).code == 2, (
        "a report in it does not make a run's folder free"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["{empty}"], 2, "holds no run"),
        (["{empty}/nowhere"], 2, "holds no run"),
        (["{run}", "--port", "1"], 2, "--port has no effect without --watch"),
        (["{run}", "--watch", "--out", "x.html"], 2, "--out has no effect with --watch"),
        (["{run}", "--watch", "--json"], 2, "--json has no effect with --watch"),
        (["{run}", "--out", "{empty}/nowhere/x.html"], 1, "cannot write"),
    ],
)
def test_wrong_use(cli, finished: Path, tmp_path: Path, arguments, code, message) -> None:
    filled = [text.format(empty=tmp_path, run=finished) for text in arguments]
    result = cli("report", *filled)
    assert result.code == code
    assert message in result.err


def test_watching_until_ctrl_c(finished: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "deepnet", "report", finished, "--watch", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    first = process.stdout.readline()
    url = re.search(r"http://127\.0\.0\.1:\d+/", first)[0]
    with urllib.request.urlopen(url) as answer:
        assert b"Run finished" in answer.read()
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=20)
    assert process.returncode == 0, error
    assert error == ""
