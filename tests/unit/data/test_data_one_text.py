"""A text without translations: which recipe keys mean it, and what its preparation keeps, leaves out and counts."""

import random

import pytest

from deepnet.config import build
from deepnet.data.cleaning import CleaningConfig
from deepnet.data.prepare import prepare
from deepnet.data.sources import DataConfig
from deepnet.data.tokenizer import TokenizerConfig
from deepnet.errors import ConfigError, DataError
from deepnet.pipeline.recipe import parse_recipe

NAMES = ["Hund", "Baum", "Vogel", "Zug", "Garten", "Kuchen", "Berg", "Stuhl", "Brief", "Fluss"]


def _lines(size=400):
    draw = random.Random(0)
    return [
        f"Der {draw.choice(NAMES)} kostet {n} Euro." for n in draw.sample(range(10**4, 10**5), size)
    ]


def _write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def _prepare(cache, tokenizer=None, report=None, **data):
    return prepare(
        build(DataConfig, data, where="data"),
        cleaning=CleaningConfig(max_words=9),
        tokenizer=tokenizer or TokenizerConfig(vocab_size=330),
        cache_dir=cache,
        report=report,
    )


def test_a_file_is_split_cleaned_and_binarised(tmp_path):
    lines = _lines()
    extra = [lines[5], "", "  ", "lang " * 10]
    said = []
    prepared = _prepare(
        tmp_path, train_text=_write(tmp_path / "t", lines + extra), report=said.append
    )
    sizes = {part: len(prepared.dataset(part)) for part in ("train", "valid", "test")}
    assert sizes == {"train": 360, "valid": 20, "test": 20}
    assert prepared.summary["counts"]["train"] == {
        "read": 404,
        "kept": 400,
        "dropped": {"duplicate": 1, "empty": 2, "too long": 1},
    }
    assert prepared.summary["parts"]["valid"]["lines"] == 20
    assert any("400 of 404 lines kept" in message for message in said)
    decode = prepared.tokenizers.source.decode
    texts = {
        part: {
            decode([row[0].tolist()])[0]
            for row in map(prepared.dataset(part).__getitem__, range(n))
        }
        for part, n in sizes.items()
    }
    assert set.union(*texts.values()) == set(lines)
    assert set(prepared.lines("test")[0]) == texts["test"]


def test_the_same_text_is_prepared_once(tmp_path):
    path = _write(tmp_path / "t", _lines())
    said = []
    assert not _prepare(tmp_path / "c", train_text=path).cached
    assert _prepare(tmp_path / "c", train_text=path, report=said.append).cached
    assert "train 360, valid 20, test 20 lines" in said[0]


def test_given_parts_are_kept_and_removed_from_train(tmp_path):
    lines = _lines()
    valid = _write(tmp_path / "v", [lines[3].upper(), "neu", ""])
    prepared = _prepare(tmp_path, train_text=_write(tmp_path / "t", lines), valid_text=valid)
    assert prepared.lines("valid") == ([lines[3].upper(), "neu"],)
    assert prepared.summary["counts"]["train"]["dropped"] == {"in valid or test": 1}
    assert prepared.summary["split_off"] == ["test"]


def test_either_side_of_a_corpus_is_a_text(tmp_path, monkeypatch):
    (tmp_path / "toy").mkdir()
    for split, size in {"train": 300, "valid": 5, "test": 5}.items():
        _write(tmp_path / "toy" / f"{split}.de", [f"{split} {line}" for line in _lines(size)])
        _write(
            tmp_path / "toy" / f"{split}.en", ["" if i % 2 else f"{split} {i}" for i in range(size)]
        )
    monkeypatch.setenv("DEEPNET_DATA", str(tmp_path))
    german, english = (
        _prepare(
            tmp_path / "c",
            corpus="toy",
            language=language,
            tokenizer=TokenizerConfig(vocab_size=size),
        )
        for language, size in (("de", 330), ("en", 280))
    )
    assert len(german.dataset("train")) == 300
    assert english.summary["counts"]["train"] == {
        "read": 300,
        "kept": 150,
        "dropped": {"empty": 150},
    }
    assert [side.language for side in english.dataset("test").header.sides] == ["en"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"corpus": "tatoeba-en-de", "language": "fr"}, "has no language 'fr'; it has de, en"),
        ({"corpus": "opus-100", "language": "en"}, "for each pair of languages.*data.train_text"),
        ({"corpus": "tatoeba-en-de", "language": "de", "target_language": "en"}, "choose one"),
        (
            {"train_text": "a", "train_source": "b"},
            "'train_text' means one text, but 'train_source'",
        ),
        ({"valid_text": "a"}, "or 'train_text'"),
        ({"language": "en"}, "or 'train_text'"),
        ({"corpus": "x", "train_text": "a"}, "'train_text' and 'corpus' are both given"),
    ],
)
def test_impossible_texts_are_refused(tmp_path, data, message):
    with pytest.raises(ConfigError, match=message):
        _prepare(tmp_path, **data)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "t is empty; expected one sentence per line"),
        (["", ""], r"none of the 2 lines of .*t \(empty: 2\); loosen"),
        (["gleich"] * 50, r"data\.valid_text$"),
    ],
)
def test_text_that_cannot_be_used_gives_one_line(tmp_path, lines, message):
    with pytest.raises(DataError, match=message) as caught:
        _prepare(tmp_path, train_text=_write(tmp_path / "t", lines))
    assert "\n" not in str(caught.value)


MODEL = {"architecture": "decoder_only", "encoder_layers": 0}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"data": {"corpus": "tatoeba-en-de", "language": "en"}},
            "'encoder_decoder' learns from sentences",
        ),
        (
            {"model": MODEL, "data": {"corpus": "tatoeba-en-de"}},
            "'decoder_only' learns from one text",
        ),
        (
            {"model": MODEL, "cleaning": {"max_ratio": 3}},
            "'cleaning.max_ratio' has no effect on one",
        ),
        ({"model": MODEL, "tokenizer": {"shared": False}}, "'tokenizer.shared' has no effect"),
        ({"model": MODEL, "decoding": {"beam_size": 3}}, "'decoding.beam_size' has no effect"),
        ({"model": MODEL, "validation": {"bleu": True}}, "'validation.bleu' has no effect"),
    ],
)
def test_recipes_that_contradict_themselves_are_refused(sections, message):
    text = {"data": {"train_text": "a"}, "training": {"max_steps": 1}}
    with pytest.raises(ConfigError, match=message):
        parse_recipe(text | sections)
