"""Another scheme whose self-attention adds to its values a row of a table of their own for each token.

    v <- v + 3 sigmoid(W_g n[:12]) E_l[token]   in every second layer, the last one among them; n what attention reads
    one gate per head of keys and values;   W_g from U(0, 0.02), E_l [V, d_kv] uniform with std d^(-1/2)

Source: karpathy/nanochat, its nanochat/gpt.py of 2026, for a decoder; encoders and, per stack, encoder-decoders are
ours.
Cost: as its base, and V d_kv numbers per table, 12 per gate: at 32,000 ids and d 512 16 million in every second layer.
Differs: padding's row is zero and stays it, as in the embedding. Tables learn and decay as the embedding does, at the
rate that [ends] has for it, which is of the embedding's draw: with another (base scale_norm, ends.rows = "unit",
ends.embedding_std) a table moves by another part of its own at an update. nanochat gives W_g to Muon; here it learns at
the rate of everything else and is not decayed. Cross-attention, of whose memory the decoder has no tokens, is left as
it is. Gates start at 1.5, so that it is its base in layers without a table alone. The gain of deepnorm does not reach
the tables.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    Change,
    Init,
    ResidualSite,
    Role,
    Site,
    SitePlan,
    StackContext,
    Stream,
)
from deepnet.schemes.values import Around, ValueScheme

if TYPE_CHECKING:
    from torch import Tensor

    from deepnet.schemes.values import State

_GATE_CHANNELS = 12
_GATE_LIMIT = 0.02
_MOST = 3.0


@dataclass(frozen=True, kw_only=True)
class Scheme(ValueScheme):
    """Another scheme whose self-attention adds gated rows of a table of the tokens to its values."""

    equation: ClassVar[str] = "v <- v + 3*sigmoid(W_g n[:12])*E_l[token] in every second layer"
    source: ClassVar[str] = "karpathy/nanochat 2026"
    changes: ClassVar[Change] = "values"
    grew_out_of: ClassVar[tuple[str, ...]] = ("value_residual",)

    def with_values(self, context: StackContext, site: Site, plan: SitePlan) -> SitePlan:
        """Return the base's plan of a site, with a table in the self-attention of every second layer."""
        if plan.branch != "self" or (context.num_layers - site.layer) % 2:
            return plan
        table = {"value_table": lambda: _Table(context)}
        init = {**plan.init, "embedding": Init("uniform", math.sqrt(3.0 / context.d_model))}
        return replace(plan, values="mixed", extra={**plan.extra, **table}, init=init)

    def around(self, stream: Stream) -> "_WithRows":
        """Return the stream that adds the rows."""
        return _WithRows(stream)


class _WithRows(Around):
    """Adds the rows of the tokens where a site has a table."""

    def values(
        self,
        state: "State",
        site: ResidualSite,
        own: "Tensor | None",
        *,
        source: "Tensor",
        ids: "Tensor | None",
    ) -> "tuple[Tensor, State]":
        values, state = super().values(state, site, own, source=source, ids=ids)
        if "value_table" not in site.extra:
            return values, state
        if ids is None:
            raise ConfigError(
                "value embeddings read tokens, and were given none; call the stack with ids"
            )
        rows = site.extra["value_table"](source, ids)
        return values + rows.to(values.dtype), state


class _Table(nn.Module):
    """A row per token and head of values, times a gate of what attention reads."""

    def __init__(self, context: StackContext) -> None:
        super().__init__()
        self.num_heads, self.padding = context.num_kv_heads, context.vocab_size - 1
        width = context.d_model // context.num_heads * self.num_heads
        self.weight = nn.Parameter(torch.empty(context.vocab_size, width))
        self.gate = nn.Parameter(torch.empty(self.num_heads, min(_GATE_CHANNELS, context.d_model)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the gate; the table, which is drawn by role, is silent until it is."""
        nn.init.zeros_(self.weight)
        nn.init.uniform_(self.gate, 0.0, _GATE_LIMIT)

    def roles(self) -> "Mapping[Role, Tensor]":
        """Return the table: it is drawn, learns and decays as an embedding."""
        return {"embedding": self.weight}

    def forward(self, source: "Tensor", ids: "Tensor") -> "Tensor":
        """Return what is added to the values [B, T, V] of tokens `ids` [B, T], from the attention's input [B, T, D]."""
        rows = F.embedding(ids, self.weight, padding_idx=self.padding)
        logits = F.linear(source[..., : self.gate.shape[1]], self.gate)
        gates = _MOST * torch.sigmoid(logits)
        by_head = rows.view(*rows.shape[:-1], self.num_heads, -1)
        return (gates.unsqueeze(-1) * by_head).flatten(-2)
