import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepnet.config import build
from deepnet.data import text
from deepnet.data.cleaning import (
    Cleaning,
    CleaningConfig,
    CleaningCounts,
    drop_empty,
    index_sentences,
)
from deepnet.data.keys import normalise
from deepnet.data.text import write_rows
from deepnet.data.train_text import TrainText
from deepnet.data.workers import Workers
from deepnet.errors import ConfigError


@pytest.fixture(params=[1, 5_000], ids=["a block for each row", "one block"])
def clean(request, tmp_path, monkeypatch):
    """What a training part of some pairs keeps, and what it leaves out for which reason."""
    monkeypatch.setattr(text, "BLOCK_ROWS", request.param)

    def kept(pairs, held_out=(), **options):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        files, others = ([folder / f"{name}{side}" for side in (0, 1)] for name in "th")
        write_rows(pairs, files)
        write_rows(held_out, others)
        indexes = [index_sentences([file], file.with_suffix(".index")) for file in others]
        config = CleaningConfig(**options)
        cleaning = Cleaning(
            config, tuple(files), tuple(indexes) if held_out and config.drop_held_out else ()
        )
        train = TrainText(folder, ("source", "target"))
        with Workers(1) as workers:
            train.clean(cleaning, workers)
        rows = list(zip(train.sentences(0), train.sentences(1), strict=True))
        counts = train.counts
        assert counts.read == len(pairs)
        assert counts.kept == len(rows) == counts.read - sum(counts.dropped.values())
        return rows, dict(counts.dropped)

    return kept


def test_good_pairs_stay_as_they_are_without_outer_space(clean):
    kept, dropped = clean([(" Guten Tag . ", "Good day."), ("你好世界", "Hello world")])
    assert kept == [("Guten Tag .", "Good day."), ("你好世界", "Hello world")]
    assert dropped == {}


@pytest.mark.parametrize(
    ("pair", "options", "reason"),
    [
        (("", "text"), {}, "empty"),
        (("text", " \t"), {}, "empty"),
        (("a b c", "d e"), {"min_words": 3}, "too short"),
        (("a b c", "d"), {"max_words": 2}, "too long"),
        (("x" * 11, "y"), {"max_characters": 10}, "too long"),
        (("w" * 61, "v" * 10), {}, "length ratio"),
        (("Kein Test.", "Not seen"), {}, "in valid or test"),
        (("neu", "a test"), {}, "in valid or test"),
    ],
)
def test_each_reason(clean, pair, options, reason):
    kept, dropped = clean([pair], held_out=[("kein test", "A Test!")], **options)
    assert kept == []
    assert dropped == {reason: 1}


def test_short_pairs_have_no_ratio_and_ratio_counts_bytes(clean):
    assert clean([("Nein", "n"), ("你好世界你好世界", "x" * 60)])[1] == {}


def test_only_the_first_of_equal_pairs_stays(clean):
    pairs = [("a", "b"), ("a", "c"), ("a ", "b"), ("A", "b")]
    assert clean(pairs) == ([("a", "b"), ("a", "c"), ("A", "b")], {"duplicate": 1})
    assert len(clean(pairs, drop_duplicates=False)[0]) == 4


def test_held_out_sentences_may_stay_if_asked(clean):
    pairs = [("ein Test", "x")]
    assert clean(pairs, held_out=pairs, drop_held_out=False)[0] == pairs


def test_a_line_of_a_million_characters_is_dropped_quickly(clean):
    start = time.monotonic()
    _, dropped = clean([("a" * 1_000_000, "b"), ("a b " * 250_000, "c d")])
    assert dropped == {"too long": 2}
    assert time.monotonic() - start < 1


def test_untranslated_lines_of_a_test_part_are_counted():
    counts = CleaningCounts()
    kept = list(drop_empty([("a", ""), (" b", "c"), ("", "")], counts=counts))
    assert kept == [("b", "c")]
    assert counts.to_dict() == {"read": 3, "kept": 1, "dropped": {"empty": 2}}


def test_normalise_ignores_case_punctuation_and_width_only():
    first, second = normalise(["Straße, \uff21\uff22\uff23!", "strasse abc"])
    assert first == second
    assert len(set(normalise(["Tom's", "Toms house", "?!", "..."]))) == 4


@given(st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8"))))
def test_each_sentence_is_normalised_as_it_would_be_alone(sentences):
    assert normalise(sentences) == [_words(sentence) for sentence in sentences]


def _words(sentence):
    """The words of one sentence, character by character."""
    folded = unicodedata.normalize("NFKC", sentence).casefold()
    words = "".join(char if char.isalnum() else " " for char in folded).split(" ")
    return " ".join(word for word in words if word) or sentence.strip()


def test_impossible_config_names_the_field():
    with pytest.raises(ConfigError, match="min_words"):
        build(CleaningConfig, {"min_words": 5, "max_words": 3})


@pytest.mark.parametrize(
    ("fits", "does_not", "options", "reason"),
    [
        (("x" * 10, "y"), ("x", "y" * 11), {"max_characters": 10}, "too long"),
        (("a b", "c d"), ("a", "b c d"), {"max_words": 2}, "too long"),
        (("a b", "c d"), ("a b", "c"), {"min_words": 2}, "too short"),
        (("w" * 60, "v" * 10), ("v" * 10, "w" * 61), {}, "length ratio"),
        (("w" * 19, "v" * 3), ("w" * 20, "v" * 3), {}, "length ratio"),
    ],
)
def test_what_is_just_within_a_limit_stays(clean, fits, does_not, options, reason):
    assert clean([fits, does_not], **options) == ([fits], {reason: 1})


def test_where_a_sentence_ends_counts_for_duplicates(clean):
    pairs = [("ab", "c"), ("a", "bc")]
    assert clean(pairs) == (pairs, {})


def test_a_held_out_sentence_counts_on_its_own_side_only(clean):
    pairs = [("neu", "kein test"), ("a test", "new")]
    assert clean(pairs, held_out=[("kein test", "a test")]) == (pairs, {})


@pytest.mark.parametrize(("words", "kept"), [(4, 1), (5, 0), (6, 0), (12, 0)])
def test_words_of_one_letter_are_counted_too(clean, words, kept):
    text = " ".join("abcdefghijkl"[:words])
    rows, _ = clean([(text, text)], max_words=4)
    assert len(rows) == kept


@pytest.mark.parametrize(("letters", "kept"), [(4, 1), (5, 0)])
def test_the_ratio_counts_from_20_bytes_on_of_letters_of_four(clean, letters, kept):
    rows, _ = clean([("\N{GRINNING FACE}" * letters, "abcd")], max_ratio=3.0)
    assert len(rows) == kept
