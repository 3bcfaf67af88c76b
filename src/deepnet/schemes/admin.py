"""A Post-LN whose skips carry trained vectors that start at the size of what the branches before them add up to.

    x <- LN(w_i * x + f(x)),   w_1 = 1,   w_(i+1)^2 = Var[w_i * x] + Var[f_i(x)] of one pass before the first update
    without a pass, w fixed for R sites: log sqrt((R + 1) / ln(R + 1) - 1), linear 1, constant sqrt(R)

Source: Liu et al., Understanding the Difficulty of Training Transformers, arXiv 2004.08249, and the authors'
Transformer-Clinic (the pass) and admin-torch (without one).
Cost: a vector per site, or, without a pass, nothing more than post_ln.
Differs: the pass is one call on the run's first batch, in training mode with dropout; its result is saved with the
weights instead of a file shared by name, and never measured again. q, k and v are drawn with gain 1 each, where the
authors draw them as one matrix. R counts the sites of one stack, which the authors say of an encoder alone.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from deepnet.errors import ConfigError
from deepnet.schemes.base import (
    Change,
    Constant,
    Ends,
    Learned,
    ResidualScheme,
    ResidualSite,
    Scale,
    Site,
    SitePlan,
    StackContext,
    embedding_init,
    glorot,
)


@dataclass(frozen=True, kw_only=True)
class Scheme(ResidualScheme):
    """Post-LN with a trained vector on every skip, started by measuring the branches, or with numbers by depth."""

    equation: ClassVar[str] = "x <- LN(w*x + f(x)), w trained, profiled at the start"
    source: ClassVar[str] = "Liu et al. 2020, arXiv 2004.08249"
    changes: ClassVar[Change] = "scale"
    grew_out_of: ClassVar[tuple[str, ...]] = ("post_ln",)
    folds_to: ClassVar[str | None] = "post_ln"

    form: Literal["profiled", "log", "linear", "constant"] = "profiled"
    """Measure and train w, or fix it: the output's change then grows with depth like log R, like R, or not at all."""

    def site(self, context: StackContext, site: Site) -> SitePlan:
        """Return a post-norm site with its scale on the skip."""
        skip, draws = self._skip(context), glorot(kind="xavier_uniform")
        return SitePlan(branch=site.kind, post=context.norm(), skip=skip, init=draws)

    def ends(self, context: StackContext) -> Ends:
        """Return plain ends, with the mark of having been measured where w is."""
        mark = {"profile": Profile} if self.form == "profiled" else {}
        return Ends(init=embedding_init(context), extra=mark)

    def prepare(self, model: Any, batches: Iterable[tuple[Tensor | None, ...]]) -> None:
        """Set every w from one pass over the first batch, the same on every rank, unless that was done before."""
        profiles = [module for module in model.modules() if isinstance(module, Profile)]
        if self.form != "profiled" or (profiles and all(profile.done for profile in profiles)):
            return
        batch = next(iter(batches), None)
        if batch is None:
            raise ConfigError("admin measures its start on a batch, and there is none; give it one")
        _measure(model, batch)
        for profile in profiles:
            profile.done.fill_(True)

    def _skip(self, context: StackContext) -> Scale:
        if self.form == "profiled":
            if context.loops > 1:
                raise ConfigError(
                    f"admin measures a start for each site where it runs, and model.loops = {context.loops} runs each "
                    "several times; set scheme.form to 'log', 'linear' or 'constant', or model.loops = 1"
                )
            return Learned(init=1.0, shape="vector")
        r = context.num_layers * len(self.branches(context))
        squares = {"log": (r + 1) / math.log(r + 1) - 1, "linear": 1.0, "constant": r}
        return Constant(math.sqrt(squares[self.form]))


class Profile(nn.Module):
    """The mark that a stack's scales have been measured, saved with its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.done: Tensor
        self.register_buffer("done", torch.zeros(1, dtype=torch.bool))

    def reset_parameters(self) -> None:
        """Say that nothing has been measured."""
        self.done.fill_(False)


@torch.no_grad()
def _measure(model: Any, batch: tuple[Tensor | None, ...]) -> None:
    """Call `model` once in training mode, setting each site's scale just before it is used."""
    sites: list[Any] = [module for module in model.modules() if isinstance(module, ResidualSite)]
    seen = _Seen({})
    hooks = [site.register_forward_pre_hook(seen.start_site) for site in sites]
    hooks += [site.post.register_forward_pre_hook(partial(seen.end_site, site)) for site in sites]
    was_training = model.training
    try:
        model.train()(*batch)
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()


@dataclass
class _Seen:
    """What a pass has seen so far: per stack, the variance of the sum before the last norm."""

    variance: dict[str, float]

    def start_site(self, site: Any, inputs: tuple[Tensor, Tensor]) -> None:
        """Set the scale of a site that is about to add its branch to its skip."""
        site.skip.factor.fill_(math.sqrt(self.variance.get(site.site.stack, 1.0)))
        self.skipped: Tensor = site.skip(inputs[0])

    def end_site(self, site: Any, norm: nn.Module, inputs: tuple[Tensor]) -> None:
        """Note the variances of both summands; the branch, with its dropout, is the sum less the skip."""
        summands = (self.skipped, inputs[0] - self.skipped)
        self.variance[site.site.stack] = sum(x.var(correction=0).item() for x in summands)
