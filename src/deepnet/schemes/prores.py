"""Another scheme whose branches grow in one layer after the other, the lowest first; then it is exactly that scheme.

    x <- x + a_l(t) * f(LN(x)),   the base's own site with a factor on its branches, in layer l after t updates
    linear: a_l(t) = min(1, t / (T l));   sqrt, square: of that;   equal: L for l;   reverse: L - l + 1 for l
    stagewise: m + (1 - m) * (t - T (l - 1)) / T, within m and 1;   m = 0, L^(-1/2) or l^(-1/2)
    fixed: 1/L, L^(-1/2) or l^(-1/2) at any t

Source: Chen et al., Progressive Residual Warmup, arXiv 2603.05369, and the authors' code, for decoders.
Cost: none; a_l is computed from the number of updates, which is the only thing saved.
Differs: deepnorm keeps its gain beta, which the authors' code drops with ProRes. `T` is the paper's, the updates per
layer; their --prores_warmup_steps is T L. They take T = 1000, and 500 at 120 layers. Under every other schedule than
stagewise above m = 0 and fixed, all branches are silent at t = 0 and have no gradient, as with branchnorm, which is
base post_ln, equal, T L = 4000 and DeepNorm's beta. peri_ln, their Sandwich, also norms its embedding. In an
encoder-decoder, which is ours, each stack counts its own L.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    Change,
    Constant,
    Ends,
    ResidualScheme,
    Scale,
    Scheduled,
    Site,
    SitePlan,
    StackContext,
)
from deepnet.schemes.catalogue import load_scheme

Schedule = Literal[
    "linear", "equal", "reverse", "sqrt", "square",
    "stagewise_0", "stagewise_sqrt_L", "stagewise_sqrt_l",
    "fixed_L", "fixed_sqrt_L", "fixed_sqrt_l",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Another scheme whose branches grow in layer by layer from the bottom, and which is exactly it afterwards."""

    equation: ClassVar[str] = "x <- x + a_l(t)*f(LN(x)), a_l from 0 to 1, lower layers first"
    source: ClassVar[str] = "Chen et al. 2026, arXiv 2603.05369"
    changes: ClassVar[Change] = "schedule"
    grew_out_of: ClassVar[tuple[str, ...]] = ("pre_ln", "branchnorm")
    folds_to: ClassVar[str | None] = "pre_ln"

    base: Literal["pre_ln", "post_ln", "deepnorm", "peri_ln", "layernorm_scaling"] = "pre_ln"
    """The scheme whose branches grow in."""
    T: int = 1000
    """Optimiser updates per layer: the topmost branches have grown in after T times the layers of their stack."""
    schedule: Schedule = "linear"
    """How they grow: see above."""

    def __post_init__(self) -> None:
        if self.T < 1:
            raise ConfigError(f"T is {self.T}; expected at least 1 update")

    def factor(self, step: int, *, layer: int, num_layers: int) -> float:
        """Return a_l after `step` updates: 1 from step T * num_layers on, whatever the layer, if it is not fixed."""
        kind, _, depth = self.schedule.partition("_")
        floor = {"": 0.0, "0": 0.0, "L": 1 / num_layers}.get(depth)
        if floor is None:
            floor = (num_layers if depth == "sqrt_L" else layer) ** -0.5
        if kind == "fixed":
            return floor
        if kind == "stagewise":
            grown = floor + (1 - floor) * (step - self.T * (layer - 1)) / self.T
            return min(max(grown, floor), 1.0)
        place = {"equal": num_layers, "reverse": num_layers - layer + 1}.get(kind, layer)
        grown = min(1.0, step / (self.T * place))
        return {"sqrt": math.sqrt(grown), "square": grown**2}.get(kind, grown)

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return the base's site with the branch scaled by its layer's factor."""
        factor = partial(self.factor, layer=site.layer, num_layers=context.num_layers)
        scale: Scale = Scheduled(factor)
        if self.schedule.startswith("fixed"):
            scale = Constant(factor(0))
        return replace(load_scheme(self.base).site(context, site), branch_scale=scale)

    def ends(self, context: StackContext) -> Ends:
        """Return the base's ends."""
        return load_scheme(self.base).ends(context)
