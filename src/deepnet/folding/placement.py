"""Where a model's norms stand, and why some models have no plain form."""

from collections.abc import Iterator
from typing import Literal

from torch import Tensor, nn

from deepnet.errors import ExportError
from deepnet.schemes.base import SitePlan, Stream
from deepnet.transformer.models import Transformer, TransformerConfig
from deepnet.transformer.norms import ScaledNorm, norm_factory
from deepnet.transformer.residual import Residual
from deepnet.transformer.scales import value
from deepnet.transformer.stacks import Stack

Placement = Literal["post", "pre", "none"]


def find_placement(model: Transformer) -> Placement:
    """Return where the norms of every site stand; raises ExportError where no plain model computes the same."""
    placement, *others = {_site_placement(site.residual.plan) for site in model.sites()}
    if placement is None or others:
        raise ExportError(_refusal("its norms stand on both sides, or not alike at every site"))
    for reason in _reasons(model, placement):
        raise ExportError(_refusal(reason))
    return placement


def is_one(factor: Tensor) -> bool:
    """Return whether a factor changes nothing."""
    return bool((factor == 1.0).all())


def _refusal(reason: str) -> str:
    return (
        f"this model cannot be folded: {reason}, which no plain post-norm, pre-norm or norm-free model can express; "
        "keep it as it is (`deepnet schemes` says what folds to what)"
    )


def _site_placement(plan: SitePlan) -> Placement | None:
    """Return where a site's norm stands, None where there are two."""
    if plan.pre and plan.post:
        return None
    return "pre" if plan.pre else "post" if plan.post else "none"


def _reasons(model: Transformer, placement: Placement) -> Iterator[str]:
    """Yield what stands against folding."""
    if any(site.residual.plan.values != "own" for site in model.sites()):
        yield "its attention reads other values than it projects"
    if model.logit_scale is not None and value(model.logit_scale).numel() > 1:
        yield "it has a scale per logit"
    for stack in model.stacks():
        yield from _end_reasons(stack, placement)
        for site in stack.sites():
            yield from _plan_reasons(site.residual.plan)
            yield from _scale_reasons(site.residual, placement)
        for norm in _norms(stack):
            if not _is_own(norm, model.config):
                yield f"its norms are of the kind {type(norm).__name__}, not the model's own"


def _end_reasons(stack: Stack, placement: Placement) -> Iterator[str]:
    if type(stack.stream) is not Stream:
        yield "its stream is more than one tensor that sites add to"
    if stack.entry.norm is not None:
        yield "it norms its embeddings"
    if (stack.ends.final is not None) != (placement == "pre"):
        yield "a final norm is there without norms before the branches, or the other way round"
    if stack.ends.shift is not None and placement == "post":
        yield "it shifts what its last norm returns"
    if stack.ends.shift is not None and stack.loops > 1:
        yield "it shifts what its last layer returns, which its first one reads as well (model.loops)"


def _plan_reasons(plan: SitePlan) -> Iterator[str]:
    if plan.branch == "merged":
        yield "its decoder has merged attention"
    if plan.out is not None or plan.inner_norms:
        yield "it has norms inside its branches"
    if plan.head_scale is not None or plan.preactivation_scale is not None:
        yield "it has scales inside its branches"
    if plan.skip_from == "normed":
        yield "its skips carry what was normed"


def _scale_reasons(residual: Residual, placement: Placement) -> Iterator[str]:
    skip = value(residual.skip)
    if placement != "post" and not is_one(skip):
        yield "its skips are scaled with no norm behind them"
    if bool((skip == 0.0).any()):
        yield "a skip has become exactly 0"


def _norms(stack: Stack) -> Iterator[nn.Module]:
    owners = [one.residual for one in stack.sites()]
    for norm in [*(r.pre for r in owners), *(r.post for r in owners), stack.ends.final]:
        if norm is not None:
            yield norm.norm if isinstance(norm, ScaledNorm) else norm


def _is_own(norm: nn.Module, config: TransformerConfig) -> bool:
    own = norm_factory(config.norm, eps=config.norm_eps)(config.d_model)
    same_tables = norm.state_dict().keys() == own.state_dict().keys()
    return type(norm) is type(own) and vars(norm)["eps"] == vars(own)["eps"] and same_tables
