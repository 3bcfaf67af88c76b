"""A layer: its residual sites in order, each a residual module around a branch."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from deepnet.errors import ConfigError
from deepnet.schemes.base import Branch, Site, SitePlan, Stream, ValueStream
from deepnet.transformer.attention import (
    Attention,
    CrossAttention,
    MergedAttention,
    SelfAttention,
)
from deepnet.transformer.cache import LayerCache
from deepnet.transformer.feed_forward import Activation, FeedForward
from deepnet.transformer.inputs import Inputs
from deepnet.transformer.residual import Residual
from deepnet.transformer.scales import ScaleBuilder


class LayerShape(NamedTuple):
    """The sizes and dropout rates that every layer of a stack shares."""

    d_model: int
    ffn_dim: int
    num_heads: int
    num_kv_heads: int
    activation: Activation
    dropout: float
    attention_dropout: float
    activation_dropout: float


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
        y: Tensor = self.branch(x, inputs, cache)
        return y


class ValueSublayer(Sublayer):
    """A residual site with an attention, the values of which its stream has a say in."""

    stream: ValueStream

    def forward(self, state: Any, inputs: Inputs, cache: LayerCache | None) -> Any:
        """Return the stream's next state; of a memory that is in the cache, the values are there."""
        x, carry = self.stream.read(state, self.residual)
        is_cached = self.kind == "cross" and cache is not None and not cache.memory.empty
        if not is_cached:
            values, state = self._values(state, x, inputs)
            inputs = inputs._replace(values=values)
        return self.stream.write(state, carry, self.residual, self.compute(x, inputs, cache))

    def _values(self, state: Any, x: Tensor, inputs: Inputs) -> tuple[Tensor, Any]:
        """Return the values [B, C, G * K] of the branch's input `x` [B, T, D] or of the memory, and the state."""
        source, ids = (inputs.memory, None) if self.kind == "cross" else (x, inputs.ids)
        assert isinstance(self.branch, Attention)
        assert source is not None
        own = None if self.branch.v is None else self.branch.v(source)
        return self.stream.values(state, self.residual, own, source=source, ids=ids)


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
                name: _sublayer_class(site, plan, stream)(
                    site, plan, shape=shape, stream=stream, scales=scales
                )
                for name, (site, plan) in sites.items()
            }
        )

    def forward(self, state: Any, inputs: Inputs, cache: LayerCache | None = None) -> Any:
        """Return the stream's state after this layer."""
        for sublayer in self.sublayers.values():
            state = sublayer(state, inputs, cache)
        return state


def _sublayer_class(site: Site, plan: SitePlan, stream: Stream) -> type[Sublayer]:
    """Return the class of a site; raises ConfigError where nobody can make the values that it plans."""
    if plan.values == "own":
        return Sublayer
    if plan.branch in ("self", "cross") and isinstance(stream, ValueStream):
        return ValueSublayer
    raise ConfigError(
        f"values '{plan.values}' are planned for the branch '{plan.branch}' of layer {site.layer}, in a stream of kind "
        f"{type(stream).__name__}; expected self or cross, and a ValueStream"
    )


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
    kinds: dict[Branch, type[Attention]]
    kinds = {"self": SelfAttention, "cross": CrossAttention, "merged": MergedAttention}
    return kinds[plan.branch](
        shape.d_model,
        shape.num_heads,
        num_kv_heads=shape.num_kv_heads or shape.num_heads,
        plan=plan,
        site=site,
        dropout=shape.attention_dropout,
        scales=scales,
    )
