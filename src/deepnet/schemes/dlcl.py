"""Layers that read a trained linear combination of the outputs of all layers below them.

    x_l, the input of layer l + 1, from the embedding y_0 and the outputs y_1 .. y_l of the layers below it:
    pre:  x_l = W[l,0] y_0 + sum_{k=1..l} W[l,k] LN_k(y_k)
    post: x_l = LN_l(sum_{k=0..l} W[l,k] y_k),   x_0 = W[0,0] y_0
    the layers are Pre-LN or Post-LN; the stack's output is x_L, under pre with the usual final norm

Source: Wang et al., Learning Deep Transformer Models for Machine Translation (ACL 2019), section 4; the authors' code.
Cost: as pre_ln or post_ln, one norm per layer, and (L + 1)^2 weights, of which the lower triangle is used and starts
at W[l,k] = 1 / (l + 1). The state holds L + 1 tensors of the stream's size.
Differs: each layer adds its output, weighted by its column of W, to the inputs of all layers above. That is the same
sum, but keeps one tensor per layer for the backward pass where rows over a history keep l. Single stacks are ours.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import nn

from deepnet.schemes.base import (
    Change,
    Norm,
    ResidualScheme,
    ResidualSite,
    Site,
    SitePlan,
    StackContext,
    Stream,
    glorot,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

State = tuple["Tensor", "Tensor"]


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Layers that read a trained linear combination of the outputs of all layers below them."""

    equation: ClassVar[str] = "x_l = sum_k W[l,k] LN(y_k), y_k = output of layer k"
    source: ClassVar[str] = "Wang et al. 2019, ACL, section 4"
    changes: ClassVar[Change] = "stream"
    grew_out_of: ClassVar[tuple[str, ...]] = ("post_ln", "pre_ln")

    placement: Literal["pre", "post"] = "pre"
    """Where the norms stand, in the layers and in the combination."""

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a pre-norm or post-norm site; the last of a layer holds the layer's column of W and its norm."""
        norm = context.norm()
        extra: dict[str, Callable[[], nn.Module]] = {}
        if site.index == 1:
            extra["embedding"] = lambda: _Column(0, context.num_layers)
        if site.last_in_layer:
            extra["column"] = lambda: _Column(site.layer, context.num_layers)
            extra["norm"] = lambda: context.make_norm(context.d_model)
        if self.placement == "pre":
            return SitePlan(branch=site.kind, pre=norm, init=glorot(), extra=extra)
        return SitePlan(branch=site.kind, post=norm, init=glorot(), extra=extra)

    def final_norm(self, context: StackContext) -> Norm | None:
        """Return a norm under pre."""
        return context.norm() if self.placement == "pre" else None

    def stream(self, context: StackContext) -> Stream:
        """Return the stream that carries what the layers above will read."""
        return _Combination(context.num_layers, normed_entries=self.placement == "pre")


class _Column(nn.Module):
    """W[k .. L, k], what layer k's output weighs in the inputs to come; the last k of its L + 1 numbers are idle."""

    def __init__(self, layer: int, num_layers: int) -> None:
        super().__init__()
        self.layer = layer
        self.weight = nn.Parameter(torch.empty(num_layers + 1))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Weigh every output below a layer alike."""
        start = 1.0 / torch.arange(self.layer + 1, len(self.weight) + 1)
        self.weight.zero_()[: len(start)] = start

    def forward(self, y: "Tensor") -> "Tensor":
        """Return [L + 1, B, T, D], `y` [B, T, D] times each weight."""
        return self.weight[:, None, None, None] * y


class _Combination(Stream):
    """The state is the stream [B, T, D] and what is gathered so far of the L + 1 next inputs [L + 1, B, T, D]."""

    def __init__(self, num_layers: int, *, normed_entries: bool) -> None:
        self.num_layers = num_layers
        self.normed_entries = normed_entries

    def open(self, x: "Tensor") -> State:
        return x, x.new_zeros(self.num_layers + 1, *x.shape)

    def read(self, state: State, site: ResidualSite) -> "tuple[Tensor, tuple[Tensor, State]]":
        if "embedding" in site.extra:
            state = self._gather(state[1], site.extra["embedding"](state[0]))
        entered, skip = site.enter(state[0])
        return entered, (skip, state)

    def write(
        self, state: State, carry: "tuple[Tensor, State]", site: ResidualSite, y: "Tensor"
    ) -> State:
        skip, (_, ahead) = carry
        x = site(skip, y)
        if not site.site.last_in_layer:
            return x, ahead
        if self.normed_entries:
            return self._gather(ahead, site.extra["column"](site.extra["norm"](x)))
        x, ahead = self._gather(ahead, site.extra["column"](x))
        return site.extra["norm"](x), ahead

    def _gather(self, ahead: "Tensor", weighted: "Tensor") -> State:
        """Return the next input, complete now, and what is gathered of those after it."""
        total = ahead + weighted
        # a copy, or the backward pass would keep the whole of `total` for this one input
        return total[0].clone(), torch.cat([total[1:], torch.zeros_like(total[:1])])

    def close(self, state: State, ends: Any) -> "Tensor":
        return super().close(state[0], ends)

    def peek(self, state: State) -> "Tensor":
        return state[0]
