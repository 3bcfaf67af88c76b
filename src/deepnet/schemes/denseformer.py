"""Pre-LN whose layers read a trained weighted average of the outputs of all layers below them.

    X_0 = embedding,   X_l = output of layer l, before averaging
    where l is a multiple of the period p:   x = sum of w_lj X_j over j <= l with j = l modulo k;   elsewhere x = X_l
    w_ll = 1 and all other w_lj = 0 at the start, which is Pre-LN

Source: Pagliardini et al., DenseFormer, arXiv 2402.02622, section 3, and the authors' package, for a decoder; encoders
and, per stack, encoder-decoders are ours.
Cost: as pre_ln, and floor(l / k) + 1 numbers per averaged layer. The state holds L + 1 tensors of the stream's size.
Differs: nothing from the package. The model of the authors' experiments averages the outputs of groups of layers, and
draws and decays the weights like matrices; here they are not decayed.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

from deepnet.errors import ConfigError
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


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Pre-LN layers that read a trained weighted average of the outputs of all layers below them."""

    equation: ClassVar[str] = "x_l = sum_j w_lj X_j, X_j = output of layer j"
    source: ClassVar[str] = "Pagliardini et al. 2024, arXiv 2402.02622"
    changes: ClassVar[Change] = "stream"
    grew_out_of: ClassVar[tuple[str, ...]] = ("dlcl",)

    dilation: int = 1
    """k: only outputs a multiple of k layers back are averaged."""
    period: int = 1
    """p: only every p-th layer is followed by an average."""

    def __post_init__(self) -> None:
        for name, value in (("dilation", self.dilation), ("period", self.period)):
            if value < 1:
                raise ConfigError(f"{name} is {value}; expected at least 1 layer")

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a pre-norm site; the last one of an averaged layer holds the weights."""
        averages = site.last_in_layer and site.layer % self.period == 0
        average = {"average": lambda: _Average(site.layer, dilation=self.dilation)}
        return SitePlan(
            branch=site.kind,
            pre=context.norm(),
            init=glorot(),
            extra=average if averages else {},
        )

    def final_norm(self, context: StackContext) -> Norm:
        """Return the model's own norm."""
        return context.norm()

    def stream(self, context: StackContext) -> Stream:
        """Return the stream that remembers the layers' outputs."""
        return Outputs("average")


class _Average(nn.Module):
    """The row w_lj of a layer l, over every k-th output back from its own."""

    def __init__(self, layer: int, *, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.weight = nn.Parameter(torch.empty(layer // dilation + 1))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Take the layer's own output alone."""
        self.weight.zero_()[-1] = 1.0

    def forward(self, outputs: History) -> "Tensor":
        """Return [B, T, D] of the outputs X_0 .. X_l."""
        first = (len(outputs) - 1) % self.dilation
        return combined(weighted_sum, outputs[first :: self.dilation], self.weight)
