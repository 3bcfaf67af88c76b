"""Verbs `translate` and `score`."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from deepnet.cli.options import (
    Device,
    Json,
    Models,
    Precision,
    To,
    TrustCode,
    examples,
    split_overrides,
)
from deepnet.cli.output import write_json_line, write_line

if TYPE_CHECKING:
    from io import BufferedReader

    from deepnet.decoding.translate import Translation

TRANSLATE_EXAMPLES = examples(
    "deepnet translate runs/mine < text.de > text.en",
    "deepnet translate runs/many --to fr < text.de    # a model of several languages",
    "deepnet translate runs/a runs/b runs/c < text.de    # an ensemble",
    "deepnet translate runs/mine --beam-size 10 --n-best 3 decoding.length_penalty=0.6 < text.de",
    "deepnet translate runs/mine decoding.method=sampling decoding.top_k=10 < text.de",
)
SCORE_EXAMPLES = examples(
    "deepnet score runs/mine --source text.de --target text.en",
    "deepnet score runs/mine --source text.de --target text.en decoding.length_penalty=0",
)


def translate(
    models: Models,
    to: To = "",
    beam_size: Annotated[
        int | None, typer.Option(metavar="N", help="Short for decoding.beam_size=N.")
    ] = None,
    n_best: Annotated[
        int | None, typer.Option(metavar="N", help="Short for decoding.n_best=N.")
    ] = None,
    chunk_lines: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Lines read ahead; 1 answers each line at once."),
    ] = 1024,
    device: Device = "auto",
    precision: Precision = "auto",
    trust_code: TrustCode = None,
    as_json: Json = False,
) -> None:
    """Translate standard input to standard output.

    Line by line, in order; a blank line stays blank. With --n-best above 1 every translation is a line
    "number ||| text ||| score", numbers counting from 0. With --json every input line gives one JSON object on a line.
    """
    from deepnet.data.text import decode_lines
    from deepnet.decoding.translate import translate as translate_lines
    from deepnet.decoding.translate import translations
    from deepnet.pipeline.devices import choose_device
    from deepnet.pipeline.opening import decoding_settings, open_models

    paths, overrides = split_overrides(models)
    short = {"beam_size": beam_size, "n_best": n_best}
    overrides += [f"decoding.{key}={value}" for key, value in short.items() if value is not None]
    translator, bundle = open_models(
        paths,
        to=to,
        device=choose_device(device),
        precision=precision,
        trust_code=trust_code or (),
    )
    config = decoding_settings(bundle, overrides)
    lines = decode_lines(cast("BufferedReader", sys.stdin.buffer), name="standard input")
    chunk = 1 if sys.stdin.isatty() else chunk_lines
    if not as_json:
        for text in translate_lines(translator, lines, config=config, chunk_lines=chunk):
            write_line(text)
        return
    for found in translations(translator, lines, config=config, chunk_lines=chunk):
        write_json_line({"translations": [describe_translation(one) for one in found]})


def describe_translation(translation: "Translation") -> dict[str, object]:
    """Return a translation as JSON has it; a blank line has no score."""
    found = translation.hypothesis
    scores = (found.score, found.log_probability) if found else (None, None)
    return {"text": translation.text, "score": scores[0], "log_probability": scores[1]}


def score(
    models: Models,
    source: Annotated[Path, typer.Option(metavar="FILE", help="Source sentences, one per line.")],
    target: Annotated[Path, typer.Option(metavar="FILE", help="Their translations, line by line.")],
    to: To = "",
    device: Device = "auto",
    precision: Precision = "auto",
    trust_code: TrustCode = None,
    as_json: Json = False,
) -> None:
    """Score given translations, one line per pair.

    A line has three numbers, separated by tabs: the score by which a search would rank the translation, which is
    log-probability / tokens^length_penalty; the natural logarithm of its probability given the source; and its tokens,
    the end of the sentence counted. With --json a line is a JSON object.
    """
    from deepnet.data.text import read_pairs
    from deepnet.decoding.translate import score as score_pairs
    from deepnet.pipeline.devices import choose_device
    from deepnet.pipeline.opening import decoding_settings, open_models

    paths, overrides = split_overrides(models)
    translator, bundle = open_models(
        paths,
        to=to,
        device=choose_device(device),
        precision=precision,
        trust_code=trust_code or (),
    )
    config = decoding_settings(bundle, overrides)
    for found in score_pairs(translator, read_pairs(source, target), config=config):
        if as_json:
            write_json_line(asdict(found))
        else:
            write_line(f"{found.score:.6f}\t{found.log_probability:.6f}\t{found.num_tokens}")
