"""The ends as a choice beside the scheme: how embeddings and the vocabulary projection are held, drawn and trained."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from deepnet.config import Section
from deepnet.errors import ConfigError
from deepnet.schemes.base import Ends, EndsKey, Init, Policy, Role, StackContext

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
_UNIT_ROWS = Init("uniform", 0.01)
_ROLES: tuple[Role, ...] = ("embedding", "vocabulary")


class EndsConfig(Section):
    """How embeddings and the vocabulary projection are held, drawn and trained; a key left out is the scheme's.

    Where a recipe leaves the lr multipliers out, embeddings learn faster than the matrices: by
    0.5 * std / optimizer.lr, std that of their draw, at least 1 (docs/ends.md); beside Muon, too. Not under another
    family of optimisers than Adam's, nor where the scheme has a rate of its own, nor in fine-tuning.

    The vocabulary's keys are for a projection of its own (model.tie_embeddings = "none"), where they follow the
    embedding's if they are left out; a projection that shares the embedding's rows is the embedding.
    """

    rows: Literal["plain", "unit"] | None = None
    """unit: every use sees the rows at unit length (FixNorm, arXiv 1910.05895), drawn from U(-0.01, 0.01) unless a std
    is given; plain: as they are."""
    embedding_std: Positive | None = None
    """Standard deviation of the embedding's numbers at the start; the schemes' own is mostly d_model^(-1/2)."""
    vocabulary_std: Positive | None = None
    """The same of the vocabulary projection."""
    embedding_lr_multiplier: Positive | None = None
    """What the learning rate is multiplied by for embeddings."""
    vocabulary_lr_multiplier: Positive | None = None
    """The same for the vocabulary projection."""
    embedding_weight_decay_multiplier: NotNegative | None = None
    """What the weight decay is multiplied by for embeddings; AdamW's is per unit of their own learning rate."""
    vocabulary_weight_decay_multiplier: NotNegative | None = None
    """The same for the vocabulary projection."""

    def of(self, role: Role, key: Literal["std", "lr", "weight_decay"]) -> float | None:
        """Return what is chosen for "embedding" or "vocabulary", None where nothing is."""
        name = key if key == "std" else f"{key}_multiplier"
        chosen: dict[str, float | None] = self.model_dump()
        own = chosen[f"{role}_{name}"]
        return chosen[f"embedding_{name}"] if own is None else own


SCHEMES_OWN = EndsConfig()
"""The choice that leaves everything to the scheme."""


def own_rates(planned: Sequence[Ends], *, tied: bool) -> EndsConfig:
    """Return the choice that says in numbers how fast embeddings and projection learn under the scheme itself.

    `planned` are the ends of every stack; where these differ, nothing is said.
    """
    return EndsConfig(
        embedding_lr_multiplier=own_rate(planned, "embedding"),
        vocabulary_lr_multiplier=None if tied else own_rate(planned[-1:], "vocabulary"),
    )


def own_rate(planned: Sequence[Ends], role: Role) -> float | None:
    """Return a scheme's own multiplier of the learning rate for a role; None where its stacks differ."""
    rates = {ends.policy.get(role, Policy()).lr for ends in planned}
    return rates.pop() if len(rates) == 1 else None


def choose_ends(planned: Ends, choice: EndsConfig, context: StackContext) -> Ends:
    """Return a stack's ends with `choice` in them.

    Raises ConfigError where the choice contradicts what the scheme fixes, or has no effect.
    """
    if choice == SCHEMES_OWN:
        return planned
    _refuse_without_effect(choice, context)
    draws = {role: draw for role in _ROLES if (draw := _init(planned, choice, role))}
    chosen = replace(
        planned,
        unit_rows=planned.unit_rows if choice.rows is None else choice.rows == "unit",
        init={**planned.init, **draws},
        policy={**planned.policy, **{role: _policy(planned, choice, role) for role in _ROLES}},
    )
    for key in planned.fixes:
        if _part(planned, key) != _part(chosen, key):
            raise ConfigError(
                f"the scheme fixes the {key} of its embeddings, and [ends] chooses another; leave out "
                f"{' and '.join(_keys(choice, key))}, set what the scheme has ({_part(planned, key)}), or take another "
                "scheme"
            )
    return chosen


def _init(planned: Ends, choice: EndsConfig, role: Role) -> Init | None:
    std = choice.of(role, "std")
    if std is not None:
        return Init("normal", std)
    begins_unit = choice.rows == "unit" and not planned.unit_rows
    return _UNIT_ROWS if begins_unit else planned.init.get(role)


def _policy(planned: Ends, choice: EndsConfig, role: Role) -> Policy:
    policy = planned.policy.get(role, Policy())
    lr, weight_decay = choice.of(role, "lr"), choice.of(role, "weight_decay")
    return replace(
        policy,
        lr=policy.lr if lr is None else lr,
        weight_decay=policy.weight_decay if weight_decay is None else weight_decay,
    )


def _part(ends: Ends, key: EndsKey) -> object:
    """Return what the ends say of a key, to be compared."""
    if key == "rows":
        return "unit" if ends.unit_rows else "plain"
    if key == "std":
        return [ends.init.get(role) for role in _ROLES]
    values = [vars(ends.policy.get(role, Policy()))[key] for role in _ROLES]
    return values[0] if len(set(values)) == 1 else values


def _keys(choice: EndsConfig, key: EndsKey) -> list[str]:
    """Return the keys of [ends] that decide on a key of the plan and were given."""
    given = [f"ends.{name}" for name in choice.model_dump(exclude_none=True)]
    return [name for name in given if key in name] or given


def _refuse_without_effect(choice: EndsConfig, context: StackContext) -> None:
    """Raise ConfigError for what is said of a vocabulary projection that has no rows of its own."""
    given = [key for key in choice.model_dump(exclude_none=True) if key.startswith("vocabulary")]
    if given and context.tie_embeddings != "none":
        shared = given[0].replace("vocabulary", "embedding")
        raise ConfigError(
            f"'ends.{given[0]}' has no effect: the vocabulary projection has the embedding's rows "
            f"(model.tie_embeddings = '{context.tie_embeddings}'); set ends.{shared}, or tie_embeddings = 'none'"
        )
