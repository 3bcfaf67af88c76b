"""`deepnet translate` and `deepnet score`: lines in, lines out, in order."""

import json
import math

import pytest

TEXT = "der hund sieht der mann .\n\nkatze .\nder rote baum und der hund .\n"


@pytest.fixture
def translated(cli, finished):
    result = cli("translate", finished, stdin=TEXT.encode())
    assert result.code == 0, result.err
    return result.out.splitlines()


def test_as_many_lines_as_came_in_and_blank_ones_stay_blank(translated):
    assert len(translated) == 4
    assert translated[1] == ""


def test_neither_reading_ahead_nor_order_changes_a_translation(cli, finished, translated):
    one_by_one = cli("translate", finished, "--chunk-lines", 1, stdin=TEXT.encode())
    assert one_by_one.out.splitlines() == translated
    turned = "".join(reversed(TEXT.splitlines(keepends=True)))
    result = cli("translate", finished, stdin=turned.encode())
    assert result.out.splitlines() == translated[::-1]


def test_an_ensemble_of_equal_models_is_that_model(cli, finished, translated):
    result = cli("translate", finished, finished / "bundle", stdin=TEXT.encode())
    assert result.out.splitlines() == translated


def test_n_best_lists_are_numbered_and_best_first(cli, finished, translated):
    result = cli("translate", finished, "--n-best", 2, stdin=TEXT.encode())
    rows = [line.split(" ||| ") for line in result.out.splitlines()]
    assert [row[0] for row in rows] == ["0", "0", "1", "2", "2", "3", "3"]
    assert float(rows[0][2]) >= float(rows[1][2])
    assert rows[0][1] == translated[0]


def test_settings_come_from_the_recipe_and_can_be_changed(cli, finished):
    shown = [
        cli("translate", finished, *options, "--n-best", 2, stdin=b"der hund .").out.splitlines()
        for options in ((), ("--beam-size", "2"), ("decoding.length_penalty=0",))
    ]
    assert shown[0] == shown[1]
    assert shown[0] != shown[2]


def test_sampling_needs_no_beam_to_be_unset(cli, finished):
    commands = [
        ("translate", finished, "decoding.method=sampling", f"decoding.seed={seed}")
        for seed in (1, 1, 2)
    ]
    first, again, other = (cli(*command, stdin=TEXT.encode()).out for command in commands)
    assert first == again != other


def test_json_is_one_object_per_line(cli, finished, translated):
    result = cli("translate", finished, "--json", stdin=TEXT.encode())
    objects = [json.loads(line) for line in result.out.splitlines()]
    assert [found["translations"][0]["text"] for found in objects] == translated
    assert objects[0]["translations"][0]["log_probability"] < 0
    assert objects[1]["translations"] == [{"text": "", "score": None, "log_probability": None}]


def test_standard_input_that_is_not_utf_8(cli, finished):
    result = cli("translate", finished, stdin=b"gut\nb\xe4r\n")
    assert result.code == 1
    assert result.err.startswith("error: standard input, line 2: byte 2 of the line (0xe4)")


def test_a_sentence_too_long_for_the_model_is_named(cli, finished):
    result = cli("translate", finished, "decoding.max_tokens=9", stdin=b"der .\n" + b"hund " * 50)
    assert result.code == 1
    assert result.err.startswith("error: line 2 has ")


def test_forced_scores(cli, finished, tmp_path):
    (tmp_path / "a.de").write_text("der hund .\nder mann .\n")
    (tmp_path / "a.en").write_text("the dog .\nthe man .\n")
    files = ("--source", tmp_path / "a.de", "--target", tmp_path / "a.en")
    result = cli("score", finished, *files)
    assert result.code == 0
    rows = [[float(text) for text in line.split("\t")] for line in result.out.splitlines()]
    assert len(rows) == 2
    for score, log_probability, tokens in rows:
        assert log_probability < -tokens * math.log(36) / 4
        assert score == pytest.approx(log_probability / tokens, abs=1e-5)
    plain = cli("score", finished, *files, "decoding.length_penalty=0", "--json")
    objects = [json.loads(line) for line in plain.out.splitlines()]
    for found, (_, log_probability, tokens) in zip(objects, rows, strict=True):
        assert (
            found["score"] == found["log_probability"] == pytest.approx(log_probability, abs=1e-5)
        )
        assert found["num_tokens"] == tokens


def test_forced_scores_need_equally_many_lines(cli, finished, tmp_path):
    (tmp_path / "a.de").write_text("der hund .\nder mann .\n")
    (tmp_path / "a.en").write_text("the dog .\n")
    result = cli("score", finished, "--source", tmp_path / "a.de", "--target", tmp_path / "a.en")
    assert result.code == 1
    assert "has 2 lines and" in result.err
