"""Verbs `evaluate` and `compare`."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepnet.cli.options import (
    Cache,
    Device,
    Json,
    Models,
    Precision,
    To,
    TrustCode,
    cache_folder,
    examples,
    split_overrides,
)
from deepnet.cli.output import Output
from deepnet.errors import ConfigError

if TYPE_CHECKING:
    from deepnet.evaluation.significance import Comparison

EVALUATE_EXAMPLES = examples(
    "deepnet evaluate runs/mine                       # its own test part",
    "deepnet evaluate runs/mine --part valid decoding.beam_size=10",
    "deepnet evaluate runs/mine --source news.de --reference news.en",
    "deepnet evaluate runs/a runs/b --json            # an ensemble, on the test part of runs/a",
)
COMPARE_EXAMPLES = examples(
    "deepnet compare runs/{a,b}/outputs/test.translation.txt"
    " --reference runs/a/outputs/test.reference.txt",
)

BleuTokenization = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="How BLEU splits text: 13a, intl, zh, ja-mecab, ko-mecab or char.",
        show_default=False,
    ),
]


def evaluate(
    models: Models,
    part: Annotated[
        str, typer.Option(metavar="PART", help="Part of the run's data: test or valid.")
    ] = "test",
    source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Translate this file instead of a part.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The translations to compare with.")
    ] = None,
    to: To = "",
    tokenized: Annotated[
        bool,
        typer.Option("--tokenized", help="Add tokenised BLEU, for text that is tokenised already."),
    ] = False,
    bleu_tokenization: BleuTokenization = None,
    device: Device = "auto",
    precision: Precision = "auto",
    cache: Cache = None,
    trust_code: TrustCode = None,
    as_json: Json = False,
) -> None:
    """Translate a test part and score it by BLEU and chrF; of a model of one text, give loss and perplexity.

    The valid and test part are those that the run's folder keeps, wherever it is. A run of many directions is scored in
    each of them.

    The scores are sacreBLEU's, each with the signature that says how it was computed. BLEU splits text as it did in the
    run (validation.bleu_tokenization). Tokenised BLEU, the measure of
    many papers' tables, splits at spaces only; it means something for text that was tokenised before training, and
    cannot be compared with the BLEU beside it.
    """
    from deepnet.cli.reports import show_perplexity, show_scores
    from deepnet.pipeline.evaluating import evaluate as evaluate_models

    if (source is None) != (reference is None):
        raise ConfigError("--source and --reference belong together; give both, or neither")
    output = Output(as_json=as_json)
    paths, overrides = split_overrides(models)
    scores = evaluate_models(
        paths,
        overrides=overrides,
        part=part,
        files=(source, reference) if source and reference else None,
        to=to,
        tokenized=tokenized,
        bleu_tokenization=bleu_tokenization,
        device=device,
        precision=precision,
        cache=cache_folder(cache),
        trust_code=trust_code or (),
        report=output.say,
    )
    if "perplexity" in scores:
        output.result(scores, show=lambda: show_perplexity(output, scores, part=part))
        return
    output.result(scores, show=lambda: show_scores(output, scores))


def compare(
    baseline: Annotated[Path, typer.Argument(metavar="HYP", help="Translations by one system.")],
    system: Annotated[Path, typer.Argument(metavar="HYP", help="Translations by another.")],
    reference: Annotated[Path, typer.Option(metavar="FILE", help="The references.")],
    samples: Annotated[int, typer.Option(metavar="N", min=1, help="Resampled test sets.")] = 1000,
    bleu_tokenization: BleuTokenization = None,
    as_json: Json = False,
) -> None:
    """Test whether two systems' scores differ by chance.

    Paired bootstrap over the sentences, in BLEU and chrF: p is how often a difference at least as large comes about by
    chance; below 0.05 it is usually called significant. BLEU splits text as in the scores beside the translations,
    where a run wrote them; two that were scored differently are refused without --bleu-tokenization.
    """
    from deepnet.pipeline.comparing import compare_files

    output = Output(as_json=as_json)
    found = compare_files(
        baseline, system, reference, tokenization=bleu_tokenization, num_samples=samples
    )
    output.result([asdict(row) for row in found], show=lambda: _show(output, found))


def _show(output: Output, found: "list[Comparison]") -> None:
    output.table(
        ["metric", "first", "+-", "second", "+-", "p", "signature"],
        [
            (
                row.metric,
                row.baseline,
                row.baseline_interval,
                row.system,
                row.system_interval,
                row.p_value,
                row.signature,
            )
            for row in found
        ],
    )
    output.say("+- is half the width of the 95% confidence interval")
