"""Sites followed along their stream: by what factor it is larger than planned, which nothing after a norm feels."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import nn

from deepnet.audit.check_weights import NOTABLE, claimed_std, std_of
from deepnet.audit.claims import Claim, end_claim
from deepnet.audit.flow import Flow
from deepnet.audit.norm_response import norm_gain
from deepnet.audit.roles import RoleMatrix
from deepnet.audit.sites import MeasuredScale, first_norms, measure_scale
from deepnet.audit.stacks import LocatedSite
from deepnet.schemes.base import Constant, Learned, Scale, SitePlan
from deepnet.transformer.scales import initial

_DIFFERENT = 1e-4


@dataclass(frozen=True)
class Followed:
    """A located site, its plan, and how much larger its stream is than planned before and after it."""

    site: LocatedSite
    plan: SitePlan
    before: float
    after: float
    wanted_skip: float | None
    """The planned scale; None where any is right, as it was measured before the first update."""
    wanted_branch: float | None
    has_own_stream: bool
    """Whether the scheme's stream scales by itself, so that skip and branch are not compared."""

    @property
    def skip(self) -> float | None:
        """Return the measured scale of the skip, where it is one number."""
        return None if self.site.measured.skip is None else self.site.measured.skip.number

    @property
    def branch(self) -> float | None:
        """Return the measured scale of the branch, where it is one number."""
        return None if self.site.measured.branch is None else self.site.measured.branch.number

    @property
    def needed(self) -> float | None:
        """Return the scale that the branch needs for the site to be the planned one up to the stream's factor."""
        return None if self.wanted_branch is None else self.after * self.wanted_branch

    @property
    def is_planned(self) -> bool:
        """Return whether skip and branch are the planned ones up to a common factor, as far as they are numbers."""
        if None in (self.branch, self.skip, self.wanted_skip):
            return True
        return self.off is None or not differs(self.off, 1.0)

    @property
    def off(self) -> float | None:
        """Return the branch's scale in units of the needed one; None where it cannot be told."""
        if self.branch is None or self.needed is None:
            return None
        if self.needed:
            return self.branch / self.needed
        return 1.0 if not differs(self.branch, 0.0) else math.inf


def differs(value: float, wanted: float | None) -> bool:
    """Return whether a measured scale is another than the wanted one, if there is one."""
    return wanted is not None and abs(value - wanted) > _DIFFERENT * max(1.0, abs(wanted))


def follow(claim: Claim, flow: Flow, matrices: list[RoleMatrix]) -> list[Followed]:
    """Return a stack's sites with the factors of their stream, which the embedding may have begun with."""
    found = list(_walk(claim, flow, 1.0))
    first = found[0]
    norms = first.site.norms
    if first.is_planned or not first.off or not norms.pre or norms.post or claim.has_own_stream:
        return found
    if _enters_with(claim, flow, matrices, first.off):
        return list(_walk(claim, flow, first.off))
    return found


def _walk(claim: Claim, flow: Flow, factor: float) -> Iterator[Followed]:
    for site, plan in claim.pairs:
        one = Followed(
            site,
            plan,
            before=factor,
            after=factor,
            wanted_skip=_wanted(claim, plan.skip, site.measured.skip),
            wanted_branch=_wanted(claim, plan.branch_scale, site.measured.branch),
            has_own_stream=claim.has_own_stream,
        )
        after = _after(one)
        yield replace(one, after=after)
        factor = _normed_factor(flow, one) if site.norms.post else after


def _normed_factor(flow: Flow, one: Followed) -> float:
    """Return how much larger than planned a stream is after a norm: that norm's gain, where it should have none."""
    stream, post = one.site.measured.sum.output, one.plan.post
    norm = next(iter(first_norms(flow, stream)), None)
    if norm is None or post is None or post.make is not nn.LayerNorm or post.multiplier != 1.0:
        return 1.0
    gain = norm_gain(flow, stream, norm.output)
    return gain if abs(gain - 1) > NOTABLE else 1.0


def _after(one: Followed) -> float:
    """Return the stream's factor after a site: what its skip is scaled by beyond the plan."""
    if one.has_own_stream:
        return 1.0
    return one.before * one.skip / one.wanted_skip if one.skip and one.wanted_skip else one.before


def _wanted(claim: Claim, scale: Scale, measured: MeasuredScale | None) -> float | None:
    """Return what a scale starts from; of a schedule, whose steps some count from 1, the nearer start."""
    if isinstance(scale, Constant):
        return scale.value
    if isinstance(scale, Learned):
        return None if claim.is_prepared else initial(scale)
    number = (measured and measured.number) or 0.0
    return min((scale.at(0), scale.at(1)), key=lambda start: abs(start - number))


def _enters_with(claim: Claim, flow: Flow, matrices: list[RoleMatrix], factor: float) -> bool:
    """Return whether a stack's embedded rows are that much larger than planned."""
    fork = claim.stack.sites[0].measured.sum.fork
    multiplier = claim.plan.ends.embedding_multiplier
    planned = math.sqrt(fork.width) if multiplier is None else multiplier
    planned = initial(planned) if isinstance(planned, Learned) else planned
    tables = {m.parameter: m for m in matrices if m.role == "embedding"}
    for rows in (value for value in flow.origins(fork) if value in flow.embeddings):
        scale = measure_scale(flow, rows, fork)
        table = tables.get(flow.learned(flow.embeddings[rows]) or "")
        if scale is None or scale.number is None or table is None:
            return False
        claimed = claimed_std(table, end_claim([claim], table).end_init(table)) * planned
        error = max(NOTABLE, 5.0 / math.sqrt(2 * table.weight.numel()))
        return abs(std_of(table.weight) * scale.number / (claimed * factor) - 1) <= error
    return False
