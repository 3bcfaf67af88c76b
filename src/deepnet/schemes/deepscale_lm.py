"""An encoder whose stream and branches all start at variance 1, whatever the depth, by draws that follow the tokens.

    pre: x <- lam * x + beta * f(LN(x)), a norm at the end;   post: x <- LN(lam * x + beta * f(x));   lam^2 + beta^2 = 1
    std of q, k: d^(-1/2);   fc1, fc2: (2 (1 - p) / (d ffn_dim))^(1/4);   v, out: ((1 - p) / r_l)^(1/4) d^(-1/2)
    r_1 = 0.221 (1 - p), how alike two tokens are;   r <- lam^2 r + beta^2 r' after each site, r' = 1 - p of attention
    and (1 - p) (r + (sqrt(1 - r^2) - r acos r) / pi) of feed-forward, r_l what it is before layer l;   p is dropout
    embeddings: std s = sqrt((1 - p) / tables), no sqrt(d);   logits times 1 / (s sqrt(d))

Source: Kedia et al., Transformers Get Stable, arXiv 2403.09635, and the authors' code, which has encoders (BERT).
Cost: as pre_ln or post_ln; lam and beta are constants.
Differs: beta^2 = 2 / R of R sites reproduces the code's 0.005 at 192 layers; we have not read the paper's own rule. At
most 1/2, at a single layer, is ours. The code's post places the norm before the skip too, which is this one re-indexed.
It has d_ff = 4 d and ReLU-like activations, and three tables of rows to add (tokens, positions, segments); any d_ff and
two tables are ours: sinusoids count as one, and with positions inside attention `tables` is 1. 0.221 is a statistic of
its corpus. Its 0.3 in the logits' scale is s^2 at p = 0.1. A gate, drawn as q and k are, is ours.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    Architecture,
    Change,
    Constant,
    Ends,
    Init,
    Norm,
    ResidualScheme,
    Role,
    Site,
    SitePlan,
    StackContext,
)


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """An encoder whose stream and branches all start at variance 1, by draws that follow how alike tokens are."""

    equation: ClassVar[str] = "x <- lam*x + beta*f(LN(x)), lam^2 + beta^2 = 1"
    source: ClassVar[str] = "Kedia et al. 2024, arXiv 2403.09635"
    changes: ClassVar[Change] = "init"
    grew_out_of: ClassVar[tuple[str, ...]] = ("pre_ln", "deepnorm")
    architectures: ClassVar[tuple[Architecture, ...]] = ("encoder_only",)
    restriction: ClassVar[str] = (
        "its draws follow how alike tokens are in an encoder; causal and cross-attention have no formula"
    )

    placement: Literal["pre", "post"] = "pre"
    """Where the norms stand."""
    beta_squared: float | None = None
    """The branches' share of the stream's variance; by default 2 / R of R sites."""
    alike: float = 0.221
    """The correlation of two embedded tokens, a statistic of the text."""
    tables: int = 2
    """How many tables of rows of variance (1 - p) / tables the embedding is the sum of."""

    def __post_init__(self) -> None:
        for name in ("beta_squared", "alike"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise ConfigError(f"{name} is {value}; expected a number between 0 and 1")
        if self.tables < 1:
            raise ConfigError(f"tables is {self.tables}; expected at least 1")

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a site that keeps the variance, drawn for its layer."""
        share, norm = self._share(context), context.norm()
        return SitePlan(
            branch=site.kind,
            pre=norm if self.placement == "pre" else None,
            post=norm if self.placement == "post" else None,
            skip=Constant(math.sqrt(1.0 - share)),
            branch_scale=Constant(math.sqrt(share)),
            init=self._draws(context, site.layer),
        )

    def ends(self, context: StackContext) -> Ends:
        """Return ends whose embedding and logits have variance 1."""
        std = math.sqrt((1.0 - context.dropout) / self.tables)
        rows = Init("normal", std)
        return Ends(
            embedding_multiplier=1.0,
            final=self.final_norm(context),
            logit_scale=Constant(1.0 / (std * math.sqrt(context.d_model))),
            init={"embedding": rows, "position": rows, "vocabulary": rows},
            fixes=("rows", "std"),
        )

    def final_norm(self, context: StackContext) -> Norm | None:
        """Return a norm under pre."""
        return context.norm() if self.placement == "pre" else None

    def similarity(self, context: StackContext, layer: int) -> float:
        """Return r_l, how alike two tokens are where they enter a layer."""
        kept, share = 1.0 - context.dropout, self._share(context)
        r = self.alike * kept
        for _ in range(layer - 1):
            r += share * (kept - r)
            r += share * (kept * _after_relu(r) - r)
        return r

    def _share(self, context: StackContext) -> float:
        """Return beta^2."""
        if self.beta_squared is not None:
            return self.beta_squared
        return min(2.0 / (len(self.branches(context)) * context.num_layers), 0.5)

    def _draws(self, context: StackContext, layer: int) -> dict[Role, Init]:
        kept, d = 1.0 - context.dropout, context.d_model
        plain = Init("normal", d**-0.5)
        mixed = Init("normal", (kept / self.similarity(context, layer)) ** 0.25 * d**-0.5)
        inner = Init("normal", (2.0 * kept / (d * context.ffn_dim)) ** 0.25)
        return {
            "q": plain, "k": plain, "v": mixed, "out": mixed, "fc1": inner, "gate": plain, "fc2": inner,
        }  # fmt: skip


def _after_relu(r: float) -> float:
    """Return how alike two tokens of correlation r are behind a ReLU between random matrices."""
    r = min(r, 1.0)  # without dropout it tends to 1 from below, up to rounding
    return r + (math.sqrt(1.0 - r * r) - r * math.acos(r)) / math.pi
