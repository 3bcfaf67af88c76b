"""Score a model of many directions: each by itself, and the averages that papers give."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deepnet.bundle import Bundle
from deepnet.data.directions import Direction
from deepnet.data.prepare import PreparedData
from deepnet.decoding.interface import DecodingConfig
from deepnet.decoding.translate import Autocast, Translator
from deepnet.evaluation.tokenization import choose_tokenization
from deepnet.pipeline.timed_scores import timed_scores

ENGLISH = "en"
"""The language that directions are averaged around."""
_METRICS = ("bleu", "chrf")
Texts = dict[str, list[str]]
"""Lines by "source", "reference" and "translation"."""


def score_directions(
    bundles: Sequence[Bundle],
    data: PreparedData,
    part: str,
    *,
    config: DecodingConfig,
    autocast: Autocast,
    tokenization: str | None = None,
    report: Callable[[str], None] | None = None,
) -> tuple[dict[str, Texts], dict[str, Any]]:
    """Return texts and scores of "valid" or "test" in every direction that is trained, and in those asked for besides.

    BLEU splits text by `tokenization`, unset as each target language asks. The scores are "directions" ({"de-en": what
    `timed_scores` gives, "source", "target" and "trained"}), "averages" as `averages` has them, of all trained
    directions the mean "bleu" and "chrf" with their common "signature", and the sums of "sentences" and "seconds".
    """
    texts, found = dict[str, Texts](), dict[str, dict[str, Any]]()
    for direction in (*data.directions, *data.zero_shot):
        sources, references = data.lines_of(direction, part)
        split = tokenization or choose_tokenization(
            references, language=direction.target, report=report
        )
        translator = Translator.of(*bundles, to=direction.target, autocast=autocast)
        best, scores = timed_scores(
            translator, sources, references, config=config, tokenization=split
        )
        texts[str(direction)] = {"source": sources, "reference": references, "translation": best}
        named = {"source": direction.source, "target": direction.target}
        found[str(direction)] = {**named, "trained": direction in data.directions, **scores}
    return texts, _summary(found, averages(data.directions, data.zero_shot, found))


def averages(
    trained: Sequence[Direction],
    zero_shot: Sequence[Direction],
    scores: Mapping[str, Mapping[str, float]],
) -> dict[str, dict[str, float]]:
    """Return the mean BLEU and chrF over directions by what they are; of directions, not of sentences.

    "x-en" and "en-x" are the trained ones into and out of English, "all" those that are trained, "zero-shot" the
    others; each with its number of "directions". A kind of which there is none is left out.
    """
    kinds = {
        "x-en": [direction for direction in trained if direction.target == ENGLISH],
        "en-x": [direction for direction in trained if direction.source == ENGLISH],
        "all": list(trained),
        "zero-shot": list(zero_shot),
    }
    return {
        kind: {
            **{name: _mean([scores[str(d)][name] for d in members]) for name in _METRICS},
            "directions": len(members),
        }
        for kind, members in kinds.items()
        if members
    }


def _summary(
    found: Mapping[str, dict[str, Any]], means: Mapping[str, dict[str, float]]
) -> dict[str, Any]:
    signatures = {name: {one["signature"][name] for one in found.values()} for name in _METRICS}
    return {
        "directions": dict(found),
        "averages": dict(means),
        **{name: means["all"][name] for name in _METRICS},
        "signature": {
            name: min(kinds) if len(kinds) == 1 else "various" for name, kinds in signatures.items()
        },
        "sentences": sum(one["sentences"] for one in found.values()),
        "seconds": sum(one["seconds"] for one in found.values()),
    }


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)
