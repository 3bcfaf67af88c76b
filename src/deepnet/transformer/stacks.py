"""A stack: embedded tokens in, the stream through every layer, the final norm out."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from deepnet.errors import ConfigError, SchemeError
from deepnet.schemes.base import Ends, HasRoles, Learned, RoleWeight, StackContext, StackPlan
from deepnet.transformer.cache import DecoderCache
from deepnet.transformer.chain import Chain
from deepnet.transformer.dropout import dropout
from deepnet.transformer.embeddings import TokenEmbedding
from deepnet.transformer.initialize import planned_weight
from deepnet.transformer.inputs import Inputs, query_type
from deepnet.transformer.layers import Layer, LayerShape, Sublayer
from deepnet.transformer.positions.base import (
    NO_POSITIONS,
    AddedPositions,
    AttentionPositions,
    InAttention,
    Places,
    PositionKind,
    build_positions,
)
from deepnet.transformer.residual import (
    add_scaled,
    build_extra,
    build_norm,
    build_shift,
    reset_shift,
)
from deepnet.transformer.scales import ScaleBuilder, end_scale, learned_scale, scaled


class StackEnds(nn.Module):
    """What follows the last site: a merge of the state, a shift, the final norm, a scale, each where it is planned."""

    def __init__(self, plan: Ends, d_model: int) -> None:
        super().__init__()
        self.merge = None if plan.merge is None else plan.merge()
        self.start = plan.exit_shift
        self.shift = build_shift(plan.exit_shift)
        self.final = build_norm(plan.final, d_model)
        self.scale = end_scale(plan.exit_scale, d_model)
        self.extra = build_extra(plan.extra)
        for name, module in self.extra.items():
            if isinstance(module, HasRoles):
                raise SchemeError(
                    f"extra['{name}'] of the ends names matrices by role, which modules of sites alone may; draw them "
                    "in its reset_parameters"
                )

    def reset_parameters(self) -> None:
        """Set the shift to its start."""
        reset_shift(self.shift, self.start)

    def forward(self, x: Any) -> Tensor:
        """Return scale * final(x - shift), [B, T, D], `x` being such a tensor or what the merge makes one of."""
        if self.merge is not None:
            x = self.merge(x)
        if self.shift is not None:
            x = x - self.shift
        if self.final is not None:
            x = self.final(x)
        return scaled(x, self.scale)


class Entry(nn.Module):
    """What precedes the first site: rows times a multiplier, plus positions, a norm where planned, dropout."""

    def __init__(
        self, plan: Ends, *, d_model: int, positions: AddedPositions | None, dropout: float
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
    """An encoder or a decoder, carrying out a scheme's plan; its layers run `loops` times, one pass after the other."""

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
        self.loops = context.loops
        self.num_heads = shape.num_heads
        made = build_positions(positions, context, max_positions=max_positions)
        _refuse_unheard(positions, made, plan)
        self.entry = Entry(
            plan.ends,
            d_model=context.d_model,
            positions=made if isinstance(made, AddedPositions) else None,
            dropout=shape.dropout,
        )
        self.positions = made if isinstance(made, AttentionPositions) else None
        scales = ScaleBuilder(site_plan for _, site_plan in plan.sites)
        self.layers = Chain(
            (
                Layer(sites, shape=shape, stream=plan.stream, scales=scales)
                for sites in plan.layers()
            ),
            loops=context.loops,
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
            for role, matrix in site.residual.roles():
                policy = {**self.plan.ends.policy, **plan.policy}
                yield planned_weight(self.name, layer, role, matrix, replace(plan, policy=policy))

    def forward(
        self,
        ids: Tensor,
        embedding: TokenEmbedding,
        inputs: Inputs,
        *,
        start: int = 0,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        """Return [B, T, D] from token ids [B, T]; with a cache, the T columns all stand at position `start`."""
        x = self.entry(embedding(ids), start, same_position=cache is not None)
        found = self._in_attention(x, start, cache)
        inputs = inputs.laid_out(x, found, num_heads=self.num_heads)._replace(ids=ids)
        state: Any = self.stream.open(x)
        if cache is None:
            state = self.layers.run(state, inputs, None)
        else:
            for layer, cached in zip(self.layers.unrolled(), cache.layers, strict=True):
                state = layer(state, inputs, cached)
        return self.stream.close(state, self.ends)

    def _in_attention(self, x: Tensor, start: int, cache: DecoderCache | None) -> InAttention:
        """Return what the positions of the stream's input `x` [B, T, D] give every self-attention."""
        length = x.shape[1] if cache is None else 1
        keys = None if cache is None else cache.enter(start, x)
        if self.positions is None:
            return NO_POSITIONS
        queries = torch.arange(start, start + length, device=x.device)
        found: InAttention = self.positions(
            Places(queries, queries if keys is None else keys), dtype=query_type(x)
        )
        return found


def _refuse_unheard(
    kind: PositionKind, made: AddedPositions | AttentionPositions, plan: StackPlan
) -> None:
    """Raise ConfigError for a bias of scores in a stack without self-attention, as merged attention has none.

    Rotary angles go unheard there, too, but there are bundles that have them.
    """
    is_bias = isinstance(made, AttentionPositions) and kind != "rotary"
    if is_bias and all(site.branch != "self" for _, site in plan.sites):
        raise ConfigError(
            f"positions '{kind}' are a bias of self-attention, and a stack of this scheme has none (its attention is "
            "merged); take 'sinusoidal' or 'learned'"
        )


def _multiplier(plan: float | Learned | None, d_model: int) -> nn.Module | float:
    """Return what multiplies the embedded rows, by default sqrt(D)."""
    if isinstance(plan, Learned):
        return learned_scale(plan, d_model)
    return math.sqrt(d_model) if plan is None else plan
