"""Pre-LN whose layers read a sum of all outputs below them, with weights that depend on the token (MUDD).

    X_0 = embedding,   X_l = output of layer l;   the input of layer l + 1, and what the final norm reads, is
    x = sum_{j<=l} (b_lj + [W2 gelu(W1 rms(X_l))]_j) X_j,   rms(x) = x / sqrt(mean(x^2) + eps), without gain
    b_l = (0, .., 0, 1) and W2 = 0 at the start, which is Pre-LN

Source: Xiao et al., MUDDFormer, arXiv 2502.12170, and the authors' code, for a decoder; encoders and, per stack,
encoder-decoders are ours.
Cost: as pre_ln, and per layer (l + 1) (1 + h) + h d numbers, h = l + 1 (in the last layer four times that) rounded up
to the next multiple of 64. The state holds L + 1 tensors of the stream's size.
Differs: the residual channel alone; queries, keys and values of their own need a branch that reads three inputs. The
authors' layers also get wider with depth; here they do not. None of it is decayed.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from deepnet.schemes.base import (
    Change,
    Norm,
    ResidualScheme,
    Site,
    SitePlan,
    StackContext,
    Stream,
    glorot,
)
from deepnet.schemes.history import History, Outputs, combined, weighted_sum

if TYPE_CHECKING:
    from torch import Tensor

_EPS = 1e-6
_MULTIPLE = 64
_LAST = 4


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Pre-LN layers that read a sum of all outputs below them, with weights that each token's content changes."""

    equation: ClassVar[str] = "x_l = sum_j (b_lj + [W2 gelu(W1 rms(X_l))]_j) X_j"
    source: ClassVar[str] = "Xiao et al. 2025, arXiv 2502.12170, residual channel"
    changes: ClassVar[Change] = "stream"
    grew_out_of: ClassVar[tuple[str, ...]] = ("denseformer",)

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a pre-norm site; the last one of a layer holds what makes the weights."""
        is_last = site.layer == context.num_layers
        dense = {"dense": lambda: _Dense(site.layer, width=context.d_model, is_last=is_last)}
        return SitePlan(
            branch=site.kind,
            pre=context.norm(),
            init=glorot(),
            extra=dense if site.last_in_layer else {},
        )

    def final_norm(self, context: StackContext) -> Norm:
        """Return the model's own norm."""
        return context.norm()

    def stream(self, context: StackContext) -> Stream:
        """Return the stream that remembers the layers' outputs."""
        return Outputs("dense")


class _Dense(nn.Module):
    """The weights of X_0 .. X_l: a row of their own, and what the last of these outputs adds to it."""

    def __init__(self, layer: int, *, width: int, is_last: bool) -> None:
        super().__init__()
        hidden = (layer + 1) * (_LAST if is_last else 1) // _MULTIPLE * _MULTIPLE + _MULTIPLE
        self.static = nn.Parameter(torch.empty(layer + 1))
        self.w1 = nn.Parameter(torch.empty(width, hidden))
        self.w2 = nn.Parameter(torch.empty(hidden, layer + 1))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Take the layer's own output alone, whatever the content is."""
        self.static.zero_()[-1] = 1.0
        nn.init.normal_(self.w1, std=len(self.w1) ** -0.5)
        nn.init.zeros_(self.w2)

    def forward(self, outputs: History) -> "Tensor":
        """Return [B, T, D] of the outputs X_0 .. X_l."""
        x = outputs[-1]
        normed = x * (x.square().mean(-1, keepdim=True) + _EPS).rsqrt()
        weights = self.static + F.gelu(normed @ self.w1) @ self.w2
        return combined(weighted_sum, outputs, weights.movedim(-1, 0))
