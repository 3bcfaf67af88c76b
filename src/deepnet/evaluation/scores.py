"""BLEU and chrF of whole texts, by sacreBLEU, each with the signature that says how it was computed."""

from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from deepnet.errors import DataError
from deepnet.evaluation.tokenization import bleu_metric, choose_tokenization


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    tokenization: str | None = None,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Return {"bleu", "chrf", "signature": {"bleu", "chrf"}, "sentences", "seconds"} of detokenised text.

    `tokenization` is BLEU's; unset, the script of the references decides. `seconds` is how long the translation took,
    where it was measured. Raises DataError where the texts differ in length or are empty.
    """
    check_parallel(hypotheses, references)
    bleu = bleu_metric(tokenization or choose_tokenization(references))
    result: dict[str, Any] = {"signature": {}}
    for name, metric in (("bleu", bleu), ("chrf", CHRF())):
        result[name] = metric.corpus_score(list(hypotheses), [list(references)]).score
        result["signature"][name] = str(metric.get_signature())
    return result | {"sentences": len(hypotheses), "seconds": seconds}


def tokenized_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Return {"tokenized_bleu", "signature", "sentences"} of text that is already tokenised, split at spaces only.

    This is the measure of multi-bleu.perl and of the papers' tables; it cannot be compared with `corpus_scores`.
    Raises DataError where the texts differ in length or are empty.
    """
    check_parallel(hypotheses, references)
    metric = BLEU(tokenize="none", force=True)  # force: tokenised text is what is expected here
    score = metric.corpus_score(list(hypotheses), [list(references)]).score
    signature = {"tokenized_bleu": str(metric.get_signature())}
    return {"tokenized_bleu": score, "signature": signature, "sentences": len(hypotheses)}


def check_parallel(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Raise DataError where the two do not have one line each per sentence, or where there is none."""
    if len(hypotheses) != len(references):
        raise DataError(
            f"{len(hypotheses):,} translations but {len(references):,} references; line N of one"
            " must belong to line N of the other"
        )
    if not hypotheses:
        raise DataError("there is nothing to score: the texts are empty")
