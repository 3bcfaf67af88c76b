"""No norms at all: every branch enters with a trained scale that starts at zero.

    x <- x + s_l * f(x),   s_l one trained number per layer l, 0 at the start

Source: Bachlechner et al., ReZero is All You Need, arXiv 2003.04887, and the authors' code.
Cost: one parameter per layer and no norm. Needs no warm-up. Nothing bounds x: do not train it in fp16.
Differs: the paper's formula has a number per residual; here, as in its code, all sites of a layer share one. Matrices
start Glorot normal with gain 1, where the code leaves torch's defaults. As s is 0, only s and the ends learn in the
first update; an encoder is first seen by the decoder, and its s first learns, in the second.
"""

from dataclasses import dataclass
from typing import ClassVar

from deepnet.schemes.base import (
    Change,
    Learned,
    ResidualScheme,
    Site,
    SitePlan,
    StackContext,
    glorot,
)


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """No norms; all branches of a layer enter with one trained number that starts at 0."""

    equation: ClassVar[str] = "x <- x + s*f(x), s trained, 0 at the start"
    source: ClassVar[str] = "Bachlechner et al. 2020, arXiv 2003.04887"
    changes: ClassVar[Change] = "scale"
    grew_out_of: ClassVar[tuple[str, ...]] = ("r_fixup",)
    warmup: ClassVar[bool] = False
    folds_to: ClassVar[str | None] = "no_norm"

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a site without norms whose branch carries the layer's number."""
        scale = Learned(init=0.0, scope="layer")
        return SitePlan(branch=site.kind, branch_scale=scale, init=glorot())
