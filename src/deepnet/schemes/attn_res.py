"""Attention residuals: every branch reads an attention over the depth below it, in place of the sum of all outputs.

    v_0 = embedding,   v_j = f_j(LN(h_j)), what site j adds;   output: LN of one more such h over all v
    h_i = sum_{j<i} a_j v_j,   a = softmax_j(w_i . RMSNorm_i(v_j)),   w_i a vector per site, from 0
    blocks of S sites: h_i is over the embedding, the sum of each full block below, and of the open block so far

Source: Attention Residuals, arXiv 2603.15031, sections 3 and 5.3, for a decoder; single encoders and, per stack with
cross-attention as one more site, encoder-decoders are ours.
Cost: as pre_ln, and 2 d numbers per site and per stack. The state holds a tensor of the stream's size per block and one
for the embedding, and every site reads all of them: in the full form (S = 1) R + 1 tensors and work in the square of R.
Differs: nothing. Values are not normed and there is no other skip. At w = 0 it is Pre-LN up to the norms' eps: the mean
of all that was added is the stream divided by a number.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    Change,
    Ends,
    Norm,
    ResidualScheme,
    ResidualSite,
    Site,
    SitePlan,
    StackContext,
    Stream,
    glorot,
)
from deepnet.schemes.history import History, combined, weighted_sum

if TYPE_CHECKING:
    from torch import Tensor

_EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Branches that read a trained attention over all outputs below them, or over sums of blocks of them."""

    equation: ClassVar[str] = "h_i = sum_j softmax_j(w_i . RMS(v_j)) v_j, v_i = f(LN(h_i))"
    source: ClassVar[str] = "arXiv 2603.15031, sections 3 and 5.3"
    changes: ClassVar[Change] = "stream"
    grew_out_of: ClassVar[tuple[str, ...]] = ("denseformer",)

    block_sites: int = 1
    """Sites whose outputs are summed up and read as one: 1 is the full form; the source has about 8 blocks a stack."""

    def __post_init__(self) -> None:
        if self.block_sites < 1:
            raise ConfigError(f"block_sites is {self.block_sites}; expected at least 1 site")

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a pre-norm site with a query of its own."""
        opens_block = (site.index - 1) % self.block_sites == 0
        return SitePlan(
            branch=site.kind,
            pre=context.norm(),
            init=glorot(),
            extra={"depth": lambda: _DepthAttention(context.d_model, opens_block=opens_block)},
        )

    def ends(self, context: StackContext) -> Ends:
        """Return ends with a query over all that was added."""
        return replace(super().ends(context), merge=lambda: _DepthAttention(context.d_model))

    def final_norm(self, context: StackContext) -> Norm:
        """Return the model's own norm."""
        return context.norm()

    def stream(self, context: StackContext) -> Stream:
        """Return the stream that holds what was added."""
        return _Additions()


class _DepthAttention(nn.Module):
    """One query over depth: keys are normed, values are as they were added."""

    def __init__(self, width: int, *, opens_block: bool = False) -> None:
        super().__init__()
        self.opens_block = opens_block
        self.query = nn.Parameter(torch.empty(width))
        self.gain = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Attend to all alike."""
        nn.init.zeros_(self.query)
        nn.init.ones_(self.gain)

    def forward(self, values: History) -> "Tensor":
        """Return [B, T, D], the mean of the values that the query gives."""
        return combined(_attended, values, self.query, self.gain)


def _attended(values: "Tensor", query: "Tensor", gain: "Tensor") -> "Tensor":
    """Return sum_j softmax_j(query . RMSNorm(values[j])) values[j]."""
    lengths = (values.square().mean(-1) + _EPS).sqrt()
    return weighted_sum(values, ((values @ (gain * query)) / lengths).softmax(0))


class _Additions(Stream):
    """The state is the embedding, the sum of each block's outputs, and last that of the block that is open."""

    def open(self, x: "Tensor") -> History:
        return (x,)

    def read(self, state: History, site: ResidualSite) -> "tuple[Tensor, None]":
        entered, _ = site.enter(site.extra["depth"](state))
        return entered, None

    def write(self, state: History, carry: None, site: ResidualSite, y: "Tensor") -> History:
        added = site.leave(y).to(state[0].dtype)
        if site.extra["depth"].opens_block:
            return (*state, added)
        return (*state[:-1], state[-1] + added)

    def peek(self, state: History) -> "Tensor":
        return torch.stack(state).sum(0)
