"""Our residual sites in the place of a foreign layer's additions and norms."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from deepnet.adapt.fit import PlannedStack
from deepnet.adapt.journal import Journal
from deepnet.anatomy.base import FoundSite, FoundStack, Sited
from deepnet.errors import AdaptError
from deepnet.schemes.base import Ends, Site, SitePlan
from deepnet.transformer.residual import Residual, build_norm
from deepnet.transformer.scales import ScaleBuilder


@dataclass(frozen=True)
class Installed:
    """A site of ours and the norm that was there before."""

    found: FoundSite
    residual: Residual
    stock_norm: nn.Module


@dataclass(frozen=True)
class Change:
    """A module that was added, removed or replaced."""

    where: str
    what: str


class Removed(nn.Module):
    """Stands where a norm was taken out; its one saved number makes a stock class refuse the weights by their shape."""

    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Return `x`."""
        return x


class ClosingResidual(Residual):
    """The last site of a stack that has no place for the final norm: the norm follows the site."""

    final: nn.Module

    def forward(self, skip: Tensor, y: Tensor) -> Tensor:
        """Return final(...) of what the site alone returns, all [B, T, D]."""
        closed: Tensor = self.final(super().forward(skip, y))
        return closed


def install(
    planned: PlannedStack, journal: Journal, *, keep: bool
) -> tuple[list[Installed], list[Change]]:
    """Install the sites of a stack and its final norm; with `keep`, so that the function can stay what it is."""
    found, plan = planned.found, planned.plan
    for switch in found.switches:
        journal.attribute(found.module, switch, False)
    scales = ScaleBuilder(site_plan for _, site_plan in plan.sites)
    places = zip(found.sites, plan.sites, strict=True)
    installed = [_site(one, *answer, scales, found, journal) for one, answer in places]
    changes = [
        Change(f"{found.name} layer {one.found.site.layer} {one.found.site.kind}", _described(one))
        for one in installed
    ]
    if keep:
        check_final(found, plan.ends)
        return installed, changes
    return installed, changes + _final(found, plan.ends, installed[-1], journal)


def _site(
    found: FoundSite,
    site: Site,
    plan: SitePlan,
    scales: ScaleBuilder,
    stack: FoundStack,
    journal: Journal,
) -> Installed:
    part = found.part
    # The model's own dropout stays in the branch, where its author put it.
    residual = Residual(plan, site=site, d_model=stack.d_model, dropout=0.0, scales=scales)
    like = part.weights[0].parameter
    residual.to(device=like.device, dtype=like.dtype).train(part.owner.training)
    if not isinstance(part.owner, Sited):
        journal.retype(part.owner, part.sited)
        journal.add(part.owner, "sites", nn.ModuleDict())
    sites: nn.ModuleDict = part.owner.get_submodule("sites")  # type: ignore[assignment]
    sites[found.site.kind] = residual
    path, _, name = part.norm.rpartition(".")
    holder = part.owner.get_submodule(path)
    stock_norm = holder.get_submodule(name)
    journal.replace(holder, name, Removed().to(like.device))
    return Installed(found, residual, stock_norm)


def _described(one: Installed) -> str:
    parts = one.found.part
    new = [name for name, _ in one.residual.named_children() if name in ("pre", "out", "post")]
    return f"{parts.placement}-norm {parts.norm} taken out; in: {', '.join(new) or 'no'} norm"


def _final(stack: FoundStack, ends: Ends, last: Installed, journal: Journal) -> list[Change]:
    """Take out the stock final norm, or put the planned one in its place or after the last site."""
    slot = stack.final
    there = None if slot is None else slot.get()
    where = f"{stack.name} end"
    like = last.found.part.weights[0].parameter
    if ends.final is None:
        if slot is None or there is None:
            return []
        empty = None if slot.optional else Removed().to(like.device)
        journal.replace(slot.owner, slot.name, empty)
        return [Change(where, f"final norm {slot.name} taken out")]
    norm = build_norm(ends.final, stack.d_model)
    assert norm is not None
    norm.to(device=like.device, dtype=like.dtype).train(stack.module.training)
    if slot is not None:
        journal.replace(slot.owner, slot.name, norm)
        return [Change(where, f"final norm {slot.name} {'put in' if there is None else 'renewed'}")]
    last.residual.__class__ = ClosingResidual
    last.residual.add_module("final", norm)
    return [Change(where, "final norm put in after the last site")]


def check_final(stack: FoundStack, ends: Ends) -> None:
    """Raise AdaptError where the planned final norm is missing in a model whose function is to be kept."""
    there = None if stack.final is None else stack.final.get()
    if ends.final is not None and (there is None or ends.final.multiplier != 1.0):
        raise AdaptError(
            f"the scheme ends the {stack.name} in a norm that these weights do not have; "
            "initialize=True draws new weights"
        )
