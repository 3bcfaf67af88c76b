"""A Pre-LN whose branches enter through trained vectors that start near zero.

    x <- x + g * f(LN(x)),   g one trained number per channel and site;   a norm at the end of each stack
    g starts at 0.1 up to 18 layers, at 1e-5 up to 24, at 1e-6 in deeper stacks

Source: Touvron et al., Going Deeper with Image Transformers (CaiT), arXiv 2103.17239, section 2 (equation and starts),
for encoders; DeiT III and others took it over.
Cost: as pre_ln, and d numbers per site.
Differs: weights start Glorot normal with gain 1, as everywhere here. The source gives starts for 18 and fewer, 24 and
more layers: from 19 to 23 is ours, and so are decoders, where each stack counts its own layers. Its code has 1e-5 at
36 layers of its smallest width, and 1e-4 where nothing is said. The gradients inside a branch are g times Pre-LN's:
with g = 1e-6 they come near Adam's eps of 1e-8, which then takes part in the step; take a smaller eps. On trained
weights that are to be kept (apply_scheme with initialize=False) set init to 1, or Adam's first step is many times g.
"""

from dataclasses import dataclass
from typing import ClassVar

from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    Change,
    Learned,
    Norm,
    ResidualScheme,
    Site,
    SitePlan,
    StackContext,
    glorot,
)


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Pre-LN with a trained vector on every branch that starts near 0."""

    equation: ClassVar[str] = "x <- x + g*f(LN(x)), g trained, near 0 at the start"
    source: ClassVar[str] = "Touvron et al. 2021, arXiv 2103.17239, section 2"
    changes: ClassVar[Change] = "scale"
    grew_out_of: ClassVar[tuple[str, ...]] = ("pre_ln", "rezero")
    folds_to: ClassVar[str | None] = "pre_ln"

    init: float | None = None
    """Where g starts; by default 0.1, 1e-5 or 1e-6, by the depth of the stack."""

    def __post_init__(self) -> None:
        if self.init is not None and self.init <= 0:
            raise ConfigError(f"init is {self.init}; expected a positive number")

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a pre-norm site with the vector on its branch."""
        start = _start(context.num_layers) if self.init is None else self.init
        return SitePlan(
            branch=site.kind,
            pre=context.norm(),
            branch_scale=Learned(init=start, shape="vector"),
            init=glorot(),
        )

    def final_norm(self, context: StackContext) -> Norm:
        """Return the model's own norm."""
        return context.norm()


def _start(layers: int) -> float:
    """Return where g starts at a depth."""
    if layers <= 18:
        return 0.1
    return 1e-5 if layers <= 24 else 1e-6
