"""A stream that stays on the unit sphere and takes a trained step towards each branch's output.

    x <- unit(x + |a| (.) (unit(f(x)) - x)),   a one number per channel
    q = s_qk unit(q), k = s_qk unit(k), softmax(sqrt(d_head) q k);   logits times s_z
    feed-forward: u and v (the gate's pre-activation) times s_u sqrt(d) and s_v sqrt(d)
    after each update every row of length d of every matrix (column of out and fc2) is given unit length

Source: Loshchilov et al., nGPT, arXiv 2410.01131, and NVIDIA/ngpt. Meant to be trained without weight decay, which has
no effect here, and without warm-up.
Cost: no norms to train and no biases; per layer 2 d for the steps, d for s_qk, ffn_dim each for s_u and s_v.
Differs: the source stores each scale as a small number times a constant; here the learning rate of all scales is
multiplied by sqrt(d) instead, which under Adam is the same. s_qk^2 multiplies q alone, the same product. With rotary
positions it acts before the turn, there after it. Token rows and positions are summed as everywhere, then normed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    Architecture,
    Change,
    Ends,
    Init,
    Learned,
    ModelOfRoles,
    Norm,
    Policy,
    ResidualScheme,
    ResidualSite,
    Role,
    Site,
    SitePlan,
    StackContext,
    Stream,
)

_MATRICES: tuple[Role, ...] = (
    *("q", "k", "v", "out", "fc1", "gate", "fc2", "embedding", "position", "vocabulary"),
)


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """A stream on the unit sphere that takes trained steps towards each branch's output; weights have unit rows."""

    equation: ClassVar[str] = "x <- unit(x + |a|*(unit(f(x)) - x)), unit weight rows"
    source: ClassVar[str] = "Loshchilov et al. 2024, arXiv 2410.01131"
    changes: ClassVar[Change] = "stream"
    grew_out_of: ClassVar[tuple[str, ...]] = ("pre_ln",)
    warmup: ClassVar[bool] = False
    architectures: ClassVar[tuple[Architecture, ...]] = ("decoder_only",)

    step: float = 0.05
    """Where a starts; the paper takes about one over the number of layers."""

    def __post_init__(self) -> None:
        if self.step <= 0:
            raise ConfigError(f"step is {self.step}; expected a positive number")

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a site on the sphere, with unit queries and keys or a scaled pre-activation."""
        head_size = context.d_model // context.num_heads
        return SitePlan(
            branch=site.kind,
            out=Norm(_Unit),
            post=Norm(_Unit),
            inner_norms={
                "q": Norm(partial(_UnitQueries, heads=context.num_heads)),
                "k": Norm(_Unit),
            },
            attention_multiplier=head_size**0.5,
            preactivation_scale=Learned(init=context.d_model**0.5, shape="vector"),
            bias=False,
            init=_draws(context),
            policy=_policies(context),
            extra={"step": lambda: _Step(self.step, context.d_model)},
        )

    def ends(self, context: StackContext) -> Ends:
        """Return ends that put the embedding on the sphere and scale each logit."""
        return Ends(
            embedding_norm=Norm(_Unit),
            logit_scale=Learned(init=1.0, shape="vector"),
            init=_draws(context),
            policy=_policies(context),
            fixes=("rows", "std", "lr", "weight_decay"),
        )

    def stream(self, context: StackContext) -> Stream:
        """Return the stream on the sphere."""
        return _Sphere()

    def prepare(self, model: ModelOfRoles, batches: Iterable[Any]) -> None:
        """Give every row unit length before step 0."""
        self.after_update(model)

    @torch.no_grad()
    def after_update(self, model: ModelOfRoles) -> None:
        """Give the rows of every matrix unit length again, along d: columns of out and fc2."""
        for weight in model.role_weights():
            along_d = 0 if weight.role in ("out", "fc2") else 1
            weight.parameter.copy_(F.normalize(weight.parameter, dim=along_d))


def _draws(context: StackContext) -> dict[Role, Init]:
    return dict.fromkeys(_MATRICES, Init("normal", context.d_model**-0.5))


def _policies(context: StackContext) -> dict[Role, Policy]:
    scales: dict[Role, Policy] = {"scale": Policy(lr=context.d_model**0.5)}
    return scales | dict.fromkeys(_MATRICES, Policy(weight_decay=0.0))


class _Unit(nn.Module):
    """x / |x| over the last axis, in float32 at least; it has no parameter and fits any width."""

    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` [..., D] at unit length."""
        return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)


class _UnitQueries(_Unit):
    """s_qk^2 unit(q), one number per head and channel; the square is the keys' share."""

    def __init__(self, width: int, *, heads: int) -> None:
        super().__init__(width)
        self.scale = nn.Parameter(torch.empty(heads, 1, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set every number to 1."""
        nn.init.ones_(self.scale)

    def forward(self, x: Tensor) -> Tensor:
        """Return queries [B, H, T, K]."""
        return super().forward(x) * self.scale.square()


class _Step(nn.Module):
    """|a|, how far the stream goes towards the branch's output, one number per channel."""

    def __init__(self, start: float, width: int) -> None:
        super().__init__()
        self.start = start
        self.factor = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set every number to 1."""
        nn.init.ones_(self.factor)

    def forward(self) -> Tensor:
        """Return |a| [D]."""
        return self.start * self.factor.abs()


class _Sphere(Stream):
    def write(self, state: Tensor, carry: Tensor, site: ResidualSite, y: Tensor) -> Tensor:
        a = site.extra["step"]()
        return site.add(carry - a * carry, a * site.leave(y))
