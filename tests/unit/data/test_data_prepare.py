import errno
import gc
import json
import os
import random
import signal
import subprocess
import sys
import tempfile

import pytest

from deepnet.config import build
from deepnet.data import steps
from deepnet.data.cleaning import CleaningConfig
from deepnet.data.prepare import open_prepared, prepare
from deepnet.data.sources import DataConfig
from deepnet.data.tokenizer import TokenizerConfig
from deepnet.errors import ConfigError, DataError

SIDES = (("source", "de"), ("target", "en"))
NOUNS = [
    "Hund",
    "Baum",
    "Vogel",
    "Zug",
    "Garten",
    "Kuchen",
    "Berg",
    "Stuhl",
    "Brief",
    "Fluss",
    "Ofen",
    "Turm",
]


def _pairs(size=400, seed=0):
    rng = random.Random(seed)
    numbers = rng.sample(range(10_000, 99_999), size)
    return [
        (f"Der {rng.choice(NOUNS)} kostet {n} Euro.", f"The {rng.choice(NOUNS)} costs {n} euros.")
        for n in numbers
    ]


def _write(folder, name, pairs):
    for side, language in enumerate(("de", "en")):
        (folder / f"{name}.{language}").write_text(
            "".join(f"{p[side]}\n" for p in pairs), encoding="utf-8"
        )


def _config(folder, parts=("train",), **options):
    files = {
        f"{part}_{side}": str(folder / f"{part}.{lang}")
        for part in parts
        for side, lang in (("source", "de"), ("target", "en"))
    }
    return build(
        DataConfig,
        {"source_language": "de", "target_language": "en"} | files | options,
        where="data",
    )


def _prepare(config, cache, **options):
    options = {"cleaning": CleaningConfig(), "tokenizer": TokenizerConfig(vocab_size=350)} | options
    return prepare(config, cache_dir=cache, **options)


def test_two_files_are_split_cleaned_and_binarised(tmp_path):
    pairs = _pairs()
    _write(tmp_path, "train", [*pairs, pairs[0], ("", "nothing"), ("lang " * 300, "x")])
    said = []
    prepared = _prepare(_config(tmp_path), tmp_path / "cache", report=said.append)
    sizes = {part: len(prepared.dataset(part)) for part in ("train", "valid", "test")}
    assert sizes == {"train": 360, "valid": 20, "test": 20}
    assert prepared.summary["counts"]["train"]["dropped"] == {
        "duplicate": 1,
        "empty": 1,
        "too long": 1,
    }
    assert any("duplicate: 1" in message for message in said)
    decode = prepared.tokenizers.target.decode
    seen = set()
    for part in sizes:
        dataset = prepared.dataset(part)
        seen |= {decode([dataset[i][1].tolist()])[0] for i in range(len(dataset))}
    assert seen == {target for _, target in pairs}


def test_held_out_text_lies_beside_and_is_not_in_train(tmp_path):
    _write(tmp_path, "train", _pairs())
    prepared = _prepare(_config(tmp_path), tmp_path / "cache")
    sources, targets = prepared.lines("test")
    assert len(sources) == len(targets) == 20
    assert (prepared.folder / "test.en").read_text(encoding="utf-8").splitlines() == targets
    dataset, decode = prepared.dataset("train"), prepared.tokenizers.source.decode
    train = {decode([dataset[i][0].tolist()])[0] for i in range(len(dataset))}
    assert not train & set(sources)


def test_given_parts_are_kept_whole_and_removed_from_train(tmp_path):
    pairs = _pairs()
    _write(tmp_path, "train", pairs)
    _write(
        tmp_path,
        "valid",
        [(pairs[3][0].upper(), "another"), ("", "no source"), ("neu", "new"), ("neu", "new")],
    )
    prepared = _prepare(_config(tmp_path, ("train", "valid")), tmp_path / "cache")
    assert prepared.lines("valid")[1] == ["another", "new", "new"]
    assert prepared.summary["counts"]["valid"] == {"read": 4, "kept": 3, "dropped": {"empty": 1}}
    assert prepared.summary["counts"]["train"]["dropped"] == {"in valid or test": 1}
    assert prepared.summary["split_off"] == ["test"]


def test_the_same_content_is_prepared_once(tmp_path):
    _write(tmp_path, "train", _pairs())
    first = _prepare(_config(tmp_path), tmp_path / "cache")
    said = []
    again = _prepare(_config(tmp_path), tmp_path / "cache", report=said.append)
    assert (first.cached, again.cached) == (False, True)
    assert again.folder == first.folder
    assert "found" in said[0]
    assert "train 360, valid 20, test 20" in said[0]
    (tmp_path / "moved").mkdir()
    _write(tmp_path / "moved", "train", _pairs())
    assert _prepare(_config(tmp_path / "moved"), tmp_path / "cache").cached


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ({"max_sentence_tokens": 99}, {}),
        ({}, {"cleaning": CleaningConfig(max_words=99)}),
        ({}, {"tokenizer": TokenizerConfig(vocab_size=351)}),
    ],
)
def test_other_settings_or_content_are_prepared_anew(tmp_path, data, options):
    _write(tmp_path, "train", _pairs())
    first = _prepare(_config(tmp_path), tmp_path / "cache")
    assert _prepare(_config(tmp_path, **data), tmp_path / "cache", **options).folder != first.folder
    _write(tmp_path, "train", _pairs(seed=1))
    assert not _prepare(_config(tmp_path), tmp_path / "cache").cached


def test_two_preparations_are_the_same_byte_for_byte(tmp_path):
    _write(tmp_path, "train", _pairs())
    folders = [_prepare(_config(tmp_path), tmp_path / name).folder for name in ("a", "b")]
    first, second = (
        {p.relative_to(f): p.read_bytes() for p in f.rglob("*") if p.is_file()} for f in folders
    )
    assert first.keys() == second.keys()
    assert {str(name) for name in first if first[name] != second[name]} <= {
        "preparation.json"
    }  # its seconds


def test_a_built_in_corpus_shows_its_licence(tmp_path):
    config = build(
        DataConfig, {"corpus": "home-assistant", "source_language": "fy", "target_language": "nl"}
    )
    said = []
    prepared = _prepare(
        config, tmp_path, tokenizer=TokenizerConfig(vocab_size=1000), report=said.append
    )
    assert "Apache-2.0" in said[0]
    assert "Apache-2.0" in json.loads((prepared.folder / "preparation.json").read_text())["notice"]
    counts = prepared.summary["counts"]["train"]
    assert counts["read"] == 8407
    assert 0 < counts["kept"] <= 1227  # the lines that Frisian has


def test_separate_vocabularies(tmp_path):
    _write(tmp_path, "train", _pairs())
    prepared = _prepare(
        _config(tmp_path), tmp_path / "c", tokenizer=TokenizerConfig(vocab_size=320, shared=False)
    )
    assert not prepared.tokenizers.shared
    assert (
        prepared.dataset("valid").header.sides[0].fingerprint
        == prepared.tokenizers.source.fingerprint
    )


def _break(folder, name):
    pairs = _pairs()
    _write(folder, "train", pairs)
    de, en = folder / "train.de", folder / "train.en"
    if name == "length":
        en.write_text("one line\n")
    elif name == "missing":
        en.unlink()
    elif name == "empty":
        de.write_text(""), en.write_text("")
    elif name == "encoding":
        de.write_bytes(de.read_bytes().replace(b"Euro", b"\xa4", 1))
    elif name == "blank":
        de.write_text("\n" * 400)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("length", "400 lines and .*train.en has 1;"),
        ("missing", "cannot read .*train.en: No such file"),
        ("empty", "are empty"),
        ("encoding", "train.de, line 1: byte .*0xa4"),
        ("blank", r"none of the 400 pairs .*\(empty: 400\)"),
    ],
)
def test_bad_files_give_one_line_and_leave_nothing(tmp_path, name, message):
    _break(tmp_path, name)
    with pytest.raises(DataError, match=message) as caught:
        _prepare(_config(tmp_path), tmp_path / "cache")
    assert "\n" not in str(caught.value)
    cache = tmp_path / "cache"
    assert not cache.exists() or list(cache.iterdir()) == []


def test_a_million_characters_in_a_line_only_cost_that_line(tmp_path):
    pairs = _pairs()
    _write(tmp_path, "train", [*pairs, ("x" * 1_000_000, "y"), ("a", "b " * 500_000)])
    prepared = _prepare(_config(tmp_path), tmp_path / "cache")
    assert prepared.summary["counts"]["train"] == {
        "read": 402,
        "kept": 400,
        "dropped": {"too long": 2},
    }


def test_long_sentences_are_left_out_and_counted(tmp_path):
    pairs = [*_pairs(), *[(f"Wort {i} " * 40, f"word {i}" * 30) for i in range(3)]]
    _write(tmp_path, "train", pairs)
    config = _config(tmp_path, max_sentence_tokens=60)
    prepared = _prepare(config, tmp_path / "cache", cleaning=CleaningConfig(max_ratio=100))
    parts = prepared.summary["parts"]
    assert sum(part["too_long"] for part in parts.values()) == 3
    assert sum(part["pairs"] for part in parts.values()) == 400
    with pytest.raises(
        DataError, match=r"every train pair is longer than data.max_sentence_tokens = 2"
    ):
        _prepare(_config(tmp_path, max_sentence_tokens=2), tmp_path / "cache")


def test_a_folder_that_is_no_preparation_is_refused(tmp_path):
    with pytest.raises(DataError, match="is not prepared data"):
        open_prepared(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "train_source"),
        ({"train_source": "a"}, "train_target"),
        ({"corpus": "multi30k", "train_source": "a"}, "'train_source' and 'corpus' are both given"),
        ({"train_source": "a", "train_target": "b", "valid_source": "c"}, "valid_target"),
        (
            {"train_source": "a", "train_target": "b", "test_split": "x"},
            "'test_split' has no effect",
        ),
        ({"corpus": "x", "source_language": "de", "target_language": "de"}, "both 'de'"),
        ({"corpuss": "x"}, "did you mean 'corpus'"),
        ({"corpus": "x", "max_sentence_tokens": 1}, "max_sentence_tokens"),
    ],
)
def test_impossible_data_sections_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        build(DataConfig, options, where="data")


def test_a_resolved_section_builds_again():
    for options in ({"corpus": "multi30k"}, {"train_source": "a", "train_target": "b"}):
        config = DataConfig(**options)
        assert build(DataConfig, config.model_dump()) == config


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*args, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    _write(tmp_path, "train", _pairs())
    monkeypatch.setattr(steps.TrainText, "clean", full)
    with pytest.raises(DataError, match=r"cannot write prepared data .*No space left"):
        _prepare(_config(tmp_path), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_renamed_file_is_not_prepared_twice(tmp_path):
    _write(tmp_path, "train", _pairs())
    first = _prepare(_config(tmp_path), tmp_path / "cache")
    for side in ("de", "en"):
        (tmp_path / f"train.{side}").rename(tmp_path / f"renamed.{side}")
    files = {"train_source": tmp_path / "renamed.de", "train_target": tmp_path / "renamed.en"}
    config = _config(tmp_path, **{role: str(path) for role, path in files.items()})
    again = _prepare(config, tmp_path / "cache")
    assert (again.cached, again.folder) == (True, first.folder)
    paths = {role: file["path"] for role, file in again.summary["inputs"].items()}
    assert paths == {role: str(path) for role, path in files.items()}


def test_a_file_written_just_now_is_hashed_again(tmp_path):
    """Its time of change may not tell it from what is written into it next."""
    _write(tmp_path, "train", _pairs())
    first = _prepare(_config(tmp_path), tmp_path / "cache")
    changed = (tmp_path / "train.de").stat().st_mtime_ns
    text = (tmp_path / "train.de").read_text()
    (tmp_path / "train.de").write_text(text.replace("kostet", "kaufet"))
    os.utime(tmp_path / "train.de", ns=(changed, changed))
    assert _prepare(_config(tmp_path), tmp_path / "cache").folder != first.folder


def test_a_damaged_list_of_hashes_costs_only_the_hashing(tmp_path):
    _write(tmp_path, "train", _pairs())
    for side in ("de", "en"):
        os.utime(tmp_path / f"train.{side}", (10**9, 10**9))
    first = _prepare(_config(tmp_path), tmp_path / "cache")
    memory = tmp_path / "cache" / "files.json"
    for content in (b"{", b"[1]", b'{"%b": 3}' % str(tmp_path / "train.de").encode()):
        memory.write_bytes(content)
        assert _prepare(_config(tmp_path), tmp_path / "cache").folder == first.folder
    assert len(json.loads(memory.read_text())) == 2


def test_the_held_out_rows_of_text_alone_are_those_that_were_prepared(tmp_path, monkeypatch):
    pairs = [*_pairs(), *[(f"Wort {i} " * 40, f"word {i}" * 30) for i in range(60)]]
    _write(tmp_path, "train", pairs)
    config = _config(tmp_path, max_sentence_tokens=60)
    prepared = _prepare(config, tmp_path / "cache", cleaning=CleaningConfig(max_ratio=100))
    rows = {part: prepared.dataset(part) for part in ("valid", "test")}
    expected = {part: [tuple(ids.tolist() for ids in row) for row in rows[part]] for part in rows}
    assert sum(rows[part].header.too_long for part in rows) > 0
    (tmp_path / "kept").mkdir()
    for file in prepared.folder.iterdir():
        if file.is_file():
            (tmp_path / "kept" / file.name).write_bytes(file.read_bytes())
    kept = open_prepared(tmp_path / "kept")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    for part, wanted in expected.items():
        found = kept.dataset(part)
        assert [tuple(ids.tolist() for ids in row) for row in found] == wanted
    del found
    gc.collect()
    assert list((tmp_path / "temporary").iterdir()) == []
    with pytest.raises(DataError, match="no prepared text"):
        kept.dataset("train")


def test_sigterm_ends_the_processes_too_and_leaves_nothing(tmp_path):
    """Sent when the first of them have begun to compute."""
    _write(tmp_path, "train", _pairs(size=5000))
    options = {f"train_{side}": str(tmp_path / f"train.{lang}") for side, lang in SIDES}
    script = tmp_path / "script.py"
    script.write_text(
        "from deepnet.data.cleaning import CleaningConfig\n"
        "from deepnet.data.prepare import prepare\n"
        "from deepnet.data.sources import DataConfig\n"
        "from deepnet.data.tokenizer import TokenizerConfig\n"
        "from deepnet.data import text, workers\n"
        "text.BLOCK_ROWS = 50\n"
        "start = workers.Workers._start\n"
        "def started(self, number):\n"
        "    if not self._processes:\n"
        "        start(self, number)\n"
        "        print(*(process._process.pid for process in self._processes), flush=True)\n"
        "workers.Workers._start = started\n"
        f"prepare(DataConfig(**{options}), cleaning=CleaningConfig(), tokenizer=TokenizerConfig(), "
        f"cache_dir={str(tmp_path / 'cache')!r}, processes=2)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as process:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert len(pids) == 2
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []
