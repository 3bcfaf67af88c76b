"""What a preparation writes, byte for byte: against the same steps in plain Python, with all text in memory."""

import hashlib
import io
import random
import tracemalloc
import unicodedata
from collections import Counter

import numpy as np
import pytest
import sentencepiece

from deepnet.config import build
from deepnet.data import cleaning, sorting, text
from deepnet.data.cleaning import CleaningConfig
from deepnet.data.prepare import prepare
from deepnet.data.sources import DataConfig
from deepnet.data.text import Span
from deepnet.data.tokenizer import TokenizerConfig

LATIN = ["der", "die", "das", "Hund", "Katze", "läuft", "schläft", "Straße", "über", "Wasser,"]
WORDS = [*LATIN, "½", "Feuer!", "„Luft“", "東京", "ERDE"]
CLEANING = CleaningConfig(max_words=30, max_ratio=3.0)
TOKENIZER = TokenizerConfig(vocab_size=330, sample_lines=700)
MOST_IDS = 40


def _corpus(size):
    """Pairs of which some are repeated, share sentences, are empty, too long or of unlike lengths."""
    rng = random.Random(3)

    def sentence(least=2, most=9):
        return " ".join([*rng.choices(WORDS, k=rng.randint(least, most)), str(rng.randrange(size))])

    pairs = [(sentence(), sentence()) for _ in range(size)]
    for index in range(5, size, 9):
        source, target = pairs[rng.randrange(index)]
        pairs[index] = rng.choice(
            [
                (source, target),
                (f" {source}\t", target),
                (source.upper(), sentence()),
                (sentence(), f"{target}!?"),
                (source, ""),
                (sentence(40, 50), sentence(40, 50)),
                (sentence(15, 25), "x"),
                (" ".join(["unaussprechlich"] * 25), " ".join(["unspeakable"] * 25)),
            ]
        )
    return pairs


def _normalised(sentence):
    folded = unicodedata.normalize("NFKC", sentence).casefold()
    words = "".join(char if char.isalnum() else " " for char in folded).split()
    return " ".join(words) or sentence.strip()


def _cleaned(pairs, held_out):
    known = [{_normalised(sentence) for sentence in side} for side in zip(*held_out, strict=True)]
    seen = set()
    for pair in [tuple(sentence.strip() for sentence in pair) for pair in pairs]:
        sizes = sorted(len(sentence.encode()) for sentence in pair)
        if (
            not all(pair)
            or max(len(sentence.split()) for sentence in pair) > 30
            or (sizes[1] >= 20 and sizes[1] > 3 * sizes[0])
            or any(_normalised(s) in side for s, side in zip(pair, known, strict=False))
            or pair in seen
        ):
            continue
        seen.add(pair)
        yield pair


def _split(pairs, wanted):
    """The part of each pair by groups of connected ones, in the order of their lowest source hash, mixed."""
    group = list(range(len(pairs)))
    sides = [[_normalised(pair[side]) for pair in pairs] for side in (0, 1)]
    changed = True
    while changed:
        changed = False
        for side in sides:
            lowest = {}
            for row, sentence in enumerate(side):
                lowest[sentence] = min(lowest.get(sentence, row), group[row])
            new = [lowest[sentence] for sentence in side]
            changed, group = changed or new != group, new
    hashes = {}
    for row, sentence in enumerate(sides[0]):
        digest = hashlib.blake2b(sentence.encode(), digest_size=8).digest()
        hashes.setdefault(group[row], []).append(int.from_bytes(digest, "little"))
    order = sorted(hashes, key=lambda name: min(hashes[name]) * 0x9E3779B97F4A7C15 % 2**64)
    part_of = {}
    for part, number in wanted.items():
        limit = room = min(number, len(pairs) // 20)
        while room > 0 and order:
            name = order.pop(0)
            if len(hashes[name]) <= min(room, max(limit // 10, 1)):
                part_of[name] = part
                room -= len(hashes[name])
    return [part_of.get(name, "train") for name in group]


def _trained(texts, sample_lines):
    """The model of every so-manieth line of each text, all the options said again."""
    lines = []
    for side in texts:
        wanted = min(len(side), sample_lines)
        lines += [
            line
            for i, line in enumerate(side)
            if (i + 1) * wanted // len(side) > i * wanted // len(side)
        ]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="unigram",
        vocab_size=TOKENIZER.vocab_size - 1,
        byte_fallback=True,
        character_coverage=0.9995,
        normalization_rule_name="nmt_nfkc",
        max_sentence_length=1 << 24,
        eos_id=0,
        unk_id=1,
        bos_id=-1,
        pad_id=-1,
        control_symbols=[],
        num_threads=16,
        minloglevel=2,
    )
    return model.getvalue()


def _shards(pairs, model):
    """The ids of all pairs, and where each sentence ends."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    rows = [[[*processor.encode(sentence), 0] for sentence in pair] for pair in pairs]
    sentences = [ids for row in rows if max(map(len, row)) <= MOST_IDS for ids in row]
    ends = np.cumsum([0, *map(len, sentences)])
    return np.concatenate(sentences).astype("<u2").tobytes(), ends.astype("<i8").tobytes()


def _write(folder, name, pairs):
    for side, language in enumerate(("de", "en")):
        (folder / f"{name}.{language}").write_text(
            "".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8"
        )


def _expected(given):
    """The bytes of each file, `given` being pairs by part."""
    held_out = {part: pairs for part, pairs in given.items() if part != "train"}
    train = list(_cleaned(given["train"], [pair for pairs in held_out.values() for pair in pairs]))
    missing = [part for part in ("valid", "test") if part not in held_out]
    parts = _split(train, dict.fromkeys(missing, 30))
    for part in missing:
        held_out[part] = [pair for pair, name in zip(train, parts, strict=True) if name == part]
    train = [pair for pair, name in zip(train, parts, strict=True) if name == "train"]
    model = _trained(list(zip(*train, strict=True)), TOKENIZER.sample_lines)
    files = {"tokenizer.model": model}
    for part, pairs in {"train": train, **held_out}.items():
        files[f"{part}/00000.ids"], files[f"{part}/00000.offsets"] = _shards(pairs, model)
    for part, pairs in held_out.items():
        for side, language in enumerate(("de", "en")):
            files[f"{part}.{language}"] = "".join(f"{pair[side]}\n" for pair in pairs).encode()
    return files


def _prepare(folder, parts, *, tokenizer=TOKENIZER, **options):
    files = {
        f"{part}_{side}": str(folder / f"{part}.{language}")
        for part in parts
        for side, language in (("source", "de"), ("target", "en"))
    }
    own = {"source_language": "de", "target_language": "en", "max_sentence_tokens": MOST_IDS}
    config = build(DataConfig, {**own, "valid_pairs": 30, "test_pairs": 30, **files}, where="data")
    return prepare(config, cleaning=CLEANING, tokenizer=tokenizer, **options)


@pytest.mark.parametrize("given", [("train",), ("train", "valid"), ("train", "valid", "test")])
def test_every_number_of_processes_writes_what_plain_python_does(tmp_path, monkeypatch, given):
    corpora = {"train": _corpus(900), "valid": _corpus(900)[40:70], "test": _corpus(900)[90:95]}
    corpora = {part: corpora[part] for part in given}
    for held_out in given[1:]:
        corpora[held_out] = [
            tuple(sentence.strip() for sentence in pair) for pair in corpora[held_out] if all(pair)
        ]
    for part, pairs in corpora.items():
        _write(tmp_path, part, pairs)
    expected = _expected(corpora)
    summaries = []
    for processes, block_rows, block_records in ((1, 5_000, 1 << 17), (1, 31, 50), (3, 97, 1000)):
        monkeypatch.setattr(text, "BLOCK_ROWS", block_rows)
        monkeypatch.setattr(sorting, "BLOCK_RECORDS", block_records)
        cache = tmp_path / f"{processes}-{block_rows}"
        prepared = _prepare(tmp_path, given, cache_dir=cache, processes=processes)
        folder = prepared.folder
        written = {
            str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and path.name not in ("preparation.json", "header.json", "SHA256SUMS")
        }
        assert written.keys() == expected.keys()
        assert [name for name in expected if written[name] != expected[name]] == []
        headers = [(folder / part / "header.json").read_bytes() for part in ("train", "valid")]
        summaries.append(({**prepared.summary, "seconds": 0}, folder.name, headers))
    assert summaries[0] == summaries[1] == summaries[2]


def test_memory_does_not_grow_with_the_text(tmp_path, monkeypatch):
    """Of four times the text, in blocks that are small beside both; a trained tokenizer holds its sample."""
    monkeypatch.setattr(text, "BLOCK_ROWS", 100)
    monkeypatch.setattr(sorting, "BLOCK_RECORDS", 100)
    (tmp_path / "model").write_bytes(_trained([[target for _, target in _corpus(900)]], 900))
    tokenizer = TokenizerConfig(source_model=str(tmp_path / "model"))
    peaks = []
    for size in (800, 3200):
        folder = tmp_path / str(size)
        folder.mkdir()
        _write(folder, "train", _corpus(size))
        tracemalloc.start()
        _prepare(folder, ("train",), cache_dir=tmp_path / "c", processes=1, tokenizer=tokenizer)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.15 * peaks[0]


def test_text_to_train_on_is_read_once_as_given_and_twice_as_cleaned(tmp_path, monkeypatch):
    _write(tmp_path, "train", _corpus(1500))
    rows = Counter()
    decode, read = cleaning.decode_block, Span.read

    def count_given(block, paths):
        rows["given"] += block.rows
        return decode(block, paths)

    def count_cleaned(span, path, side):
        rows["cleaned", side] += span.rows
        return read(span, path, side)

    monkeypatch.setattr(cleaning, "decode_block", count_given)
    monkeypatch.setattr(Span, "read", count_cleaned)
    summary = _prepare(tmp_path, ("train",), cache_dir=tmp_path / "c", processes=1).summary
    dropped = summary["counts"]["train"]["dropped"]
    cleaned = 1500 - sum(dropped.values()) + dropped["duplicate"]
    assert rows == {"given": 1500, ("cleaned", 0): 2 * cleaned, ("cleaned", 1): 2 * cleaned}
