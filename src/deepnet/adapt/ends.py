"""The ends of somebody else's model as they were chosen: unit rows, a draw, and what a model cannot be asked for."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from deepnet.adapt.drawn import WeightChange, spread
from deepnet.adapt.fit import PlannedStack
from deepnet.adapt.install import Change
from deepnet.adapt.journal import Journal
from deepnet.anatomy.base import Anatomy, stock_class
from deepnet.anatomy.rows import TokenRows, UnitRows, distinct_rows
from deepnet.config import build
from deepnet.errors import AdaptError
from deepnet.schemes.base import Init, Role, StackName
from deepnet.transformer.ends import EndsConfig
from deepnet.transformer.initialize import draw


def read_ends(ends: EndsConfig | Mapping[str, Any] | None) -> EndsConfig:
    """Return a choice of ends, None being none; raises ConfigError for a key or value that there is not."""
    return ends if isinstance(ends, EndsConfig) else build(EndsConfig, ends or {}, where="ends")


def check_ends(anatomy: Anatomy, choice: EndsConfig, *, keep: bool) -> None:
    """Raise AdaptError where the model has no place for what was chosen, or would lose what it learned."""
    given = list(choice.model_dump(exclude_none=True))
    if given and not anatomy.rows():
        raise AdaptError(
            f"{type(anatomy.model).__name__} has no embeddings, so ends ({', '.join(given)}) has nothing to act on; "
            "leave ends out, and treat the embeddings of your own module yourself"
        )
    if keep and is_drawn(choice, "vocabulary"):
        raise AdaptError(
            f"initialize=False keeps what trained weights compute, and ends ({', '.join(given)}) would draw rows anew; "
            "leave unit rows and stds out, or say initialize=True. Multipliers go with trained weights, too"
        )
    _check_vocabulary(anatomy, [key for key in given if key.startswith("vocabulary")])
    if choice.rows == "unit":
        _check_stock_rows(anatomy)


def is_drawn(choice: EndsConfig, role: Role) -> bool:
    """Return whether the rows of that role are drawn: where a std or unit rows were chosen for them."""
    return choice.rows == "unit" or choice.of(role, "std") is not None


def use_unit_rows(
    model: nn.Module, planned: tuple[PlannedStack, ...], journal: Journal
) -> list[Change]:
    """Give every use of a token's row the class that has rows of unit length, in the stacks planned so."""
    paths = {module: path for path, module in model.named_modules()}
    changes = []
    for stack in planned:
        for use in stack.found.rows if stack.plan.ends.unit_rows else ():
            if not isinstance(use.module, UnitRows):  # one module may stand in several places
                journal.retype(use.module, use.unit)
                changes.append(Change(paths[use.module], f"{use.role} rows at unit length"))
    return changes


def draw_rows(
    anatomy: Anatomy, planned: tuple[PlannedStack, ...], choice: EndsConfig, journal: Journal
) -> list[WeightChange]:
    """Draw the rows for which that was chosen, each parameter once, and report them."""
    homes = {use: stack for stack in reversed(planned) for use in stack.found.rows}
    return [
        _draw(use, homes[use].found.name, homes[use].plan.ends.init[use.role], anatomy, journal)
        for use in distinct_rows(anatomy.rows())
        if is_drawn(choice, use.role)
    ]


def ends_notes(anatomy: Anatomy, choice: EndsConfig) -> Iterator[str]:
    """Yield what a report says of the ends: what is left as it is, and whose task the multipliers are."""
    projects = any(use.role == "vocabulary" for use in anatomy.rows()) or not anatomy.rows()
    kept = [
        *([] if is_drawn(choice, "embedding") else ["embeddings"]),
        "positions",
        *([] if is_drawn(choice, "vocabulary") or not projects else ["the vocabulary projection"]),
    ]
    named = " and ".join(", ".join(kept).rsplit(", ", 1))
    yield f"{named} are left as they are"
    if any(key.endswith("multiplier") for key in choice.model_dump(exclude_none=True)):
        yield (
            "the multipliers of the ends are the optimiser's to carry out: build it from "
            "report.parameter_groups(lr=..., weight_decay=...)"
        )


def _check_vocabulary(anatomy: Anatomy, given: list[str]) -> None:
    """Raise AdaptError for what is said of a vocabulary projection that has no rows of its own."""
    if given and anatomy.tie_embeddings != "none":
        raise AdaptError(
            f"ends.{given[0]} has no effect: the vocabulary projection of this {anatomy.family} has the embedding's "
            f"rows; choose {given[0].replace('vocabulary', 'embedding')}, or build it with tie_word_embeddings=False"
        )
    if given and not any(use.role == "vocabulary" for use in anatomy.rows()):
        raise AdaptError(
            f"ends.{given[0]} has no effect: {type(anatomy.model).__name__} has no vocabulary projection; leave it out"
        )


def _check_stock_rows(anatomy: Anatomy) -> None:
    """Raise AdaptError where a forward is not the stock class's: the one with unit rows would take its place."""
    for use in anatomy.rows():
        expected = stock_class(use.unit, UnitRows)
        if type(use.module) is not expected or "forward" in vars(use.module):
            raise AdaptError(
                f"{anatomy.path(use.module)} ({type(use.module).__name__}) has a forward of its own; expected the "
                f"stock {expected.__name__}: choose unit rows before wrapping it, or leave ends.rows out"
            )


@torch.no_grad()
def _draw(
    use: TokenRows, stack: StackName, init: Init, anatomy: Anatomy, journal: Journal
) -> WeightChange:
    weight, before = use.weight, _spread(use)
    journal.keep(weight)
    draw(weight, init)
    if isinstance(use.module, nn.Embedding) and use.module.padding_idx is not None:
        weight[use.module.padding_idx] = 0.0
    return WeightChange(
        where=f"{anatomy.path(use.module)}.weight",
        stack=stack,
        layer=0,
        role=use.role,
        shape=tuple(weight.shape),
        before=before,
        after=_spread(use),
        expected=init.std(weight.shape[1], weight.shape[0]),
    )


def _spread(use: TokenRows) -> float:
    """Return the standard deviation of the rows, without padding's row of zeros."""
    rows = use.weight.detach()
    return spread(rows[rows.any(dim=1)])
