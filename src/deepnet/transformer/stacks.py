"""A stack: embedded tokens in, the stream through every layer, the final norm out."""

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from deepnet.schemes.base import Ends, Learned, RoleWeight, StackContext, StackPlan
from deepnet.transformer.cache import LayerCache
from deepnet.transformer.dropout import dropout
from deepnet.transformer.embeddings import TokenEmbedding
from deepnet.transformer.initialize import planned_weight
from deepnet.transformer.layers import Inputs, Layer, LayerShape, Sublayer
from deepnet.transformer.positions import (
    LearnedPositions,
    PositionKind,
    RotaryAngles,
    SinusoidalPositions,
)
from deepnet.transformer.residual import add_scaled, build_norm, build_shift, reset_shift
from deepnet.transformer.scales import LearnedScale, ScaleBuilder, end_scale, scaled


class StackEnds(nn.Module):
    """What follows the last site: a shift, the final norm and a scale, each where it is planned."""

    def __init__(self, plan: Ends, d_model: int) -> None:
        super().__init__()
        self.start = plan.exit_shift
        self.shift = build_shift(plan.exit_shift)
        self.final = build_norm(plan.final, d_model)
        self.scale = end_scale(plan.exit_scale, d_model)
        self.extra = nn.ModuleDict({name: make() for name, make in plan.extra.items()})

    def reset_parameters(self) -> None:
        """Set the shift to its start."""
        reset_shift(self.shift, self.start)

    def forward(self, x: Tensor) -> Tensor:
        """Return scale * final(x - shift), [B, T, D]."""
        if self.shift is not None:
            x = x - self.shift
        if self.final is not None:
            x = self.final(x)
        return scaled(x, self.scale)


class Entry(nn.Module):
    """What precedes the first site: rows times a multiplier, plus positions, a norm where planned, dropout."""

    def __init__(
        self, plan: Ends, *, d_model: int, positions: nn.Module | None, dropout: float
    ) -> None:
        super().__init__()
        self.multiplier = _multiplier(plan.embedding_multiplier, d_model)
        self.positions = positions
        self.norm = build_norm(plan.embedding_norm, d_model)
        self.dropout = dropout

    def forward(self, rows: Tensor, start: int, *, same_position: bool = False) -> Tensor:
        """Return the stream's input [B, T, D] from embedded rows [B, T, D] that stand at `start`, start + 1, ...

        With `same_position` all T rows stand at `start`: they are T hypotheses, not T tokens in a row.
        """
        if self.positions is None:
            x = scaled(rows, self.multiplier)
        else:
            vectors = self.positions(start, 1 if same_position else rows.shape[1])
            x = add_scaled(rows, self.multiplier, vectors, 1.0)
        if self.norm is not None:
            x = self.norm(x)
        return dropout(x, self.dropout, training=self.training)


class Stack(nn.Module):
    """An encoder or a decoder, carrying out a scheme's plan."""

    def __init__(
        self,
        plan: StackPlan,
        context: StackContext,
        *,
        shape: LayerShape,
        positions: PositionKind,
        max_positions: int,
    ) -> None:
        super().__init__()
        self.plan = plan
        self.stream = plan.stream
        self.name = context.stack
        added, self.rotary = _positions(positions, context, max_positions)
        self.entry = Entry(
            plan.ends, d_model=context.d_model, positions=added, dropout=shape.dropout
        )
        scales = ScaleBuilder(site_plan for _, site_plan in plan.sites)
        self.layers = nn.ModuleList(
            Layer(sites, shape=shape, stream=plan.stream, scales=scales) for sites in plan.layers()
        )
        self.ends = StackEnds(plan.ends, context.d_model)

    def sites(self) -> list[Sublayer]:
        """Return the residual sites with their branches, in order."""
        return [module for module in self.layers.modules() if isinstance(module, Sublayer)]

    def role_weights(self) -> Iterator[RoleWeight]:
        """Yield every matrix of the sites with its role; raises ConfigError where the scheme plans no draw for one."""
        for site in self.sites():
            layer, plan = site.residual.site.layer, site.residual.plan
            for role, owner in site.branch.roles().items():
                yield planned_weight(self.name, layer, role, owner.weight, plan)

    def forward(
        self,
        ids: Tensor,
        embedding: TokenEmbedding,
        inputs: Inputs,
        *,
        start: int = 0,
        caches: list[LayerCache] | None = None,
    ) -> Tensor:
        """Return [B, T, D] from token ids [B, T]; with caches, the T columns all stand at position `start`."""
        same = caches is not None
        x = self.entry(embedding(ids), start, same_position=same)
        if self.rotary is not None:
            length = 1 if same else ids.shape[1]
            inputs = inputs._replace(rotary=self.rotary(start, length, device=ids.device))
        state: Any = self.stream.open(x)
        for index, layer in enumerate(self.layers):
            state = layer(state, inputs, None if caches is None else caches[index])
        return self.stream.close(state, self.ends)


def _multiplier(plan: float | Learned | None, d_model: int) -> nn.Module | float:
    """Return what multiplies the embedded rows, by default sqrt(D)."""
    if isinstance(plan, Learned):
        return LearnedScale(plan.init, 1 if plan.shape == "scalar" else d_model)
    return math.sqrt(d_model) if plan is None else plan


def _positions(
    kind: PositionKind, context: StackContext, max_positions: int
) -> tuple[nn.Module | None, RotaryAngles | None]:
    """Return the positions added to the embedding and those that turn queries and keys; one of them is None."""
    if kind == "rotary":
        return None, RotaryAngles(context.d_model // context.num_heads)
    if kind == "learned":
        return LearnedPositions(context.d_model, max_positions), None
    return SinusoidalPositions(context.d_model), None
