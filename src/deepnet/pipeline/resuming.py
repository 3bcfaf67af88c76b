"""What a resumed run goes on with, and what it must not change."""

from typing import Any

import torch

from deepnet.config import build
from deepnet.data.prepare import PreparedData
from deepnet.data.tokenizer import TokenizerConfig
from deepnet.left_open import as_before, completed_by
from deepnet.pipeline.keeping import kept_text, named_as_before
from deepnet.pipeline.preparing import Report
from deepnet.pipeline.recipe import Recipe, load_recipe, own_ends, with_ends
from deepnet.pipeline.settling import settle_precision
from deepnet.record import RunFolder
from deepnet.training.checkpoint.folder import latest_checkpoint, read_header
from deepnet.training.checkpoint.resume import check_resumable


def resumed(recipe: Recipe, run: RunFolder, report: Report) -> tuple[Recipe, str | None]:
    """Return the recipe of a resumed run, and whose weights it starts from where it has not saved its own yet.

    A fine-tuned run keeps the vocabulary it took over, and any run what was settled where its recipe leaves it open.
    Files may be called otherwise where the run knows their contents. Raises ConfigError for a recipe that would go on
    with another.
    """
    saved = run.read_recipe()
    start_from: str | None = saved.get("start_from")
    if start_from:
        vocabulary = build(TokenizerConfig, saved["recipe"]["tokenizer"], where="tokenizer")
        recipe = recipe.model_copy(update={"tokenizer": vocabulary})
    recorded = load_recipe(run.path)
    recipe = completed_by(with_ends(recipe, recorded.ends), recorded)
    before, now = fixed_sections(recorded), fixed_sections(recipe)
    check_resumable(before, named_as_before(now, before) if kept_text(run) else now)
    if latest_checkpoint(run.checkpoints):
        return recipe, None
    weights = f" with the weights of {start_from}" if start_from else ""
    report(f"{run.path} has no checkpoint yet: training starts from the beginning{weights}")
    return recipe, start_from


def with_precision(recipe: Recipe, run: RunFolder | None, device: torch.device) -> Recipe:
    """Return the recipe with the precision that its run was begun in; without a run, that of the device."""
    recorded = run.read_recipe()["recipe"].get("training") if run else None
    training = settle_precision(
        recipe.training, device=device, width=recipe.model.d_model, recorded=recorded
    )
    return recipe.model_copy(update={"training": training})


def describe_again(run: RunFolder, recipe: Recipe, tokenization: str | None) -> None:
    """Write what a resumed run goes on with, before it does."""
    run.describe(
        recipe=recipe.model_dump(),
        start_from=run.read_recipe().get("start_from"),
        bleu_tokenization=tokenization,
    )


def fixed_sections(recipe: Recipe) -> dict[str, Any]:
    """Return what a resumed run must not change besides the sections of training.

    Of the ends, what is not the scheme's own, as there was no choice when the oldest runs were recorded.
    """
    sections = {"data", "cleaning", "tokenizer", "batching", "model", "scheme"}
    own = own_ends(recipe).model_dump()
    chosen = recipe.ends.model_dump(mode="json", exclude_none=True)
    ends = {key: value for key, value in chosen.items() if value != own[key]}
    fixed = recipe.model_dump(mode="json", include=sections)
    fixed["model"]["decoder_start"] = "eos" if recipe.model.starts_from_eos else "padding"
    return {**fixed, "ends": ends}


def fixed_settings(recipe: Recipe, run: RunFolder, data: PreparedData) -> dict[str, Any]:
    """Return what a resumed run must not change, the name of the text too, as its checkpoints say it.

    Files are called as there, and keys that came later are there where they change something.
    """
    settings = {**fixed_sections(recipe), "prepared": {"text": data.name}}
    latest = latest_checkpoint(run.checkpoints)
    if not latest:
        return settings
    before = read_header(latest)["settings"]
    return as_before(Recipe, named_as_before(settings, before), before)
