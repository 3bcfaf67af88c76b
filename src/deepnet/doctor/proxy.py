"""A small model in place of a recipe's: as deep and by the same scheme, less wide, its run pressed into few updates.

What is kept: layers, scheme, optimiser and its peak learning rate, the shape of the schedule with the warm-up's share
of the run, objective, vocabulary and text. What is not: width, heads, tokens of an update, and dropout, which is left
out as the question is whether the model trains, not how well it generalises.

A warm-up is not pressed below the updates that Adam's second moment looks back on, 1 / (1 - beta2): while those are
not there, the rate of a weight is not yet what the schedule says, which is what a warm-up is there for.

Source: Ma and Yarats, arXiv 1910.04209, whose rule of thumb for a warm-up is twice as many.
"""

from torch import nn

from deepnet.pipeline.recipe import Recipe
from deepnet.training.config import OptimizerConfig, ScheduleConfig
from deepnet.transformer.models import Transformer, TransformerConfig

WIDTH = 64
"""d_model of the proxy, where the recipe's is not less."""
TOKENS = 512
"""batching.max_tokens of the proxy: an update is one such micro-batch."""
_WARMUPS = 10
"""Warm-ups that a run is taken to last where it ends by the clock alone."""
_HEADS = (4, 2, 1)


def proxy_recipe(recipe: Recipe, *, longest: int) -> Recipe:
    """Return the recipe of the proxy; `longest` is the longest sentence of its text in tokens."""
    tokens = max(min(TOKENS, recipe.batching.max_tokens), longest)
    batching = recipe.batching.model_copy(
        update={"max_tokens": tokens, "micro_batches_per_update": 1}
    )
    return recipe.model_copy(
        update={"batching": batching, "model": narrowed(recipe.model, width=WIDTH)}
    )


def at_depth(recipe: Recipe, layers: int) -> Recipe:
    """Return the recipe with so many layers in each stack that it has."""
    shape = recipe.model
    changes = {key: layers for key, stored in shape.running_layers.items() if stored}
    return recipe.model_copy(update={"model": shape.model_copy(update=changes)})


def narrowed(shape: TransformerConfig, *, width: int) -> TransformerConfig:
    """Return the shape at that width without dropout; the feed-forward's width and the heads follow."""
    changes = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    if shape.d_model <= width:
        return shape.model_copy(update=changes)
    heads = _at_most(shape.num_heads)
    groups = shape.num_kv_heads and _at_most(heads * shape.num_kv_heads // shape.num_heads)
    sizes = {
        "d_model": width,
        "ffn_dim": max(round(width * shape.ffn_dim / shape.d_model), 1),
        "num_heads": heads,
        "num_kv_heads": groups,
    }
    return shape.model_copy(update={**changes, **sizes})


def run_length(schedule: ScheduleConfig, *, updates: int | None) -> int:
    """Return the updates of the run: `updates` until its end where they are known.

    A run that ends by the clock alone is taken to last until schedule.decay_steps, or ten warm-ups.
    """
    return updates or schedule.decay_steps or max(_WARMUPS * schedule.warmup_steps, 1)


def compressed(
    schedule: ScheduleConfig, *, run: int, steps: int, optimizer: OptimizerConfig
) -> ScheduleConfig:
    """Return the schedule of a run of `run` updates pressed into `steps`, resolved.

    A warm-up keeps as many updates as the optimiser looks back on, at most half of `steps`.
    """
    share = min(steps / run, 1.0)
    memory = min(schedule.warmup_steps, round(1 / (1 - optimizer.betas[1])), steps // 2)
    warmup = max(round(schedule.warmup_steps * share), memory)
    ends = schedule.name in ("linear", "cosine")
    decay = max(round((schedule.decay_steps or run) * share), warmup + 1) if ends else 0
    return schedule.model_copy(update={"warmup_steps": warmup, "decay_steps": decay})


def follow_in_time(stretch: float, model: nn.Module, step: int) -> None:
    """Let a model's scheme do what it does after an update, at the time that `step` of the trial stands for."""
    assert isinstance(model, Transformer)
    model.scheme.after_update(model)
    model.scheme.advance(model, round(step * stretch))


def _at_most(heads: int) -> int:
    return next(count for count in _HEADS if count <= max(heads, 1))
