"""A Pre-LN whose norms have one trained number each, with embeddings of unit length and small attention weights.

    x <- x + f(N(x)),   N(x) = g * x / max(|x|, eps),   g one trained number, sqrt(d) at the start
    FixNorm: embedding rows enter every use as E / |E|;   SmallInit: q, k, v and out from N(0, 2 / (5 d))

Source: Nguyen and Salazar, Transformers without Tears, arXiv 1910.05895, and the authors' code.
Cost: one norm per site and one per stack, one parameter each. The model's own kind of norm and its eps are not used.
Needs no warm-up. It is a root-mean-square norm of uniform gain g / sqrt(d), its eps a floor instead of a sum.
Differs: nothing for an encoder-decoder; single stacks are ours.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from deepnet.schemes.base import (
    Change,
    Ends,
    Init,
    Norm,
    ResidualScheme,
    Role,
    Site,
    SitePlan,
    StackContext,
    embedding_init,
    glorot,
)


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Pre-LN with norms of one trained number, unit-length embeddings and small attention weights."""

    equation: ClassVar[str] = "x <- x + f(g*x/|x|)"
    source: ClassVar[str] = "Nguyen and Salazar 2019, arXiv 1910.05895"
    changes: ClassVar[Change] = "norm"
    grew_out_of: ClassVar[tuple[str, ...]] = ("pre_ln",)
    warmup: ClassVar[bool] = False

    fix_norm: bool = True
    """FixNorm: embedding rows enter every use at unit length, and start from U(-0.01, 0.01)."""

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a pre-norm site with small attention weights."""
        small = Init("normal", math.sqrt(2.0 / (5.0 * context.d_model)))
        draws: dict[Role, Init] = {"q": small, "k": small, "v": small, "out": small}
        return SitePlan(branch=site.kind, pre=Norm(ScaleNorm), init=glorot() | draws)

    def ends(self, context: StackContext) -> Ends:
        """Return ends with a final norm and, under FixNorm, unit rows."""
        draws = embedding_init(context)
        if not self.fix_norm:
            return Ends(final=Norm(ScaleNorm), init=draws)
        draws["embedding"] = draws["vocabulary"] = Init("uniform", 0.01)
        return Ends(final=Norm(ScaleNorm), unit_rows=True, init=draws, fixes=("rows", "std"))


class ScaleNorm(nn.Module):
    """g * x / max(|x|, eps) over the last axis, with one trained number g."""

    def __init__(self, width: int, *, eps: float = 1e-5) -> None:
        super().__init__()
        self.width = width
        self.eps = eps
        self.g = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set g to sqrt(d)."""
        nn.init.constant_(self.g, math.sqrt(self.width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the norm of `x` [..., D]."""
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x * (self.g / length.clamp(min=self.eps))
