"""A layer: its residual sites in order, each a residual module around a branch."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from deepnet.schemes.base import Site, SitePlan, Stream
from deepnet.transformer.attention import Attention, MergedAttention
from deepnet.transformer.cache import LayerCache
from deepnet.transformer.feed_forward import Activation, FeedForward
from deepnet.transformer.residual import Residual
from deepnet.transformer.scales import ScaleBuilder


class LayerShape(NamedTuple):
    """The sizes and dropout rates that every layer of a stack shares."""

    d_model: int
    ffn_dim: int
    num_heads: int
    activation: Activation
    dropout: float
    attention_dropout: float
    activation_dropout: float


class Inputs(NamedTuple):
    """What every layer of a stack reads besides its state."""

    keep: Tensor | None = None
    causal: bool = False
    rotary: tuple[Tensor, Tensor] | None = None
    memory: Tensor | None = None
    memory_keep: Tensor | None = None


class Sublayer(nn.Module):
    """One residual site with its branch."""

    def __init__(
        self, site: Site, plan: SitePlan, *, shape: LayerShape, stream: Stream, scales: ScaleBuilder
    ) -> None:
        super().__init__()
        self.kind = plan.branch
        self.stream = stream
        self.branch = build_branch(site, plan, shape=shape, scales=scales)
        self.residual = Residual(
            plan, site=site, d_model=shape.d_model, dropout=shape.dropout, scales=scales
        )

    def forward(self, state: Any, inputs: Inputs, cache: LayerCache | None) -> Any:
        """Return the stream's next state."""
        x, carry = self.stream.read(state, self.residual)
        return self.stream.write(state, carry, self.residual, self.compute(x, inputs, cache))

    def compute(self, x: Tensor, inputs: Inputs, cache: LayerCache | None = None) -> Tensor:
        """Return the bare branch's output from its input, both [B, T, D]."""
        y: Tensor
        if self.kind == "self":
            own = None if cache is None else cache.own
            y = self.branch(
                x, keep=inputs.keep, causal=inputs.causal, rotary=inputs.rotary, cache=own
            )
        elif self.kind == "cross":
            held = None if cache is None else cache.memory
            y = self.branch(x, inputs.memory, keep=inputs.memory_keep, cache=held)
        elif self.kind == "merged":
            y = self.branch(
                x, inputs.memory, keep=inputs.memory_keep, own_keep=inputs.keep, cache=cache
            )
        else:
            y = self.branch(x)
        return y


class Layer(nn.Module):
    """The sites of one layer by name, in the order of the scheme's plan."""

    def __init__(
        self,
        sites: Mapping[str, tuple[Site, SitePlan]],
        *,
        shape: LayerShape,
        stream: Stream,
        scales: ScaleBuilder,
    ) -> None:
        super().__init__()
        self.sublayers = nn.ModuleDict(
            {
                name: Sublayer(site, plan, shape=shape, stream=stream, scales=scales)
                for name, (site, plan) in sites.items()
            }
        )

    def forward(self, state: Any, inputs: Inputs, cache: LayerCache | None = None) -> Any:
        """Return the stream's state after this layer."""
        for sublayer in self.sublayers.values():
            state = sublayer(state, inputs, cache)
        return state


def build_branch(
    site: Site, plan: SitePlan, *, shape: LayerShape, scales: ScaleBuilder
) -> Attention | FeedForward:
    """Return the module that carries out a site's branch."""
    if plan.branch == "ffn":
        return FeedForward(
            shape.d_model,
            shape.ffn_dim,
            activation=shape.activation,
            plan=plan,
            site=site,
            dropout=shape.activation_dropout,
            scales=scales,
        )
    kind = MergedAttention if plan.branch == "merged" else Attention
    return kind(
        shape.d_model,
        shape.num_heads,
        plan=plan,
        site=site,
        dropout=shape.attention_dropout,
        scales=scales,
    )
