"""The ordinary residual site: post(skip * s + branch * dropout(out(f(pre(x)))))."""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from deepnet.errors import SchemeError
from deepnet.schemes.base import HasRoles, Norm, ResidualSite, Role, Site, SitePlan
from deepnet.transformer.dropout import dropout, dropped_sum
from deepnet.transformer.norms import ScaledNorm
from deepnet.transformer.scales import ScaleBuilder, scaled


class Residual(nn.Module, ResidualSite):
    """One residual site without its branch: `enter` gives the branch its input, calling it adds the branch's output.

    Used alone it is a building block for hand-written layers: `x = site(x, branch(x))`.
    """

    def __init__(
        self, plan: SitePlan, *, site: Site, d_model: int, dropout: float, scales: ScaleBuilder
    ) -> None:
        super().__init__()
        self.site = site
        self.plan = plan
        self.dropout = dropout
        self.pre = build_norm(plan.pre, d_model)
        self.out = build_norm(plan.out, d_model)
        self.post = build_norm(plan.post, d_model)
        self.skip = scales.make(plan.skip, width=d_model, site=site, use="skip")
        # trained, it is saved under this name; in code it is branch_scale, as a branch is a module
        self.branch = scales.make(plan.branch_scale, width=d_model, site=site, use="branch")
        self.shift = build_shift(plan.shifts.get("input"))
        self.extra = build_extra(plan.extra)

    @property
    def branch_scale(self) -> nn.Module | float:
        """Return what multiplies the branch's output."""
        return self.branch

    def reset_parameters(self) -> None:
        """Set the shift to its start."""
        reset_shift(self.shift, self.plan.shifts.get("input"))

    def roles(self) -> Iterator[tuple[Role, Tensor]]:
        """Yield the matrices of the extra modules that are drawn by role."""
        for module in self.extra.values():
            if isinstance(module, HasRoles):
                yield from module.roles().items()

    def enter(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the branch's input and the skip, from the stream [B, T, D]."""
        entered = x if self.pre is None else self.pre(x)
        skip = entered if self.plan.skip_from == "normed" else x
        return (entered if self.shift is None else entered - self.shift), skip

    def leave(self, y: Tensor) -> Tensor:
        """Return what the branch's output `y` becomes before it is scaled and added, both [B, T, D]."""
        if self.out is not None:
            y = self.out(y)
        return dropout(y, self.dropout, training=self.training)

    def add(self, skip: Tensor, y: Tensor) -> Tensor:
        """Return post(skip_scale * skip + branch_scale * y), all [B, T, D]; the sum is in the type of the stream."""
        x = add_scaled(skip, self.skip, y, self.branch_scale)
        if self.post is not None:
            x = self.post(x)
        return x

    def forward(self, skip: Tensor, y: Tensor) -> Tensor:
        """Return the stream after the branch's output `y`, all [B, T, D]: what `add` makes of what `leave` returns."""
        if not self.training or self.dropout == 0.0 or isinstance(self.branch_scale, nn.Module):
            return self.add(skip, self.leave(y))
        x = self.drop_and_add(skip, y if self.out is None else self.out(y))
        return x if self.post is None else self.post(x)

    def drop_and_add(self, skip: Tensor, y: Tensor) -> Tensor:
        """Return skip_scale * skip + branch_scale * dropout(y), all [B, T, D], where the branch's scale is a number."""
        skip, alpha = _scaled_skip(skip, self.skip)
        scale = self.branch_scale
        assert not isinstance(scale, nn.Module)
        return dropped_sum(skip, y, self.dropout, skip_scale=alpha, branch_scale=scale)


def add_scaled(
    skip: Tensor, skip_scale: nn.Module | float, y: Tensor, branch_scale: nn.Module | float
) -> Tensor:
    """Return skip_scale * skip + branch_scale * y, in one operation where the first is a number."""
    skip, alpha = _scaled_skip(skip, skip_scale)
    return torch.add(scaled(y, branch_scale), skip, alpha=alpha)


def _scaled_skip(skip: Tensor, scale: nn.Module | float) -> tuple[Tensor, float]:
    """Return the skip and the number that is still to multiply it: a module has multiplied it already."""
    return (scale(skip), 1.0) if isinstance(scale, nn.Module) else (skip, scale)


def build_norm(plan: Norm | None, width: int) -> nn.Module | None:
    """Return the planned norm for that width, or None where none is planned."""
    if plan is None:
        return None
    norm = plan.make(width)
    return norm if plan.multiplier == 1.0 else ScaledNorm(norm, plan.multiplier)


def build_extra(plan: Mapping[str, Callable[[], nn.Module]]) -> nn.ModuleDict:
    """Return the modules that a plan's `extra` makes; raises SchemeError where it is a module itself."""
    for name, make in plan.items():
        if isinstance(make, nn.Module):
            raise SchemeError(
                f"extra['{name}'] is a {type(make).__name__}; expected a function that makes one for every site: "
                "lambda: ..."
            )
    return nn.ModuleDict({name: make() for name, make in plan.items()})


def build_shift(start: float | None) -> nn.Parameter | None:
    """Return a trained scalar shift of shape [1], or None where none is planned."""
    return None if start is None else nn.Parameter(torch.tensor([start]))


def reset_shift(shift: nn.Parameter | None, start: float | None) -> None:
    """Set a shift that was planned to its start."""
    if shift is not None and start is not None:
        nn.init.constant_(shift, start)
