"""Single residual sites with their numbers given by hand: `x = site(x, branch(x))`.

Each is made from the answer of the scheme it is named after; `deepnet.coefficients` has the numbers for a depth.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from torch import nn

from deepnet.errors import ConfigError
from deepnet.schemes import branchnorm, deepnorm, post_ln, pre_ln
from deepnet.schemes.base import Constant, ResidualScheme, Site, SitePlan, StackContext, glorot
from deepnet.transformer.residual import Residual
from deepnet.transformer.scales import ScaleBuilder
from deepnet.transformer.stepping import Stepped

MakeNorm = Callable[[int], nn.Module]
_SITE = Site(stack="encoder", layer=1, kind="ffn", index=1, first_in_layer=True, last_in_layer=True)


class _Alone(Residual):
    """A site that is not part of a stack."""

    def __init__(self, plan: SitePlan, d_model: int, dropout: float) -> None:
        scales = ScaleBuilder([plan])
        super().__init__(plan, site=_SITE, d_model=d_model, dropout=dropout, scales=scales)


class PostNorm(_Alone):
    """LN(x + y), the site of the original Transformer."""

    def __init__(
        self, d_model: int, *, dropout: float = 0.0, make_norm: MakeNorm = nn.LayerNorm
    ) -> None:
        super().__init__(_plan(post_ln.Scheme(), make_norm), d_model, dropout)


class PreNorm(_Alone):
    """x + y, y the branch of LN(x): `entered, skip = site.enter(x)`, `x = site(skip, branch(entered))`."""

    def __init__(
        self, d_model: int, *, dropout: float = 0.0, make_norm: MakeNorm = nn.LayerNorm
    ) -> None:
        super().__init__(_plan(pre_ln.Scheme(), make_norm), d_model, dropout)


class DeepNorm(_Alone):
    """LN(alpha * x + y); `beta` is the gain with which `deepnet.initialize` draws v, out, fc1 and fc2 behind it."""

    def __init__(
        self,
        d_model: int,
        alpha: float,
        *,
        beta: float | None = None,
        dropout: float = 0.0,
        make_norm: MakeNorm = nn.LayerNorm,
    ) -> None:
        if alpha <= 0:
            raise ConfigError(f"alpha is {alpha}; expected a positive number")
        plan = _plan(deepnorm.Scheme(), make_norm, beta)
        super().__init__(replace(plan, skip=Constant(alpha)), d_model, dropout)


class BranchNorm(_Alone, Stepped):
    """LN(x + a_t * y), a_t from 0 to 1 in T updates: call `advance(step)` after each, or y never enters."""

    def __init__(
        self,
        d_model: int,
        T: int = 4000,
        *,
        growth: Literal["linear", "exp", "sigmoid"] = "linear",
        beta: float | None = None,
        dropout: float = 0.0,
        make_norm: MakeNorm = nn.LayerNorm,
    ) -> None:
        scheme = branchnorm.Scheme(T=T, growth=growth)
        super().__init__(_plan(scheme, make_norm, beta), d_model, dropout)
        self.count_updates()

    def reset_parameters(self) -> None:
        """Start at step 0."""
        super().reset_parameters()
        self.advance(0)


def _plan(scheme: ResidualScheme, make_norm: MakeNorm, beta: float | None = 1.0) -> SitePlan:
    """Return a site as a scheme plans it, drawn with `beta` instead of the gain of a depth; None is no draw at all."""
    context = StackContext(
        architecture="encoder_only",
        stack="encoder",
        encoder_layers=1,
        decoder_layers=0,
        d_model=1,
        ffn_dim=1,
        num_heads=1,
        tie_embeddings="all",
        optimizer_family="adam",
        make_norm=make_norm,
    )
    return replace(scheme.site(context, _SITE), init={} if beta is None else glorot(beta))
