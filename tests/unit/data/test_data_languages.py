"""Many directions in one text: three made-up languages of forty lines that are translations word for word."""

import random

import numpy as np
import pytest

from deepnet.config import build
from deepnet.data.batching import BatchConfig, plan_updates
from deepnet.data.binarize import Header, Side
from deepnet.data.cleaning import CleaningConfig
from deepnet.data.corpora import find_corpus
from deepnet.data.directions import Direction, trained_directions
from deepnet.data.loader import UpdateLoader
from deepnet.data.mixing import sampling_rates
from deepnet.data.mixture import DirectedText, MixedText
from deepnet.data.objectives import Translation
from deepnet.data.prepare import open_prepared, prepare
from deepnet.data.sources import DataConfig
from deepnet.data.tokenizer import TokenizerConfig
from deepnet.errors import ConfigError, DataError

LINES = {"train": 40, "valid": 4, "test": 4}
WITH_ENGLISH = ["de-en", "en-de", "en-pt-BR", "pt-BR-en"]
ENDINGS = {"de": "us", "en": "", "pt-BR": "ao"}


def sentence(numbers, language):
    return " ".join(f"{'abcdefgh'[n]}{'klmn'[n % 4]}{ENDINGS[language]}" for n in numbers)


def write_toy(root, *, sizes=LINES):
    """Write the corpus "toy": de, en, pt-BR; every fourth train line has no pt-BR, and no other line repeats."""
    (root / "toy").mkdir(parents=True)
    draw = random.Random(1)
    seen = set()
    for split, count in sizes.items():
        rows = []
        while len(rows) < count:
            row = tuple(draw.choices(range(8), k=draw.randint(3, 7)))
            if row not in seen:
                seen.add(row)
                rows.append(row)
        for language in ENDINGS:
            hole = 4 if language == "pt-BR" and split == "train" else count + 1
            text = [
                "" if n % hole == hole - 1 else sentence(r, language) for n, r in enumerate(rows)
            ]
            path = root / "toy" / f"{split}.{language}"
            path.write_text("".join(f"{line}\n" for line in text), encoding="utf-8")


@pytest.fixture
def toy(tmp_path, monkeypatch):
    write_toy(tmp_path / "corpora")
    monkeypatch.setenv("DEEPNET_DATA", str(tmp_path / "corpora"))
    return tmp_path


def prepared(folder, *, report=None, tokenizer=None, **options):
    config = build(DataConfig, {"corpus": "toy", "pairs": WITH_ENGLISH} | options, where="data")
    return prepare(
        config,
        cleaning=CleaningConfig(),
        tokenizer=tokenizer or TokenizerConfig(vocab_size=42, byte_fallback=False),
        cache_dir=folder / "cache",
        report=report,
        processes=1,
    )


def loader_of(data, *, temperature=5.0, rank=0, world_size=1):
    config = BatchConfig(max_tokens=64, micro_batches_per_update=2)
    text = MixedText(data.dataset("train").drawn, temperature=temperature)
    return UpdateLoader(
        text, config, objective=Translation(), seed=7, rank=rank, world_size=world_size
    )


def decoded(data, ids):
    return data.tokenizers.target.decode([[int(i) for i in ids]])[0]


def test_every_pair_has_the_lines_that_both_languages_have(toy):
    data = prepared(toy)
    sizes = {str(one.text.direction): one.count for one in data.dataset("train").drawn}
    assert sizes == {"de-en": 40, "en-de": 40, "en-pt-BR": 30, "pt-BR-en": 30}
    assert len(list((data.folder / "pairs").iterdir())) == 2  # one for both directions
    assert data.summary["parts"]["valid"]["pairs"] == 8


@pytest.mark.parametrize("placement", ["source", "target", "both"])
def test_a_batch_reads_the_tag_where_it_is_placed_and_the_translation_of_its_line(toy, placement):
    data = prepared(toy, language_tag=placement)
    text = data.dataset("train")
    rows = np.array([0, 45, 85, 139])  # de-en, en-de, en-pt-BR, pt-BR-en
    batch = Translation().batch(text, rows, epoch=0)
    tags = [data.tokenizers.source.find_piece(f"<2{to}>") for to in ("en", "de", "pt-BR", "en")]
    pad = data.tokenizers.target.pad
    first = batch.source[:, 0].tolist()
    assert (first == tags) == (placement in ("source", "both"))
    assert not set(first) & set(tags) or placement != "target"
    started = batch.target_in[:, 0].tolist()
    assert started == (tags if placement in ("target", "both") else [pad] * 4)
    read = [decoded(data, [i for i in row if i != pad]) for row in batch.source.tolist()]
    wanted = [decoded(data, [i for i in row if i != pad]) for row in batch.target_out.tolist()]
    ways = [("de", "en"), ("en", "de"), ("en", "pt-BR"), ("pt-BR", "en")]
    for source, target, way in zip(read, wanted, ways, strict=True):
        numbers = ["abcdefgh".index(word[0]) for word in source.split()]
        assert [source, target] == [sentence(numbers, language) for language in way]
    assert batch.num_tokens == sum(
        len([i for i in r if i != pad]) for r in batch.target_out.tolist()
    )


def test_lengths_are_those_of_the_padded_rows_in_every_epoch(toy):
    text = MixedText(prepared(toy, language_tag="both").dataset("train").drawn, temperature=5.0)
    for rows in (text, text.of_epoch(seed=3, epoch=2)):
        sides = rows.padded(np.arange(len(rows)))
        for lengths, (_, real) in zip(rows.lengths(), sides, strict=True):
            assert lengths.tolist() == real.sum(axis=1).tolist()
        for part in ((0, 7), (35, 90), (139, 200)):
            for some, every in zip(rows.lengths(*part), rows.lengths(), strict=True):
                assert some.tolist() == every[slice(*part)].tolist()
    assert text.header.longest == max(side.max() for side in text.lengths())


def test_an_epoch_draws_by_the_temperature_and_all_rows_in_turn(toy):
    data = prepared(toy)
    text = MixedText(data.dataset("train").drawn, temperature=5.0)
    seen = [np.zeros(len(one.text.pair), int) for one in text.drawn]
    for epoch in range(4):
        drawn = text.of_epoch(seed=1, epoch=epoch).drawn
        counts = [one.count for one in drawn]
        assert sum(counts) == 140
        assert counts == pytest.approx(140 * sampling_rates([40, 40, 30, 30], temperature=5), abs=1)
        for times, one in zip(seen, drawn, strict=True):
            np.add.at(times, (one.first + np.arange(one.count)) % len(times), 1)
    assert all(times.max() - times.min() <= 1 for times in seen)


def test_at_temperature_one_an_epoch_has_every_row_once(toy):
    text = prepared(toy).dataset("train")
    epoch = text.of_epoch(seed=5, epoch=3)
    assert sorted(map(bytes, epoch.padded(np.arange(140))[0][0])) == sorted(
        map(bytes, text.padded(np.arange(140))[0][0])
    )


def test_updates_are_the_same_again_and_from_the_middle_and_on_two_ranks(toy):
    data = prepared(toy)

    def seen(updates):
        return [[b.source.tolist() for b in update.batches] for update in updates]

    whole = seen(loader_of(data).updates(1))
    assert len(whole) == loader_of(data).updates_per_epoch(1) > 4
    assert seen(loader_of(prepared(toy)).updates(1, 3)) == whole[3:]
    ranks = [seen(loader_of(data, rank=r, world_size=2).updates(1)) for r in range(2)]
    for one, first, second in zip(whole, *ranks, strict=True):
        assert (
            one
            == [b for pair in zip(first, second, strict=False) for b in pair] + first[len(second) :]
        )
    assert whole != seen(loader_of(data).updates(2))


def test_an_update_mixes_directions(toy):
    text = prepared(toy).dataset("train")
    plan = plan_updates(text, BatchConfig(max_tokens=512), seed=1, epoch=0)
    starts = [40, 80, 110]
    assert any(
        len(set(np.searchsorted(starts, batch.rows, side="right"))) == 4
        for update in plan
        for batch in update
    )


def test_what_a_run_keeps_has_the_held_out_text_of_every_direction(toy, tmp_path):
    data = prepared(toy, zero_shot_pairs="all")
    assert data.zero_shot == (Direction("de", "pt-BR"), Direction("pt-BR", "de"))
    for file in data.kept_files():
        (tmp_path / "kept" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "kept" / file).write_bytes((data.folder / file).read_bytes())
    kept = open_prepared(tmp_path / "kept")
    rows = np.arange(len(data.dataset("valid")))
    for mine, theirs in zip(
        kept.dataset("valid").padded(rows), data.dataset("valid").padded(rows), strict=True
    ):
        assert np.array_equal(mine[0], theirs[0])
    sources, references = kept.lines_of(Direction("pt-BR", "de"), "test")
    assert len(sources) == 4
    numbers = [["abcdefgh".index(word[0]) for word in line.split()] for line in references]
    assert sources == [sentence(row, "pt-BR") for row in numbers]
    alone = sorted(path.name for path in (data.folder / "pairs" / "de-pt-BR").iterdir())
    assert alone == ["test.de", "test.pt-BR", "valid.de", "valid.pt-BR"]
    assert not list(data.folder.glob("**/work"))


def test_no_pair_trains_on_what_any_pair_holds_out(toy):
    folder = toy / "corpora" / "toy"
    held_out = (folder / "test.en").read_text().splitlines()
    for language, line in (("de", "ganz anders"), ("en", held_out[0].upper()), ("pt-BR", "")):
        with (folder / f"train.{language}").open("a") as file:
            file.write(f"{line}\n")
    for language in ("de", "en", "pt-BR"):  # the held-out sentence has no German any more
        lines = (folder / f"test.{language}").read_text().splitlines()
        lines[0] = "" if language == "de" else lines[0]
        (folder / f"test.{language}").write_text("".join(f"{line}\n" for line in lines))
    data = prepared(toy)
    assert data.summary["pairs"]["de-en"]["counts"]["train"]["dropped"] == {"in valid or test": 1}


def test_the_temperature_prepares_nothing_anew_but_the_tag_in_the_source_does(toy):
    first = prepared(toy)
    assert prepared(toy, sampling_temperature=1.0).folder == first.folder
    assert prepared(toy, language_tag="target").folder != first.folder


def test_a_language_with_ten_sentences_is_warned_of(toy):
    folder = toy / "corpora" / "toy"
    lines = (folder / "train.pt-BR").read_text().splitlines()
    few = [line if n < 13 else "" for n, line in enumerate(lines)]  # three of them have a hole
    (folder / "train.pt-BR").write_text("".join(f"{line}\n" for line in few))
    said = []
    prepared(toy, report=said.append)
    assert any("warning: 'pt-BR' has 10 sentences to learn from" in message for message in said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"pairs": ["de-fr"]},
            "data.pairs has 'de-fr', but toy has no language 'fr'; it has de, en",
        ),
        ({"pairs": ["de-pt-BT"]}, "has no language 'pt-BT'; did you mean 'pt-BR'?"),
        ({"pairs": ["german"]}, "data.pairs has 'german', which is no direction"),
        ({"pairs": ["en-en"]}, "source and target language are both 'en'"),
        ({"zero_shot_pairs": ["de-en"]}, "has 'de-en', which data.pairs trains"),
        (
            {"pairs": ["en-de"], "zero_shot_pairs": ["de-en"]},
            "no direction of data.pairs has 'de' read",
        ),
    ],
)
def test_a_direction_that_cannot_be_is_refused_in_one_line(toy, options, said):
    with pytest.raises(ConfigError) as caught:
        prepared(toy, **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"pairs": [], "language_tag": "both"}, "'language_tag' has no effect without 'pairs'"),
        ({"source_language": "de"}, "'source_language' has no effect with 'pairs'"),
        ({"test_pairs": 5}, "'test_pairs' has no effect with 'pairs'"),
        ({"valid_split": ""}, "'valid_split' is empty"),
        ({"corpus": "", "train_source": "a", "train_target": "b"}, "'pairs' are of the languages"),
    ],
)
def test_what_does_not_go_with_many_directions_is_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        build(DataConfig, {"corpus": "toy", "pairs": WITH_ENGLISH} | options, where="data")


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_tag_in_the_text_is_refused_with_its_line(toy, split):
    path = toy / "corpora" / "toy" / f"{split}.de"
    lines = path.read_text().splitlines()
    lines[2] = "was <2en> ist"
    path.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(DataError) as caught:
        prepared(toy)
    assert f"{split}.de, line 3: '<2en>' is the tag" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_direction_is_refused_by_its_name(toy):
    path = toy / "corpora" / "toy" / "train.pt-BR"
    path.write_text("\n" * 40)
    with pytest.raises(DataError, match="pair en-pt-BR: cleaning leaves none of the 40 pairs"):
        prepared(toy)


def test_a_given_vocabulary_without_the_tags_is_refused(toy):
    own = TokenizerConfig(source_model=str(prepared(toy).folder / "tokenizer.model"))
    assert prepared(toy, tokenizer=own).tokenizers.source.find_piece("<2pt-BR>") is not None
    smaller = TokenizerConfig(vocab_size=34, byte_fallback=False)
    fewer = prepared(toy, pairs=["en-pt-BR"], tokenizer=smaller).folder / "tokenizer.model"
    with pytest.raises(DataError, match="has no piece '<2de>'"):
        prepared(toy, tokenizer=TokenizerConfig(source_model=str(fewer)))


def test_all_and_any_mean_what_the_corpus_has(toy):
    corpus = find_corpus("toy")
    assert len(trained_directions(["all"], corpus)) == 6
    assert set(map(str, trained_directions(["*-en", "en-*"], corpus))) == set(WITH_ENGLISH)
    opus = find_corpus("opus-100")
    assert len(trained_directions(["all"], opus)) == 2 * (len(opus.languages) - 1)


class HugePair:
    """A prepared pair of a hundred milliard rows of three and five ids, of which none is there."""

    header = Header((Side("de", 99, "", 0), Side("en", 99, "", 0)), 5, 0, ())

    def __len__(self):
        return 10**11

    def lengths(self, start, stop):
        return np.full(stop - start, 3), np.full(stop - start, 5)


def test_an_epoch_of_any_size_is_a_few_numbers():
    texts = [
        DirectedText(direction, HugePair(), tag=2, tags_source=True, tags_decoder=False)
        for direction in (Direction("de", "en"), Direction("en", "de"))
    ]
    rows = MixedText.of(texts, temperature=5.0).of_epoch(seed=1, epoch=7)
    assert len(rows) == 2 * 10**11
    middle = 10**11
    source, target = rows.lengths(middle - 2, middle + 3)
    assert source.tolist() == [4, 4, 6, 6, 6]
    assert target.tolist() == [5, 5, 3, 3, 3]
    assert rows.header.longest == 6


def test_one_direction_is_prepared_under_the_name_it_had_before_there_were_many():
    before = (
        "corpus source_language target_language language valid_split test_split valid_pairs test_pairs "
        "max_sentence_tokens"
    )
    assert set(DataConfig(corpus="toy").deciding()) == set(before.split())
