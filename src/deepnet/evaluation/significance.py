"""Whether one system's scores are better than another's by more than the choice of sentences: paired bootstrap."""

from collections.abc import Sequence
from dataclasses import dataclass

from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest, Result

from deepnet.errors import DataError
from deepnet.evaluation.scores import check_parallel
from deepnet.evaluation.tokenization import bleu_metric, choose_tokenization


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One metric of two systems over resampled test sets."""

    metric: str
    """"BLEU" or "chrF2"."""
    baseline: float
    """Score of the first system on the whole test set."""
    baseline_interval: float
    """Half width of its 95% confidence interval."""
    system: float
    """Score of the second system."""
    system_interval: float
    """Half width of its 95% confidence interval."""
    p_value: float
    """Probability of a difference at least as large if the two were equally good."""
    signature: str
    """How the scores were computed."""


def paired_bootstrap(
    baseline: Sequence[str],
    system: Sequence[str],
    references: Sequence[str],
    *,
    tokenization: str | None = None,
    num_samples: int = 1000,
) -> list[Comparison]:
    """Return the comparison of two outputs in BLEU and in chrF, by sacreBLEU's paired bootstrap (Koehn 2004).

    `tokenization` is BLEU's; unset, the script of the references decides. Raises DataError where the three
    texts differ in length or are too short to resample.
    """
    check_parallel(baseline, references)
    check_parallel(system, references)
    if len(references) < 2:
        raise DataError("one sentence cannot be resampled; give at least 2")
    bleu = bleu_metric(tokenization or choose_tokenization(references), references)
    test = PairedTest(
        [("baseline", list(baseline)), ("system", list(system))],
        {"BLEU": bleu, "chrF2": CHRF(references=[list(references)])},
        references=None,
        test_type="bs",
        n_samples=num_samples,
    )
    signatures, scores = test()
    return [
        _comparison(name, str(signatures[name]), scores[name])
        for name in scores
        if name != "System"
    ]


def _comparison(metric: str, signature: str, results: Sequence[str | Result]) -> Comparison:
    first, second = (result for result in results if isinstance(result, Result))
    assert first.ci is not None
    assert second.ci is not None
    assert second.p_value is not None
    equal = first.score == second.score  # sacreBLEU counts larger differences only: it would say 0
    return Comparison(
        metric=metric,
        baseline=float(first.score),
        baseline_interval=float(first.ci),
        system=float(second.score),
        system_interval=float(second.ci),
        p_value=1.0 if equal else float(second.p_value),
        signature=signature,
    )
