"""What a recipe leaves open is settled before its run begins, and recorded as if it had been said."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deepnet.bundle import read_bundle_config
from deepnet.config import build
from deepnet.pipeline.opening import bundle_path
from deepnet.pipeline.preparing import Report
from deepnet.pipeline.recipe import ENDS_BEFORE, Recipe
from deepnet.schemes.base import Ends, Policy
from deepnet.training.config import optimizer_family
from deepnet.transformer.ends import EndsConfig
from deepnet.transformer.models import stack_context

RELATIVE_STEP = 0.5
"""What an update at the peak learning rate moves a number of an embedding by, in standard deviations of their draw.

docs/ends.md has the measurements.
"""


def settle_ends(
    recipe: Recipe, *, start_from: str | Path | None = None, report: Report | None = None
) -> Recipe:
    """Return the recipe with its ends decided where it says nothing of them: a bundle's to fine-tune, or the default.

    By default embeddings learn faster than matrices, where the optimiser is of Adam's family and the scheme leaves
    their learning rate open: by RELATIVE_STEP * std / lr, at least 1.
    """
    if recipe.ends != EndsConfig():
        return recipe
    if start_from:
        return recipe.model_copy(update={"ends": read_bundle_config(bundle_path(start_from)).ends})
    ends = _default_ends(recipe)
    multiplier = ends.embedding_lr_multiplier
    if report and multiplier:
        report(
            f"embeddings learn {multiplier:.3g} times as fast as matrices (no [ends] in the recipe)"
        )
    return recipe.model_copy(update={"ends": ends})


def resume_ends(recipe: Recipe, recorded: Mapping[str, Any]) -> Recipe:
    """Return the recipe of a resumed run with the ends its recorded recipe was settled with, unless it says others.

    A run from before there was a choice has recorded none, and goes on under the scheme's own.
    """
    before = build(EndsConfig, ENDS_BEFORE)
    silent = recipe.ends == EndsConfig() or ("ends" not in recorded and recipe.ends == before)
    if not silent:
        return recipe
    ends = build(EndsConfig, recorded.get("ends", {}), where="ends")
    return recipe.model_copy(update={"ends": ends})


def _default_ends(recipe: Recipe) -> EndsConfig:
    """Return the default, which keeps what AdamW's decay takes off a row at an update."""
    family = optimizer_family(recipe.optimizer.name)
    config = recipe.model
    context = stack_context(
        config, "decoder" if config.decoder_layers else "encoder", optimizer_family=family
    )
    ends = recipe.residual_scheme().stack(context).ends
    if family != "adam" or "lr" in ends.fixes:
        return EndsConfig()
    multiplier = _multiplier(ends, width=config.d_model, lr=recipe.optimizer.lr)
    decays = recipe.optimizer.name == "adamw" and recipe.optimizer.weight_decay > 0
    return EndsConfig(
        embedding_lr_multiplier=multiplier,
        embedding_weight_decay_multiplier=1.0 / multiplier if decays else None,
    )


def _multiplier(ends: Ends, *, width: int, lr: float) -> float:
    std = ends.init["embedding"].std(width, width)
    own = ends.policy.get("embedding", Policy()).lr
    return max(own, RELATIVE_STEP * std / lr)
