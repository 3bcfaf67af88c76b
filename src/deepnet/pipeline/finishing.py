"""After the last update: the weights that are kept become a bundle, which translates the test part and is scored."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from deepnet.bundle import load_bundle, load_model_tensors, save_bundle
from deepnet.data.prepare import PreparedData
from deepnet.data.tokenizer import Tokenizers
from deepnet.decoding.interface import DecodingConfig
from deepnet.decoding.translate import Translator
from deepnet.pipeline.recipe import Recipe
from deepnet.pipeline.scoring import timed_scores
from deepnet.record import RunFolder, atomic_write, write_json
from deepnet.training.checkpoint import read_header
from deepnet.training.selection import select_checkpoints, selected_weights
from deepnet.transformer.models import Transformer


def write_bundle(recipe: Recipe, run: RunFolder, model: Transformer, data: PreparedData) -> None:
    """Write the run's bundle from the checkpoints that the recipe chooses; `model` takes their weights."""
    checkpoints = select_checkpoints(run.checkpoints, average_last=recipe.training.average_last)
    save_weights(
        run.bundle,
        checkpoints,
        recipe=recipe,
        model=model.cpu(),
        tokenizers=data.tokenizers,
        notice=data.summary["notice"],
    )


def save_weights(
    path: Path,
    checkpoints: list[Path],
    *,
    recipe: Recipe,
    model: Transformer,
    tokenizers: Tokenizers,
    notice: str,
) -> list[int]:
    """Write a bundle of the average of some checkpoints of a recipe's run; return the steps they are of."""
    load_model_tensors(model, selected_weights(checkpoints))
    steps = [read_header(checkpoint)["state"].step for checkpoint in checkpoints]
    source, target = recipe.data.languages
    save_bundle(
        path,
        model,
        tokenizers,
        languages={"source": source, "target": target},
        provenance={"steps": steps, "notice": notice, "decoding": recipe.decoding.model_dump()},
    )
    return steps


def score_test(
    run: RunFolder,
    data: PreparedData,
    *,
    decoding: DecodingConfig,
    part: str = "test",
    device: str | torch.device = "cpu",
) -> dict[str, Any]:
    """Translate a part with the run's bundle, score it, and keep both in the run's outputs folder."""
    sources, references = data.lines(part)
    translator = Translator.of(load_bundle(run.bundle, device))
    translations, scores = timed_scores(translator, sources, references, config=decoding)
    _write_outputs(run, part, sources, references, translations, scores)
    return scores


def _write_outputs(
    run: RunFolder,
    part: str,
    sources: list[str],
    references: list[str],
    translations: list[str],
    scores: Mapping[str, Any],
) -> None:
    folder = run.path / "outputs"
    folder.mkdir(exist_ok=True)
    texts = {"source": sources, "reference": references, "translation": translations}
    for name, lines in texts.items():
        with atomic_write(folder / f"{part}.{name}.txt") as file:
            file.write("".join(line + "\n" for line in lines).encode())
    write_json(folder / f"{part}.scores.json", scores)
