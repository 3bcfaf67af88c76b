import math

import pytest

from deepnet.errors import DataError
from deepnet.evaluation.scores import corpus_scores, tokenized_bleu
from deepnet.evaluation.significance import paired_bootstrap

REFERENCES = [
    "The cat sat on the mat, quietly.",
    "A dog barked at the postman all day.",
    "It rained in the evening.",
    "Nobody saw the two children leave.",
] * 10


def test_a_perfect_translation_scores_100():
    scores = corpus_scores(REFERENCES, REFERENCES, seconds=1.5)
    assert scores["bleu"] == pytest.approx(100.0)
    assert scores["chrf"] == pytest.approx(100.0)
    assert scores["sentences"] == 40
    assert scores["seconds"] == 1.5
    assert set(scores) == {"bleu", "chrf", "signature", "sentences", "seconds"}


def test_signatures_say_how():
    signature = corpus_scores(REFERENCES, REFERENCES)["signature"]
    assert "case:mixed" in signature["bleu"]
    assert "tok:13a" in signature["bleu"]
    assert "version:" in signature["bleu"]
    assert "nc:6" in signature["chrf"]


def test_bleu_equals_the_formula_on_a_case_counted_by_hand():
    # 8 tokens against 9: matches 7/8, 5/7, 4/6, 3/5 of 1- to 4-grams; brevity penalty exp(1 - 9/8)
    hypothesis = "a b c d e x f g"
    reference = "a b c d e f g h i"
    matched = [7 / 8, 5 / 7, 3 / 6, 2 / 5]
    expected = 100 * math.exp(1 - 9 / 8) * math.prod(matched) ** 0.25
    assert tokenized_bleu([hypothesis], [reference])["tokenized_bleu"] == pytest.approx(expected)


def test_tokenised_bleu_splits_at_spaces_only():
    hypothesis, reference = ["the cat sat on the mat."] * 3, ["the cat sat on the mat ."] * 3
    joined = tokenized_bleu(hypothesis, reference)
    assert joined["tokenized_bleu"] < 90
    assert corpus_scores(hypothesis, reference)["bleu"] == pytest.approx(100.0)
    assert "tok:none" in joined["signature"]["tokenized_bleu"]


@pytest.mark.parametrize("score", [corpus_scores, tokenized_bleu])
def test_texts_of_different_length_are_refused(score):
    with pytest.raises(DataError, match="39 translations but 40 references"):
        score(REFERENCES[1:], REFERENCES)
    with pytest.raises(DataError, match="empty"):
        score([], [])


def worse(lines, every):
    return [
        line.replace("the", "thee").replace("A ", "An ") if i % every == 0 else line
        for i, line in enumerate(lines)
    ]


def test_a_clear_difference_is_significant_and_none_is_not():
    clear = paired_bootstrap(worse(REFERENCES, 1), REFERENCES, REFERENCES, num_samples=200)
    assert [c.metric for c in clear] == ["BLEU", "chrF2"]
    for comparison in clear:
        assert comparison.baseline < comparison.system == pytest.approx(100.0)
        assert comparison.p_value < 0.01
    same = worse(REFERENCES, 3)
    for comparison in paired_bootstrap(same, same, REFERENCES, num_samples=200):
        assert comparison.baseline == comparison.system
        assert comparison.p_value > 0.5


def test_outputs_of_different_length_are_not_compared():
    with pytest.raises(DataError, match="39 translations but 40 references"):
        paired_bootstrap(REFERENCES, REFERENCES[1:], REFERENCES)
    with pytest.raises(DataError, match="at least 2"):
        paired_bootstrap(["a"], ["a"], ["a"])
