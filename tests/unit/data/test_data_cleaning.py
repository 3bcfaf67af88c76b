import time

import pytest

from deepnet.config import build
from deepnet.data.cleaning import (
    CleaningConfig,
    CleaningCounts,
    HeldOut,
    clean,
    drop_empty,
    normalise,
)
from deepnet.errors import ConfigError


def _clean(pairs, held_out=(), **options):
    counts = CleaningCounts()
    kept = list(
        clean(
            pairs,
            config=CleaningConfig(**options),
            held_out=HeldOut.of(held_out),
            counts=counts,
        )
    )
    assert counts.read == len(pairs)
    assert counts.kept == len(kept) == counts.read - sum(counts.dropped.values())
    return kept, dict(counts.dropped)


def test_good_pairs_stay_as_they_are_without_outer_space():
    kept, dropped = _clean([(" Guten Tag . ", "Good day."), ("你好世界", "Hello world")])
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
def test_each_reason(pair, options, reason):
    kept, dropped = _clean([pair], held_out=[("kein test", "A Test!")], **options)
    assert kept == []
    assert dropped == {reason: 1}


def test_short_pairs_have_no_ratio_and_ratio_counts_bytes():
    assert _clean([("Nein", "n"), ("你好世界你好世界", "x" * 60)])[1] == {}


def test_only_the_first_of_equal_pairs_stays():
    pairs = [("a", "b"), ("a", "c"), ("a ", "b"), ("A", "b")]
    assert _clean(pairs) == ([("a", "b"), ("a", "c"), ("A", "b")], {"duplicate": 1})
    assert len(_clean(pairs, drop_duplicates=False)[0]) == 4


def test_held_out_sentences_may_stay_if_asked():
    pairs = [("ein Test", "x")]
    assert _clean(pairs, held_out=pairs, drop_held_out=False)[0] == pairs


def test_a_line_of_a_million_characters_is_dropped_quickly():
    start = time.monotonic()
    _, dropped = _clean([("a" * 1_000_000, "b"), ("a b " * 250_000, "c d")])
    assert dropped == {"too long": 2}
    assert time.monotonic() - start < 1


def test_untranslated_lines_of_a_test_part_are_counted():
    counts = CleaningCounts()
    kept = list(drop_empty([("a", ""), (" b", "c"), ("", "")], counts=counts))
    assert kept == [("b", "c")]
    assert counts.to_dict() == {"read": 3, "kept": 1, "dropped": {"empty": 2}}


def test_normalise_ignores_case_punctuation_and_width_only():
    assert normalise("Straße, \uff21\uff22\uff23!") == normalise("strasse abc")
    assert normalise("Tom's") != normalise("Toms house")
    assert normalise("?!") != normalise("...")


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
def test_what_is_just_within_a_limit_stays(fits, does_not, options, reason):
    assert _clean([fits, does_not], **options) == ([fits], {reason: 1})


def test_where_a_sentence_ends_counts_for_duplicates():
    pairs = [("ab", "c"), ("a", "bc")]
    assert _clean(pairs) == (pairs, {})


def test_a_held_out_sentence_counts_on_its_own_side_only():
    pairs = [("neu", "kein test"), ("a test", "new")]
    assert _clean(pairs, held_out=[("kein test", "a test")]) == (pairs, {})
