"""The numbers that multiply skips, branches, heads and logits: fixed, learned or scheduled."""

from collections.abc import Iterable
from itertools import chain

import torch
from torch import Tensor, nn

from deepnet.errors import ConfigError
from deepnet.schemes.base import Constant, Learned, Scale, Scheduled, Site, SitePlan
from deepnet.transformer.materialise import DerivedBuffers


class FixedScale(DerivedBuffers):
    """A constant that differs between layers, in a buffer so that every layer compiles to the same graph."""

    factor: Tensor

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value
        self.register_buffer("factor", torch.empty(1, dtype=torch.float64), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fill the factor in, rounded to the type it has."""
        self.factor.fill_(self.value)

    def forward(self, x: Tensor) -> Tensor:
        """Return factor * x, the factor cast to the type of `x`."""
        return x * self.factor.to(x.dtype)


class LearnedScale(nn.Module):
    """A trained factor of shape [1] or [width]."""

    def __init__(self, init: float, width: int) -> None:
        super().__init__()
        self.init = init
        self.factor = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the factor to its start."""
        nn.init.constant_(self.factor, self.init)

    def forward(self, x: Tensor) -> Tensor:
        """Return factor * x."""
        return x * self.factor


class TransformedScale(LearnedScale):
    """Trained numbers that pass through a function before they multiply, with gradient to what they do or without."""

    def __init__(self, plan: Learned, width: int) -> None:
        super().__init__(plan.init, width)
        self.transform = plan.transform or _same
        self.start = initial(plan) if plan.stops_gradient else None

    def forward(self, x: Tensor) -> Tensor:
        """Return transform(factor) * x; the gradient of x is that of start * x where it is to be stopped."""
        scale = self.transform(self.factor)
        if self.start is None:
            return x * scale
        return scaled(x, self.start) + x.detach() * (scale - self.start)


def initial(plan: Learned) -> float:
    """Return what a trained scale multiplies by before the first update."""
    if plan.transform is None:
        return plan.init
    return plan.transform(torch.tensor(plan.init, dtype=torch.float64, device="cpu")).item()


def _same(factor: Tensor) -> Tensor:
    return factor


def learned_scale(plan: Learned, width: int) -> LearnedScale:
    """Return a trained scale for what is `width` wide."""
    width = 1 if plan.shape == "scalar" else width
    if plan.transform is None and not plan.stops_gradient:
        return LearnedScale(plan.init, width)
    return TransformedScale(plan, width)


class ScheduledScale(FixedScale):
    """A factor that is a function of the updates done; the model saves the step, never the factor."""

    def __init__(self, plan: Scheduled) -> None:
        super().__init__(plan.at(0))
        self.at = plan.at

    def advance(self, step: int) -> None:
        """Set the factor to its value after `step` updates."""
        self.value = self.at(step)
        self.reset_parameters()


def scaled(x: Tensor, scale: nn.Module | float | None) -> Tensor:
    """Return `x` times a scale; None is 1."""
    if isinstance(scale, nn.Module):
        product: Tensor = scale(x)
        return product
    return x if scale is None or scale == 1.0 else x * scale


@torch.no_grad()
def value(scale: nn.Module | float | None) -> Tensor:
    """Return what a scale multiplies by now, float64 of shape [1] or [width], on the CPU."""
    held = chain(scale.parameters(), scale.buffers()) if isinstance(scale, nn.Module) else ()
    one = torch.ones(1, dtype=torch.float64, device=next((x.device for x in held), "cpu"))
    return scaled(one, scale).cpu()


class ScaleBuilder:
    """Makes the scales of one stack, so that those a layer or the stack shares are one parameter.

    A constant is a plain number where every site has the same one, and a buffer where sites differ.
    """

    def __init__(self, plans: Iterable[SitePlan]) -> None:
        plans = list(plans)
        self._varies = {
            "skip": len({plan.skip for plan in plans}) > 1,
            "branch": len({plan.branch_scale for plan in plans}) > 1,
        }
        self._shared: dict[tuple[str, str], tuple[Learned, LearnedScale]] = {}

    def make(self, plan: Scale, *, width: int, site: Site, use: str) -> nn.Module | float:
        """Return the scale of one use ("skip", "branch", "heads", ...) at one site.

        Raises ConfigError where a name stands for two scales that differ.
        """
        if isinstance(plan, Constant):
            return FixedScale(plan.value) if self._varies.get(use, True) else plan.value
        if isinstance(plan, Scheduled):
            return ScheduledScale(plan)
        key = {"site": f"site {site.index}", "layer": f"layer {site.layer}", "stack": "stack"}
        shared = (plan.name or use, key[plan.scope])
        if shared not in self._shared:
            self._shared[shared] = (plan, learned_scale(plan, width))
        first, scale = self._shared[shared]
        if plan.name and first != plan:
            raise ConfigError(
                f"two scales are called '{plan.name}' and differ: {first} and {plan}; give them names of their own"
            )
        return scale


def end_scale(plan: Scale, width: int) -> nn.Module | None:
    """Return the scale at the end of a stack or on the logits; None where it is 1."""
    if isinstance(plan, Constant):
        return None if plan.value == 1.0 else FixedScale(plan.value)
    if isinstance(plan, Scheduled):
        return ScheduledScale(plan)
    return learned_scale(plan, width)
