"""A scheme attached to a model: every site installed, its state beside them, and no weight drawn yet."""

from dataclasses import dataclass

from torch import nn

from deepnet.adapt.convert import check_same_function, last_step, widen_eps
from deepnet.adapt.ends import use_unit_rows
from deepnet.adapt.fit import PlannedStack
from deepnet.adapt.install import Change, Installed, install
from deepnet.adapt.journal import Journal
from deepnet.adapt.state import SchemeState
from deepnet.schemes.base import Learned, ResidualScheme, Scheduled
from deepnet.transformer.ends import SCHEMES_OWN, EndsConfig


@dataclass(frozen=True)
class Attached:
    """What `attach` did, stack by stack."""

    stacks: tuple[list[Installed], ...]
    changes: tuple[Change, ...]
    notes: tuple[str, ...]


def attach(
    model: nn.Module,
    scheme: ResidualScheme,
    planned: tuple[PlannedStack, ...],
    journal: Journal,
    *,
    keep: bool,
    ends: EndsConfig = SCHEMES_OWN,
) -> Attached:
    """Install the scheme's sites, unit rows and `model.deepnet`; with `keep`, so that the function stays what it is.

    Raises AdaptError where there is no such form.
    """
    if keep:
        for stack in planned:
            for found, (_, plan) in zip(stack.found.sites, stack.plan.sites, strict=True):
                check_same_function(plan, found.part.placement)
    results = [install(stack, journal, keep=keep) for stack in planned]
    rows = use_unit_rows(model, planned, journal)
    state = SchemeState(model, scheme, kept=keep, ends=ends)
    for stack in planned:
        extra = {name: make() for name, make in stack.plan.ends.extra.items()}
        state.extra[stack.found.name] = nn.ModuleDict(extra)
    state.to(planned[0].found.sites[0].part.weights[0].parameter.device)
    journal.add(model, "deepnet", state)
    if keep:
        for installed, _ in results:
            for one in installed:
                widen_eps(one.residual)
        state.advance(_settled_step(planned))
    return Attached(
        stacks=tuple(installed for installed, _ in results),
        changes=(*(change for _, changes in results for change in changes), *rows),
        notes=tuple(_notes(planned, keep=keep)),
    )


def _settled_step(planned: tuple[PlannedStack, ...]) -> int:
    """Return the step at which every scheduled scale has become 1; 0 where none is scheduled."""
    scales = {plan.branch_scale for stack in planned for _, plan in stack.plan.sites}
    return max((last_step(scale) for scale in scales if isinstance(scale, Scheduled)), default=0)


def _notes(planned: tuple[PlannedStack, ...], *, keep: bool) -> list[str]:
    notes = []
    for stack in planned:
        scales = [s for _, plan in stack.plan.sites for s in (plan.skip, plan.branch_scale)]
        if any(isinstance(scale, Learned) for scale in scales):
            notes.append(
                f"{stack.found.name}: trained scales (sites.*.factor) want no weight decay"
            )
        final = stack.found.final
        if keep and stack.plan.ends.final is None and final is not None and final.get() is not None:
            notes.append(
                f"{stack.found.name}: its final norm stays, the weights were trained with it"
            )
    return notes
