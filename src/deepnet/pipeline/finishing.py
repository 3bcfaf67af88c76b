"""After the last update: the weights that are kept become a bundle, which translates the test part and is scored."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepnet.bundle import load_bundle, load_model_tensors, read_tensors, save_bundle
from deepnet.data.prepare import PreparedData
from deepnet.decoding.interface import DecodingConfig
from deepnet.decoding.translate import translate
from deepnet.errors import CheckpointError
from deepnet.evaluation.scores import corpus_scores
from deepnet.pipeline.recipe import Recipe
from deepnet.record import RunFolder, atomic_write, write_json
from deepnet.training.averaging import average_tensors
from deepnet.training.checkpoint import checkpoint_path, list_checkpoints, read_header
from deepnet.transformer.models import Transformer


def write_bundle(recipe: Recipe, run: RunFolder, model: Transformer, data: PreparedData) -> None:
    """Write the run's bundle from the checkpoints that the recipe chooses; `model` takes their weights."""
    tensors, steps = chosen_weights(recipe, run)
    model.cpu()
    load_model_tensors(model, tensors)
    source, target = recipe.data.languages
    save_bundle(
        run.bundle,
        model,
        data.tokenizers,
        languages={"source": source, "target": target},
        provenance={"steps": steps, "notice": data.summary["notice"]},
    )


def chosen_weights(recipe: Recipe, run: RunFolder) -> tuple[dict[str, Tensor], list[int]]:
    """Return the final weights and the steps they are of: an average of the last, else the best, else the latest."""
    checkpoints = list_checkpoints(run.checkpoints)
    if not checkpoints:
        raise CheckpointError(f"{run.path} has no checkpoint to make a model of; train it first")
    count = recipe.training.average_last
    if count:
        chosen = checkpoints[-count:]
    else:
        best = read_header(checkpoints[-1])["state"].best_step
        chosen = [checkpoint_path(run.checkpoints, step=best)] if best else checkpoints[-1:]
    groups = [_weights(path, averaged=recipe.training.ema_decay > 0) for path in chosen]
    return average_tensors(groups), [read_header(path)["state"].step for path in chosen]


def _weights(checkpoint: Path, *, averaged: bool) -> dict[str, Tensor]:
    """Return a checkpoint's weights, or their moving average where it keeps one."""
    tensors = read_tensors(checkpoint / "model.safetensors")
    return tensors | (read_tensors(checkpoint / "ema.safetensors") if averaged else {})


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
    bundle = load_bundle(run.bundle, device)
    started = time.monotonic()
    translations = list(translate(bundle, sources, config=decoding))
    scores = corpus_scores(translations, references, seconds=time.monotonic() - started)
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
