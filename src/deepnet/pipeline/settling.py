"""What a recipe leaves open is settled before its run begins, and recorded as if it had been said."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from deepnet.bundle import read_bundle_config
from deepnet.errors import ConfigError
from deepnet.evaluation.tokenization import check_tokenization, choose_tokenization
from deepnet.left_open import is_silent
from deepnet.pipeline.opening import bundle_path
from deepnet.pipeline.preparing import Report
from deepnet.pipeline.recipe import (
    Recipe,
    own_ends,
    planned_ends,
    planned_stacks,
    with_ends,
)
from deepnet.schemes.base import Ends, Policy, Role
from deepnet.training.checkpoint.resume import kept_precision
from deepnet.training.config import OptimizerConfig, TrainingConfig, optimizer_family
from deepnet.training.engine.precision import resolve_precision
from deepnet.transformer.ends import EndsConfig, choose_ends, own_rate

RELATIVE_STEP = 0.5
"""What an update at the peak learning rate moves a number of an embedding by, in standard deviations of their draw.

docs/ends.md has the measurements.
"""
CLIP_NORM = 1.0
"""The longest gradient of a recipe that says nothing of it.

docs/guard.md has the measurements.
"""


def settle_precision(
    training: TrainingConfig,
    *,
    device: torch.device,
    width: int = 0,
    recorded: Mapping[str, Any] | None = None,
) -> TrainingConfig:
    """Return the section with the precision of a run in place of "auto": the `recorded` section's, else the device's.

    Raises ConfigError where the device cannot compute in it.
    """
    name = (
        training.precision
        if not recorded
        else kept_precision(training.precision, {"training": recorded})
    )
    found = resolve_precision(name, device=device, width=width).name
    return training.model_copy(update={"precision": found})


def settle_model(
    recipe: Recipe,
    *,
    vocab_size: int,
    start_from: str | Path | None = None,
    report: Report | None = None,
) -> Recipe:
    """Return the recipe with its positions and the learning rates of its ends in place of what it leaves open."""
    recipe = settle_positions(recipe, report=report)
    return settle_ends(recipe, vocab_size=vocab_size, start_from=start_from, report=report)


def settle_positions(recipe: Recipe, *, report: Report | None = None) -> Recipe:
    """Return the recipe with rotary angles where it translates and says nothing of positions.

    They stay sinusoids where heads are of an odd size, or where a stack has no self-attention that could turn.
    """
    is_open = is_silent(recipe.model, "positions")
    if not is_open or not recipe.translates or not _can_turn(recipe):
        return recipe
    if report:
        report("positions are rotary angles in self-attention (model.positions)")
    model = recipe.model.model_copy(update={"positions": "rotary"})
    return recipe.model_copy(update={"model": model})


def _can_turn(recipe: Recipe) -> bool:
    """Return whether every stack has self-attention, and its heads are of an even size."""
    even = recipe.model.d_model // recipe.model.num_heads % 2 == 0
    return even and all(
        any(site.branch == "self" for _, site in plan.sites) for _, plan in planned_stacks(recipe)
    )


def settle_clipping(
    recipe: Recipe, *, start_from: str | Path | None = None, report: Report | None = None
) -> Recipe:
    """Return the recipe with gradients clipped at CLIP_NORM where it says nothing of that and it was measured.

    That is from random weights, under Adam and AdamW. The way to train is settled before: steps in the backward pass,
    which a budget of memory may have chosen, know no whole gradient, and a default does not stand in their way.
    """
    is_open = is_silent(recipe.training, "clip_norm")
    if not is_open or start_from or not _was_clipped_in_the_study(recipe.optimizer):
        return recipe
    way, clipped = recipe.training, f"scaled down to {CLIP_NORM:g}"
    if way.step_in_backward:
        said = f"gradients are not {clipped}, because of training.step_in_backward = true"
    else:
        said = f"gradients longer than {CLIP_NORM:g} are scaled down to that"
        way = way.model_copy(update={"clip_norm": CLIP_NORM})
    if report:
        report(f"{said} (training.clip_norm)")
    return recipe.model_copy(update={"training": way})


def _was_clipped_in_the_study(optimizer: OptimizerConfig) -> bool:
    """Return whether an optimiser is one of the study, which had no decay that is added to the gradient."""
    return optimizer.name == "adamw" or (optimizer.name == "adam" and not optimizer.weight_decay)


def settle_ends(
    recipe: Recipe,
    *,
    vocab_size: int,
    start_from: str | Path | None = None,
    report: Report | None = None,
) -> Recipe:
    """Return the recipe with the learning rates of its ends in numbers, and to fine-tune with the rows of the bundle.

    Where it says nothing, embeddings learn faster than matrices: by RELATIVE_STEP * std / lr, at least 1. They do not
    where the optimiser is not of Adam's family, where the scheme has a rate of its own, or where they are trained.
    """
    if start_from:
        rows = read_bundle_config(bundle_path(start_from)).ends.rows
        settled = with_ends(recipe, own_ends(recipe).model_copy(update={"rows": rows}))
    else:
        settled = with_ends(recipe, default_ends(recipe, vocab_size=vocab_size))
    multiplier = settled.ends.embedding_lr_multiplier
    if report and multiplier not in (None, 1.0):
        others = "AdamW's other parameters" if recipe.optimizer.name == "muon" else "matrices"
        report(
            f"embeddings learn {multiplier:.3g} times as fast as {others} (ends.embedding_lr_multiplier)"
        )
        if recipe.model.positions == "sinusoidal":
            report(
                "they outgrow sinusoids, which are added to them; model.positions = 'rotary' is not (docs/ends.md)"
            )
    return settled


def settle_tokenization(
    recipe: Recipe,
    references: Sequence[str],
    *,
    recorded: Mapping[str, Any] | None = None,
    report: Report | None = None,
) -> str | None:
    """Return how the run's BLEUs, of all its sessions, split text; None where nothing is translated.

    Of many directions each is split as its own target language asks, so it is None, too.

    `recorded` is what recipe.json says of a run that is resumed. Raises ConfigError where its recipe asks for another
    tokenisation than its BLEUs so far have, and where one needs a package that is not installed.
    """
    if not recipe.translates or recipe.data.pairs:
        return None
    asked = recipe.validation.bleu_tokenization
    settled = _tokenization_so_far(recorded) if recorded else None
    if settled and asked not in ("auto", settled):
        raise ConfigError(
            f"the BLEUs of this run are of tokenisation {settled}, and those of {asked} cannot be compared with them; "
            f"leave validation.bleu_tokenization out, and score with 'deepnet evaluate RUN --bleu-tokenization {asked}'"
        )
    named = settled or (None if asked == "auto" else asked)
    if named:
        check_tokenization(named)
    return named or choose_tokenization(
        references, language=recipe.data.target_language, report=report
    )


def _tokenization_so_far(recorded: Mapping[str, Any]) -> str | None:
    """Return what a run was settled with; one from before there was a choice has validated by 13a, if at all."""
    found: str | None = recorded.get("bleu_tokenization")
    validated = recorded["recipe"].get("validation", {}).get("bleu", False)
    return found or ("13a" if validated else None)


def default_ends(recipe: Recipe, *, vocab_size: int) -> EndsConfig:
    """Return what a recipe gets where it says nothing of the learning rates of its ends.

    What AdamW's decay takes off a row at an update stays what it was.
    """
    planned = [choose_ends(ends, recipe.ends, context) for context, ends in planned_ends(recipe)]
    untied = recipe.model.tie_embeddings == "none"
    roles: list[tuple[Role, Sequence[Ends]]] = [("embedding", planned)]
    roles += [("vocabulary", planned[-1:])] if untied else []
    found: dict[str, Any] = {}
    for role, ends in roles:
        given = recipe.ends.of(role, "lr")
        multiplier = _multiplier(recipe, role, ends, vocab_size) if given is None else given
        found[f"{role}_lr_multiplier"] = multiplier
        own = ends[-1].policy.get(role, Policy())
        if multiplier not in (None, given, own.lr) and _decays(recipe, ends):
            found[f"{role}_weight_decay_multiplier"] = own.weight_decay * own.lr / multiplier
    return EndsConfig(**found)


def _multiplier(
    recipe: Recipe, role: Role, planned: Sequence[Ends], vocab_size: int
) -> float | None:
    own = own_rate(planned, role)
    stds = [
        ends.init[role].std(recipe.model.d_model, vocab_size)
        for ends in planned
        if role in ends.init
    ]
    is_open = own == 1.0 and not any("lr" in ends.fixes for ends in planned)
    if optimizer_family(recipe.optimizer.name) != "adam" or not is_open or not stds:
        return own
    return max(1.0, RELATIVE_STEP * min(stds) / recipe.optimizer.lr)


def _decays(recipe: Recipe, planned: Sequence[Ends]) -> bool:
    """Return whether AdamW's decay, which is per unit of learning rate, acts on rows and is open."""
    adamw = recipe.optimizer.name in ("adamw", "muon") and recipe.optimizer.weight_decay > 0
    return adamw and not any("weight_decay" in ends.fixes for ends in planned)
