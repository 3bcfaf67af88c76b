"""After the last update: the weights that are kept become a bundle, which is scored on the test part."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from deepnet.bundle import load_bundle, load_model_tensors, save_bundle
from deepnet.data.prepare import PreparedData
from deepnet.data.tokenizer import Tokenizers
from deepnet.decoding.into import ManyLanguages
from deepnet.decoding.translate import Translator
from deepnet.pipeline.direction_scores import score_directions
from deepnet.pipeline.opening import bundle_precision
from deepnet.pipeline.preparing import Report, held_out_batches
from deepnet.pipeline.recipe import Recipe
from deepnet.pipeline.timed_scores import timed_perplexity, timed_scores
from deepnet.record import RunFolder, atomic_write, write_json
from deepnet.schemes.catalogue import describe_scheme
from deepnet.training.checkpoint.folder import read_header
from deepnet.training.checkpoint.selection import select_checkpoints, selected_weights
from deepnet.transformer.models import Transformer


def write_bundle(
    recipe: Recipe,
    run: RunFolder,
    model: Transformer,
    data: PreparedData,
    *,
    tokenization: str | None,
    report: Report,
) -> None:
    """Write the run's bundle from the checkpoints that the recipe chooses; `model` takes their weights."""
    wanted = recipe.training.average_last
    checkpoints = select_checkpoints(run.checkpoints, average_last=wanted)
    if len(checkpoints) < wanted:
        report(
            f"of training.average_last = {wanted} checkpoints there are {len(checkpoints)}: the model is their "
            "average; a lower training.save_every gives more"
        )
    save_weights(
        run.bundle,
        checkpoints,
        recipe=recipe,
        model=model.cpu(),
        tokenizers=data.tokenizers,
        languages=bundle_languages(recipe, data),
        tokenization=tokenization,
        notice=data.summary["notice"],
    )


def bundle_languages(recipe: Recipe, data: PreparedData) -> dict[str, Any]:
    """Return what a bundle says of its languages: that of each side, or of many the directions and where tags stand."""
    if not data.directions:
        return dict(zip(recipe.data.sides, recipe.data.languages, strict=True))
    many = ManyLanguages(
        directions=tuple((one.source, one.target) for one in data.directions),
        zero_shot=tuple((one.source, one.target) for one in data.zero_shot),
        tag=recipe.data.language_tag,
    )
    return many.model_dump(mode="json")


def save_weights(
    path: Path,
    checkpoints: list[Path],
    *,
    recipe: Recipe,
    model: Transformer,
    tokenizers: Tokenizers,
    languages: Mapping[str, Any],
    tokenization: str | None,
    notice: str,
) -> list[int]:
    """Write a bundle of the average of some checkpoints of a recipe's run; return the steps they are of.

    `languages` are as `bundle_languages` gives them, `tokenization` is that of the run's BLEU, None where it has none.
    """
    load_model_tensors(model, selected_weights(checkpoints))
    model.scheme.after_update(
        model
    )  # an average of weights may leave what the scheme keeps them to
    steps = [read_header(checkpoint)["state"].step for checkpoint in checkpoints]
    save_bundle(
        path,
        model,
        tokenizers,
        languages=languages,
        provenance={
            "steps": steps,
            "notice": notice,
            "decoding": recipe.decoding.model_dump(),
            "bleu_tokenization": tokenization,
            "precision": recipe.training.precision,
        },
    )
    return steps


def score_test(
    recipe: Recipe,
    run: RunFolder,
    data: PreparedData,
    *,
    device: torch.device,
    tokenization: str | None,
) -> dict[str, Any]:
    """Score the run's bundle on the test part, which a translator translates; both go into the run's outputs folder."""
    own = describe_scheme(recipe.residual_scheme())["name"]  # the recipe has brought it already
    bundle = load_bundle(run.bundle, device, trust_code=own)
    precision = bundle_precision(bundle)
    if not recipe.translates:
        batches = held_out_batches(recipe, data, "test")
        scores = timed_perplexity(bundle.model, batches, device=device, precision=precision)
        _write_outputs(run, {}, scores)
        return scores
    if data.directions:
        asked = recipe.validation.bleu_tokenization
        many, scores = score_directions(
            [bundle],
            data,
            "test",
            config=recipe.decoding,
            autocast=precision.autocast,
            tokenization=None if asked == "auto" else asked,
        )
        named = {f"{way}.{name}": text for way, of in many.items() for name, text in of.items()}
        _write_outputs(run, named, scores)
        return scores
    sources, references = data.lines("test")
    translator = Translator.of(bundle, autocast=precision.autocast)
    translations, scores = timed_scores(
        translator, sources, references, config=recipe.decoding, tokenization=tokenization
    )
    texts = {"source": sources, "reference": references, "translation": translations}
    _write_outputs(run, texts, scores)
    return scores


def _write_outputs(
    run: RunFolder, texts: Mapping[str, list[str]], scores: Mapping[str, Any]
) -> None:
    folder = run.path / "outputs"
    folder.mkdir(exist_ok=True)
    for name, lines in texts.items():
        with atomic_write(folder / f"test.{name}.txt") as file:
            file.write("".join(line + "\n" for line in lines).encode())
    write_json(folder / "test.scores.json", scores)
