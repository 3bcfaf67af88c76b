"""A Pre-LN whose skip is weighed and passes through a trained map of low rank.

    rw:     x <- a f(LN(x)) + b x,   a and b twice the sigmoid of a trained number that starts at 0: both start at 1
    lr:     x <- f(LN(x)) + x + B A x,   A [r, D], B [D, r];   A[i, j] = (r D)^(-1/2) if i = j mod r, else 0;   B = 0
    rw_lr:  x <- a f(LN(x)) + b (x + B A x);   a norm at the end of each stack

Source: Menghani et al., LAuReL, arXiv 2411.07501, sections 2 and 3.3, for image models and decoders.
Cost: as pre_ln; two numbers per site (rw), 2 r D per site (lr). Neither is decayed.
Differs: starts as Pre-LN in each form. The paper bounds a and b by a sigmoid or softmax, and does not say where they
start; 2 sigmoid(0) = 1 is ours. Its W = A B and its B A x disagree; A comes first here, as in LoRA. It has r from 4 to
64; 16 is ours. PA, which adds multiples of earlier x, is left out (dlcl has them), and so is Gemma 3n's form: attention
only, on the normed input, normed again, divided by sqrt(2). An encoder-decoder is ours. As B = 0, A learns from the
second update on. rw folds to norms of other eps only, as gpas before norms, lr to nothing.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    ONE,
    Change,
    Learned,
    Norm,
    ResidualScheme,
    ResidualSite,
    Scale,
    Site,
    SitePlan,
    StackContext,
    Stream,
    glorot,
)


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Pre-LN with trained weights of skip and branch, and a trained map of low rank on the skip."""

    equation: ClassVar[str] = "x <- a*f(LN(x)) + b*(x + B*A*x)"
    source: ClassVar[str] = "Menghani et al. 2024, arXiv 2411.07501"
    changes: ClassVar[Change] = "scale"
    grew_out_of: ClassVar[tuple[str, ...]] = ("pre_ln",)

    form: Literal["rw", "lr", "rw_lr"] = "rw_lr"
    """The weights a and b, the map of low rank, or both."""
    rank: int = 16
    """lr and rw_lr: rows of A and columns of B."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"rank is {self.rank}; expected at least 1")
        if self.form == "rw" and self.rank != 16:
            raise ConfigError(
                f"'rank' has no effect under form 'rw', and is {self.rank}; leave it out"
            )

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a pre-norm site with its weights and its map."""
        weight: Scale = ONE if self.form == "lr" else Learned(init=0.0, transform=_twice_sigmoid)
        low_rank = (
            {} if self.form == "rw" else {"low_rank": lambda: LowRank(context.d_model, self.rank)}
        )
        return SitePlan(
            branch=site.kind,
            pre=context.norm(),
            skip=weight,
            branch_scale=weight,
            init=glorot(),
            extra=low_rank,
        )

    def final_norm(self, context: StackContext) -> Norm:
        """Return the model's own norm."""
        return context.norm()

    def stream(self, context: StackContext) -> Stream:
        """Return a stream whose skip passes through the map, where there is one."""
        return Stream() if self.form == "rw" else _Augmented()


class LowRank(nn.Module):
    """B A x over the last axis."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.empty(rank, width))
        self.b = nn.Parameter(torch.empty(width, rank))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Deal the channels out to the rows of A in turn, and set B to 0."""
        rank, width = self.a.shape
        channels = torch.arange(width)
        self.a.zero_()
        self.a[channels % rank, channels] = (rank * width) ** -0.5
        nn.init.zeros_(self.b)

    def forward(self, x: Tensor) -> Tensor:
        """Return B A x of `x` [..., D]."""
        return F.linear(F.linear(x, self.a), self.b)


class _Augmented(Stream):
    """The state is the stream [B, T, D]; what is carried past a branch is x + B A x."""

    def read(self, state: Tensor, site: ResidualSite) -> tuple[Tensor, Tensor]:
        entered, skip = site.enter(state)
        return entered, skip + site.extra["low_rank"](skip)


def _twice_sigmoid(number: Tensor) -> Tensor:
    return 2.0 * torch.sigmoid(number)
