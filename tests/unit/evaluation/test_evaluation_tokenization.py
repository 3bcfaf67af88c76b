"""BLEU counts words, and what a word is depends on the language."""

import importlib.util

import pytest

from deepnet.errors import ConfigError
from deepnet.evaluation.scores import corpus_scores
from deepnet.evaluation.significance import paired_bootstrap
from deepnet.evaluation.tokenization import check_tokenization, choose_tokenization

CHINESE = [
    "今天下午我们要去图书馆看书。",
    "他昨天买了一辆红色的自行车。",
    "这部电影比我想象的要好看得多。",
]
NEARLY = [
    "今天下午我们要去图书馆看报。",
    "他昨天买了一辆蓝色的自行车。",
    "这部电影比我想象的要好看多了。",
]
ENGLISH = ["The cat sat on the mat.", "It rained all day in Berlin."]
UNSPACED = {
    "th": "วันนี้ตอนบ่ายเราจะไปห้องสมุดเพื่ออ่านหนังสือ",
    "lo": "ມື້ນີ້ຕອນບ່າຍພວກເຮົາຈະໄປຫໍສະໝຸດ",
    "km": "ថ្ងៃនេះរសៀលយើងនឹងទៅបណ្ណាល័យ",
    "my": "ဒီနေ့နေ့လယ်ကျွန်တော်တို့စာကြည့်တိုက်ကိုသွားမယ်",
    "bo": "དེ་རིང་ང་ཚོ་དཔེ་མཛོད་ཁང་ལ་འགྲོ་གི་ཡིན།",
}
has_mecab = importlib.util.find_spec("MeCab") is not None
has_mecab_ko = importlib.util.find_spec("mecab_ko") is not None


def test_a_nearly_perfect_chinese_translation_does_not_score_0():
    assert corpus_scores(NEARLY, CHINESE, tokenization="13a")["bleu"] < 5
    for name in ("zh", "char", None):
        assert corpus_scores(NEARLY, CHINESE, tokenization=name)["bleu"] > 70


def test_a_chinese_sentence_is_scored_as_counted_by_hand():
    # 5 characters each, one differs in the middle: 4/5, 2/4, 0 of 3 (half of 1/3) and 0 of 2 (a quarter of 1/2)
    expected = 100 * (4 / 5 * 2 / 4 * (1 / 2 / 3) * (1 / 4 / 2)) ** 0.25
    found = corpus_scores(["我们看书了"], ["我们读书了"], tokenization="zh")
    assert found["bleu"] == pytest.approx(expected)
    assert "tok:zh" in found["signature"]["bleu"]


@pytest.mark.parametrize("language", ["zh", "ZH", "zh-Hans", "zh_CN", "zho_Hant", "cmn", "yue"])
def test_chinese_is_split_as_sacrebleu_splits_it(language):
    assert choose_tokenization(CHINESE, language=language) == "zh"


@pytest.mark.parametrize("language", ["en", "de", "pt-BR", "zza", "target", "", "kok"])
def test_what_has_spaces_is_split_as_ever(language):
    assert choose_tokenization(ENGLISH, language=language) == "13a"


@pytest.mark.parametrize("language", UNSPACED)
@pytest.mark.parametrize("named", [True, False])
def test_scripts_without_spaces_are_scored_by_characters(language, named):
    references = [UNSPACED[language], "OK", "404"]
    assert choose_tokenization(references, language=language if named else "target") == "char"


def test_text_of_an_unnamed_language_is_judged_by_its_script():
    assert choose_tokenization(CHINESE) == "char"
    assert choose_tokenization(["Das Zeichen 书 heißt Buch."]) == "13a"
    assert choose_tokenization(["今天我们去看 Avatar。今天下午我们要去图书馆看书。"]) == "char"
    assert choose_tokenization(["12", "..."]) == "13a"


@pytest.mark.skipif(has_mecab and has_mecab_ko, reason="both packages are installed")
@pytest.mark.parametrize(
    ("language", "extra", "there"), [("ja", "ja", has_mecab), ("ko-KR", "ko", has_mecab_ko)]
)
def test_what_needs_a_package_that_is_missing_says_so_in_one_line(language, extra, there):
    if there:
        pytest.skip("the package is installed")
    said = []
    assert choose_tokenization(ENGLISH, language=language, report=said.append) == "char"
    (line,) = said
    assert f"{extra}-mecab" in line
    assert f"pip install 'sacrebleu[{extra}]'" in line
    assert "tok:char" in line
    with pytest.raises(ConfigError, match=rf"pip install 'sacrebleu\[{extra}\]'"):
        check_tokenization(f"{extra}-mecab")


@pytest.mark.skipif(not has_mecab, reason="needs sacrebleu[ja]")
def test_japanese_is_split_by_mecab_where_it_is_installed():
    japanese = ["今日は図書館で本を読みます。", "彼は赤い自転車を買いました。"]
    assert choose_tokenization(japanese, language="ja") == "ja-mecab"
    assert (
        "tok:ja-mecab"
        in corpus_scores(japanese, japanese, tokenization="ja-mecab")["signature"]["bleu"]
    )


@pytest.mark.skipif(not has_mecab_ko, reason="needs sacrebleu[ko]")
def test_korean_is_split_by_mecab_where_it_is_installed():
    assert choose_tokenization(["오늘 도서관에 갑니다."], language="ko") == "ko-mecab"


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"there is no BLEU tokenisation 'hz'.*zh"):
        check_tokenization("hz")
    with pytest.raises(ConfigError, match="there is no BLEU tokenisation 'hz'"):
        corpus_scores(CHINESE, CHINESE, tokenization="hz")


def test_systems_are_compared_in_the_tokenisation_of_the_language():
    texts = [lines * 10 for lines in (NEARLY, CHINESE, CHINESE)]
    for options, tokenization in (({}, "char"), ({"tokenization": "zh"}, "zh")):
        bleu, chrf = paired_bootstrap(*texts, num_samples=50, **options)
        assert f"tok:{tokenization}|" in bleu.signature
        assert bleu.baseline > 70
        assert bleu.system == pytest.approx(100)
        assert "tok:" not in chrf.signature
