import pytest

from deepnet.data.corpora import (
    builtin_folder,
    check_languages,
    find_corpus,
    find_folder,
    list_corpora,
    split_file,
)
from deepnet.data.text import read_lines
from deepnet.errors import ConfigError, DataError

PROMISED = [
    "tatoeba-en-de",
    "home-assistant",
    "multi30k",
    "iwslt14-de-en",
    "wmt17-en-de",
    "wmt14-en-fr",
    "opus-100",
    "multiun",
]


@pytest.mark.parametrize("name", PROMISED)
def test_every_corpus_says_what_it_is(name):
    corpus = find_corpus(name)
    assert corpus.licence
    assert corpus.licence in corpus.notice
    assert corpus.attribution in corpus.notice
    assert corpus.homepage.startswith("https://")
    assert "train" in corpus.splits
    assert corpus.builtin or {part.split for part in corpus.parts} | {"valid"} >= set(corpus.splits)
    for part in corpus.parts:
        url = part.url.format(language="de", pair="de-en")
        assert url.startswith("https://")
        assert "{" not in url + part.member.format(language="de", pair="de-en")


def test_the_catalogue_holds_what_was_promised():
    assert sorted(list_corpora()) == sorted(PROMISED)
    assert len(find_corpus("home-assistant").languages) == 43
    assert len(find_corpus("opus-100").languages) == 100


@pytest.mark.parametrize(
    ("name", "source", "target", "lines"),
    [
        ("tatoeba-en-de", "de", "en", (164825, 2000, 2000)),
        ("home-assistant", "fy", "zh-Hant", (8407, 384, 330)),
    ],
)
def test_builtin_corpora_are_complete(tmp_path, name, source, target, lines):
    folder = find_folder(find_corpus(name), (source, target), downloads=tmp_path)
    for split, number in zip(("train", "valid", "test"), lines, strict=True):
        for language in (source, target):
            assert sum(1 for _ in read_lines(split_file(folder, split, language))) == number


def test_builtin_corpora_carry_licence_and_attribution():
    for name in ("tatoeba-en-de", "home-assistant"):
        assert (builtin_folder() / name / "LICENSE.md").read_text(encoding="utf-8")
        assert find_corpus(name).licence in (builtin_folder() / name / "ATTRIBUTION.md").read_text(
            encoding="utf-8"
        )


def test_every_language_of_home_assistant_has_every_split():
    for language in find_corpus("home-assistant").languages:
        for split in ("train", "valid", "test"):
            assert split_file(builtin_folder() / "home-assistant", split, language).is_file()


@pytest.mark.parametrize(
    ("name", "languages", "message"),
    [
        ("multi30k", ("de", "pl"), "multi30k has no language 'pl'; it has cs, de, en, fr"),
        ("home-assistant", ("de", "pt-br"), "did you mean 'pt-BR'"),
        ("opus-100", ("de", "fr"), "pairs every language with 'en' only"),
        ("multi30k", ("de", "de"), "both 'de'"),
    ],
)
def test_languages_a_corpus_lacks(name, languages, message):
    with pytest.raises(ConfigError, match=message):
        check_languages(find_corpus(name), languages)


def test_unknown_names_get_a_suggestion():
    with pytest.raises(ConfigError, match="did you mean 'multi30k'"):
        find_corpus("multi30")
    with pytest.raises(ConfigError, match="known are tatoeba-en-de, "):
        find_corpus("zzz")


def _write(folder, *names):
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text("x\n")


def test_the_offline_folder_comes_before_downloads(tmp_path, monkeypatch):
    corpus, pair = find_corpus("multi30k"), ("de", "en")
    offline, downloads = tmp_path / "offline", tmp_path / "downloads"
    _write(downloads / "multi30k", "train.de", "train.en")
    assert find_folder(corpus, pair, downloads=downloads) == downloads / "multi30k"
    _write(offline / "multi30k", "train.de", "train.en.gz")
    monkeypatch.setenv("DEEPNET_DATA", str(offline))
    assert find_folder(corpus, pair, downloads=downloads) == offline / "multi30k"
    assert find_folder(corpus, ("de", "fr"), downloads=downloads) is None


def test_pairwise_corpora_lie_one_folder_deeper(tmp_path):
    _write(tmp_path / "opus-100" / "de-en", "train.de", "train.en")
    corpus = find_corpus("opus-100")
    assert find_folder(corpus, ("en", "de"), downloads=tmp_path) == tmp_path / "opus-100" / "de-en"


def test_a_folder_of_ones_own_below_the_offline_folder_is_a_corpus(tmp_path, monkeypatch):
    _write(tmp_path / "mine", "train.xx", "train.pt-BR.gz", "dev.xx", "README")
    monkeypatch.setenv("DEEPNET_DATA", str(tmp_path))
    corpus = find_corpus("mine")
    assert corpus.languages == ("pt-BR", "xx")
    assert corpus.splits == ("dev", "train")


def test_a_wrong_offline_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("DEEPNET_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"DEEPNET_DATA is .*nowhere"):
        find_folder(find_corpus("multi30k"), ("de", "en"), downloads=tmp_path)


def test_a_split_that_is_not_there_names_those_that_are(tmp_path):
    _write(tmp_path / "c", "train.de", "test2016.de", "train.en")
    with pytest.raises(
        DataError, match=r"has no split 'test2017' in 'de'; did you mean 'test2016'"
    ):
        split_file(tmp_path / "c", "test2017", "de")
    with pytest.raises(DataError, match=r"has no split 'valid' in 'en'; there are train"):
        split_file(tmp_path / "c", "valid", "en")
