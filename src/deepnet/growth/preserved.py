"""Whether a model of another depth computes what the trained one did, read off what the scheme plans for its sites.

Its layers copy trained ones. It does where every site that is new hands its stream on as it is once its branch is
silent, and every other site, and the ends, are planned alike, or differ in what goes into the weights exactly.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

from torch import nn

from deepnet.growth.relayer import Origins, sites_of
from deepnet.schemes.base import Ends, Scheduled, SitePlan, StackName, Stream
from deepnet.transformer.layers import Sublayer
from deepnet.transformer.models import Transformer
from deepnet.transformer.norms import ScaledNorm
from deepnet.transformer.plans import alike
from deepnet.transformer.scales import value
from deepnet.transformer.stacks import Stack

_INTO_WEIGHTS = ("pre", "out", "post", "skip", "branch_scale")
"""What of a site's plan the weights take up, or is looked at by itself."""
_NO_FUNCTION = ("init", "policy", "fixes")
"""What decides how weights start and learn."""


def what_jumps(
    trained: Transformer,
    made: Transformer,
    origins: Origins,
    new: Mapping[StackName, Sequence[int]],
) -> Iterator[str]:
    """Yield why `made` does not compute what `trained` does once the branches of its `new` layers are silent."""
    for old, stack in zip(trained.stacks(), made.stacks(), strict=True):
        if type(stack.stream) is not Stream and origins[stack.name] != [*range(len(old.layers))]:
            yield f"the {stack.name}'s stream is more than one tensor that sites add to"
        yield from _end_jumps(old, stack, made.config.d_model)
        for place, origin in enumerate(origins[stack.name]):
            for original, site in zip(
                sites_of(old, [origin]), sites_of(stack, [place]), strict=True
            ):
                yield from _site_jumps(original, site, made.config.d_model)
        for site in sites_of(stack, new[stack.name]):
            yield from _not_handed_on(site)


def _not_handed_on(site: Sublayer) -> Iterator[str]:
    """Yield why a site whose branch is silent does not hand on the stream as it is."""
    residual = site.residual
    if residual.post is not None:
        yield "a norm follows the addition, and would norm again what a new layer hands on"
    if residual.plan.skip_from == "normed":
        yield "skips carry what was normed"
    if bool((value(residual.skip) != 1.0).any()):
        yield "skips are scaled, and a new layer would scale the stream again"
    if residual.out is not None and not _has_gain(residual.out):
        yield "the norm behind a branch has no gain that could be 0"


def _has_gain(norm: nn.Module) -> bool:
    inner = norm.norm if isinstance(norm, ScaledNorm) else norm
    return isinstance(inner, nn.LayerNorm | nn.RMSNorm) and inner.weight is not None


def _site_jumps(old: Sublayer, new: Sublayer, width: int) -> Iterator[str]:
    """Yield what the scheme plans for a layer and another way for its copy, where no weight takes it up exactly."""
    before, now = old.residual, new.residual
    if not _same_scale(before.skip, now.skip):
        yield "skips are scaled otherwise at the new depth"
    is_scheduled = isinstance(now.plan.branch_scale, Scheduled)
    if is_scheduled and not _same_scale(before.branch_scale, now.branch_scale):
        yield "branches grow in by another schedule at the new depth"
    for name in _functional(SitePlan, besides=_INTO_WEIGHTS):
        if not alike(getattr(before.plan, name), getattr(now.plan, name), width):
            yield f"the scheme plans another {name} for a site at the new depth"


def _end_jumps(old: Stack, new: Stack, width: int) -> Iterator[str]:
    for name in _functional(Ends):
        if not alike(getattr(old.plan.ends, name), getattr(new.plan.ends, name), width):
            yield f"the scheme plans another {name} for the {new.name} at the new depth"


def _same_scale(old: nn.Module | float, new: nn.Module | float) -> bool:
    return bool((value(old) == value(new)).all())


def _functional(plan: type[SitePlan] | type[Ends], *, besides: Sequence[str] = ()) -> list[str]:
    """Return the parts of a plan that the function of a model depends on."""
    return [one.name for one in fields(plan) if one.name not in (*_NO_FUNCTION, *besides)]
