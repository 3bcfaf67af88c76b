"""Another scheme whose attention reads the mean of its own values and of those of the first layer.

    v_1 = W_v1 n_1,   half: v_l <- (v_1 + v_l) / 2 in layers l >= 2   (projections, before they are parted into heads)
    learned: v_l <- (1 - m) v_l + m v_1, m one trained number per attention, 1/2 at the start
    first: v_l = v_1, and no W_v in layers l >= 2 (SVFormer)

Source: Zhou et al., Value Residual Learning, arXiv 2410.17897, equations of ResFormer and SVFormer, for a decoder; m is
that of a public speed run, KellerJordan/modded-nanogpt. Encoders and, per stack, encoder-decoders are ours.
Cost: as its base; learned a number per attention above the first layer, first a matrix less. The first layer's values
are one more tensor that is handed from layer to layer, for cross-attention another.
Differs: of the paper's forms half, which is its own, and first. In an encoder-decoder self- and cross-attention each
have a v_1 of their own. A cache holds what was mixed, so that decoding needs no v_1 of earlier steps. It is its base
at the start in the first layer alone. m is not decayed, and learns at the rate of everything else.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import nn

from deepnet.errors import ConfigError
from deepnet.schemes.base import Change, ResidualSite, Site, SitePlan, StackContext, Stream
from deepnet.schemes.values import Around, ValueScheme

if TYPE_CHECKING:
    from torch import Tensor

    from deepnet.schemes.values import State


@dataclass(frozen=True, kw_only=True)
class Scheme(ValueScheme):
    """Another scheme whose attention reads its own values mixed with those of the first layer."""

    equation: ClassVar[str] = "v_l <- (v_1 + v_l)/2 in self- and cross-attention, l >= 2"
    source: ClassVar[str] = "Zhou et al. 2024, arXiv 2410.17897"
    changes: ClassVar[Change] = "values"
    grew_out_of: ClassVar[tuple[str, ...]] = ("pre_ln",)

    mix: Literal["half", "learned", "first"] = "half"
    """What a layer above the first reads: the mean, a trained mixture, or the first layer's values alone."""

    def with_values(self, context: StackContext, site: Site, plan: SitePlan) -> SitePlan:
        """Return the base's plan of a site, whose attention hands values out or takes them in."""
        if plan.branch not in ("self", "cross"):
            return plan
        if self.mix == "first" and context.loops > 1:
            raise ConfigError(
                f"mix 'first' gives the first layer alone values of its own, and model.loops = {context.loops} runs it "
                "again as another; take 'half', or model.loops = 1"
            )
        if self.mix != "first" or site.layer == 1:
            learned = self.mix == "learned" and site.layer > 1
            extra = {**plan.extra, "value_mix": _Mix} if learned else plan.extra
            return replace(plan, values="mixed", extra=extra)
        if plan.values != "own":
            raise ConfigError(
                f"mix 'first' leaves layers no values of their own, to which base '{self.base}' adds; take 'half' or "
                "'learned'"
            )
        return replace(plan, values="given")

    def around(self, stream: Stream) -> "_FirstValues":
        """Return the stream that remembers the first layer's values."""
        return _FirstValues(stream)


class _FirstValues(Around):
    """Keeps the first values of each kind of branch, and mixes them into all later ones of that kind."""

    def values(
        self,
        state: "State",
        site: ResidualSite,
        own: "Tensor | None",
        *,
        source: "Tensor",
        ids: "Tensor | None",
    ) -> "tuple[Tensor, State]":
        kind, first = site.site.kind, state[1]
        if own is None:
            return first[kind], state
        own, (inner, _) = super().values(state, site, own, source=source, ids=ids)
        if kind not in first:
            return own, (inner, {**first, kind: own})
        if "value_mix" in site.extra:
            return site.extra["value_mix"](own, first[kind]), (inner, first)
        return torch.lerp(own, first[kind], 0.5), (inner, first)


class _Mix(nn.Module):
    """(1 - m) v + m v_1."""

    def __init__(self) -> None:
        super().__init__()
        self.m = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set m to 1/2."""
        nn.init.constant_(self.m, 0.5)

    def forward(self, own: "Tensor", first: "Tensor") -> "Tensor":
        """Return the mixture [B, C, V] in the type of `own`; autocast's is too short for m."""
        wide = self.m.dtype
        return torch.lerp(own.to(wide), first.to(wide), self.m).to(own.dtype)
