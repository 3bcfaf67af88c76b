import io
import time

import pytest
import sentencepiece

from deepnet.config import build
from deepnet.data.tokenizer import (
    Tokenizer,
    TokenizerConfig,
    Tokenizers,
    evenly_spaced,
    make_tokenizers,
    train_tokenizer,
)
from deepnet.errors import ConfigError, DataError

SYLLABLES = ["ka", "to", "mi", "re", "lun", "der", "stei", "wan", "bo", "gri", "pal", "ne"]
WORDS = [a + b + c for a in SYLLABLES for b in SYLLABLES for c in ("", "n", "st")]
LINES = [
    "the cat " + " ".join(WORDS[(i * 37 + j * j * 11) % len(WORDS)] for j in range(6))
    for i in range(600)
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(LINES, config=TokenizerConfig(vocab_size=330))


def _foreign_model(**ids) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(LINES), model_writer=model, vocab_size=60, minloglevel=2, **ids
    )
    return model.getvalue()


def test_special_ids_and_size(tokenizer):
    assert (tokenizer.eos, tokenizer.unk) == (0, 1)
    assert tokenizer.vocab_size == 330
    assert tokenizer.pad == 329
    assert tokenizer.pieces()[:2] == ["</s>", "<unk>"]
    assert len(tokenizer.pieces()) == 329


def test_text_comes_back(tokenizer):
    lines = [*LINES[:20], "", "Zürich 漢字 \U0001f600 never seen"]
    ids = tokenizer.encode(lines)
    assert tokenizer.decode(ids) == lines
    assert all(1 < i < tokenizer.pad for line in ids for i in line)  # byte fallback: no unk, no eos


def test_decode_ignores_eos_and_pad(tokenizer):
    ids = tokenizer.encode(["the cat"])[0]
    assert tokenizer.decode([[*ids, tokenizer.eos, tokenizer.pad, tokenizer.pad]]) == ["the cat"]


def test_same_text_gives_the_same_bytes(tokenizer):
    again = train_tokenizer(LINES, config=TokenizerConfig(vocab_size=330))
    assert again.fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_million_characters_are_encoded_in_seconds(kind):
    tokenizer = train_tokenizer(LINES, config=TokenizerConfig(vocab_size=330, kind=kind))
    start = time.monotonic()
    ids = tokenizer.encode(["a" * 1_000_000, "the cat " * 125_000, "the cat"])
    assert tokenizer.decode(ids[2:]) == ["the cat"]
    assert len(ids[0]) > 100_000
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("kind", ["unigram", "bpe", "words"])
def test_too_large_a_vocabulary_says_the_largest(kind):
    with pytest.raises(
        DataError, match=r"larger than the text supports: at most ([0-9,]+);"
    ) as caught:
        train_tokenizer(LINES, config=TokenizerConfig(vocab_size=9000, kind=kind))
    largest = int(str(caught.value).split("at most ")[1].split(";")[0].replace(",", ""))
    fitting = train_tokenizer(LINES, config=TokenizerConfig(vocab_size=largest, kind=kind))
    assert fitting.vocab_size == largest


def test_too_small_a_vocabulary_says_the_smallest():
    with pytest.raises(DataError, match="does not hold the characters of the text: at least"):
        train_tokenizer(LINES, config=TokenizerConfig(vocab_size=20))


@pytest.mark.parametrize("lines", [[], ["", "  "]])
def test_no_text_is_refused(lines):
    with pytest.raises(DataError, match="no text"):
        train_tokenizer(lines, config=TokenizerConfig(vocab_size=300))


def test_tokenised_text_is_split_at_white_space_only():
    lines = ["Das ist ein Hal@@ lo .", "Das ist ein Test ."]
    tokenizer = train_tokenizer(lines, config=TokenizerConfig(kind="words", vocab_size=10))
    assert [len(ids) for ids in tokenizer.encode(lines)] == [6, 5]
    assert tokenizer.decode(tokenizer.encode(lines)) == lines
    assert tokenizer.encode(["Das Neue"])[0][1] == tokenizer.unk


@pytest.mark.parametrize(
    "ids",
    [
        {},  # SentencePiece's own: unk 0, bos 1, eos 2
        {"pad_id": 0, "unk_id": 3, "bos_id": 1, "eos_id": 2},
        {"eos_id": -1},
    ],
)
def test_foreign_models_get_our_ids(ids):
    model = _foreign_model(**ids)
    tokenizer = Tokenizer(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    encoded = tokenizer.encode(["the cat sees 漢"])[0]
    theirs = processor.encode("the cat sees 漢")
    assert [tokenizer.pieces()[i] for i in encoded] == [processor.id_to_piece(i) for i in theirs]
    assert encoded[-1] == tokenizer.unk
    assert tokenizer.pieces()[0] == "</s>"
    assert tokenizer.vocab_size == 60 + 1 + (ids == {"eos_id": -1})
    assert tokenizer.decode([[*tokenizer.encode(["the cat"])[0], 0]]) == ["the cat"]


def test_existing_models_are_taken_as_they_are(tmp_path):
    path = tmp_path / "existing.model"
    path.write_bytes(_foreign_model())
    config = TokenizerConfig(source_model=str(path))
    unread = (pytest.fail("the text is read") for _ in range(1))
    tokenizers = make_tokenizers([unread] * 2, num_lines=0, config=config)
    assert tokenizers.shared
    assert tokenizers.source.model == path.read_bytes()


@pytest.mark.parametrize("shared", [True, False])
def test_tokenizers_are_saved_and_loaded(tmp_path, shared):
    texts = [LINES[:200], [line.upper() for line in LINES]]
    config = TokenizerConfig(vocab_size=310, shared=shared)
    made = make_tokenizers(texts, num_lines=200, config=config)
    made.save(tmp_path)
    loaded = Tokenizers.load(tmp_path)
    assert made.shared == loaded.shared == shared
    assert loaded.source.fingerprint == made.source.fingerprint
    assert loaded.target.fingerprint == made.target.fingerprint
    assert sorted(p.name for p in tmp_path.glob("*.model")) == (
        ["tokenizer.model"] if shared else ["source.model", "target.model"]
    )


@pytest.mark.parametrize("content", [None, b"", b"not a model"])
def test_missing_or_foreign_model_files_are_refused(tmp_path, content):
    path = tmp_path / "x.model"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"x\.model"):
        Tokenizer.load(path)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"source_model": "x.model", "vocab_size": 100}, "vocab_size"),
        ({"target_model": "x.model"}, "source_model"),
        ({"kind": "words", "byte_fallback": False}, "byte_fallback"),
        ({"kind": "unigrams"}, "kind"),
        ({"vocab_sise": 3}, "did you mean 'vocab_size'"),
    ],
)
def test_options_without_effect_or_meaning_are_refused(options, named):
    with pytest.raises(ConfigError, match=named):
        build(TokenizerConfig, options, where="tokenizer")


def test_thinning_is_even():
    lines = [str(i) for i in range(100)]
    assert list(evenly_spaced(lines, total=100, at_most=200)) == lines
    assert list(evenly_spaced(lines, total=100, at_most=4)) == ["24", "49", "74", "99"]


def test_a_resolved_section_builds_again():
    for options in ({}, {"kind": "words"}, {"source_model": "a", "target_model": "b"}):
        config = TokenizerConfig(**options)
        assert build(TokenizerConfig, config.model_dump()) == config
