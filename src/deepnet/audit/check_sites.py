"""Measured sites held against planned ones, and against what no scheme does."""

import math
from collections.abc import Iterable

from torch import nn

from deepnet.audit.check_weights import NOTABLE, std_of
from deepnet.audit.claims import Claim
from deepnet.audit.equivalence import Equivalence
from deepnet.audit.following import Followed, differs
from deepnet.audit.formulas import SKIP_TOLERANCE, alpha_formulas, nearest
from deepnet.audit.report import Finding
from deepnet.audit.roles import RoleMatrix
from deepnet.audit.sites import MeasuredScale
from deepnet.audit.stacks import LocatedSite, LocatedStack, Shape

_SitesFinding = tuple[LocatedSite, str, float | str, float | str]


def check_claimed_sites(judged: Equivalence, shape: Shape) -> list[Finding]:
    """Return where norms and scales of a stack differ from the plan; sites that differ alike are one finding.

    A factor that skip and branch have in common is felt by no norm, and one that weights make up for by nothing.
    """
    claim, found = judged.claim, list[_SitesFinding]()
    for index, one in enumerate(judged.followed):
        found += _wrong_norms(claim, index)
        is_right = claim.has_own_stream or one.is_planned or judged.excuses(one.site.kind, "value")
        if not is_right and not judged.is_too_little_to_tell(one):
            found += _wrong_scales(one, alpha_formulas(shape, claim.stack.num_layers))
    return _joined(claim.stack, found + _wrong_exit(judged))


def scale_notes(judged: Equivalence, shape: Shape) -> list[Finding]:
    """Return the scales that are off by less than is seen in weights, which may make up for it."""
    found: list[_SitesFinding] = []
    for one in judged.followed:
        if not (judged.claim.has_own_stream or one.is_planned) and judged.is_too_little_to_tell(
            one
        ):
            found += _wrong_scales(one, alpha_formulas(shape, judged.claim.stack.num_layers))
    return _joined(judged.claim.stack, found)


def _wrong_exit(judged: Equivalence) -> list[_SitesFinding]:
    """Return the last site where a stack's output lacks its norm, or is without one another multiple of the planned."""
    last, claim = judged.followed[-1], judged.claim
    if claim.has_own_stream or last.site.measured.norms.post:
        return []
    final = claim.plan.ends.final
    if final is not None and final.make is nn.LayerNorm:
        return [(last.site, "there is no norm after the last site", "none", "final")]
    if not differs(last.after, 1.0):
        return []
    return [
        (last.site, "what leaves the stack is another multiple of the planned", last.after, 1.0)
    ]


def check_unclaimed_sites(stack: LocatedStack, matrices: list[RoleMatrix]) -> list[Finding]:
    """Return scales that no scheme has: a branch or a pre-norm stream multiplied by a constant above 1.

    Before a norm a branch counts in units of the skip, and not where its last matrix is smaller by as much.
    """
    found: list[_SitesFinding] = []
    for site in stack.sites:
        skip, branch = _fixed(site.measured.skip), _fixed(site.measured.branch)
        norms = site.norms
        ratio = branch / skip if skip else 0.0
        is_scaled = norms.post and not norms.pre and ratio > 1 + SKIP_TOLERANCE
        if is_scaled and not _is_made_up(site, ratio, matrices):
            found.append(
                (site, "a branch is scaled up before the norm after the addition", ratio, 1.0)
            )
        if norms.pre and not norms.post and skip > 1 + SKIP_TOLERANCE:
            found.append((site, "a skip is scaled up that no norm follows", skip, 1.0))
    return _joined(stack, found)


def _is_made_up(site: LocatedSite, ratio: float, matrices: list[RoleMatrix]) -> bool:
    """Return whether the last matrix of a branch is smaller than its first by what the branch is multiplied by."""
    own = {matrix.role: matrix.weight for matrix in matrices if matrix.site is site.measured}
    first, last = own.get("v", own.get("fc1")), own.get("out", own.get("fc2"))
    if first is None or last is None:
        return False
    gains = [std_of(weight) * math.sqrt(sum(weight.shape)) for weight in (first, last)]
    error = math.sqrt(0.5 / first.numel() + 0.5 / last.numel())
    return abs(ratio * gains[1] - gains[0]) <= max(NOTABLE, 5 * error) * gains[0]


def _wrong_norms(claim: Claim, index: int) -> Iterable[_SitesFinding]:
    site, plan = claim.pairs[index]
    expected = {
        "pre": plan.pre is not None and plan.skip_from == "raw",
        "out": plan.out is not None,
    }
    if not claim.has_own_stream and not _is_last_before_final(claim, index):
        expected["post"] = plan.post is not None or _next_norms_its_skip(claim, index)
    located = {"pre": site.norms.pre, "out": site.norms.out, "post": site.norms.post}
    if any(located[place] != there for place, there in expected.items()):
        wanted = "+".join(place for place, there in expected.items() if there) or "none"
        growth = _growth(site)
        yield site, f"the norms stand elsewhere{growth}", site.norms.shown(), wanted


def _is_last_before_final(claim: Claim, index: int) -> bool:
    """Return whether the norm after this site may be the stack's final one."""
    return index == len(claim.pairs) - 1 and claim.plan.ends.final is not None


def _next_norms_its_skip(claim: Claim, index: int) -> bool:
    """Return whether the next site takes its skip after its norm: to the stream that norm is this site's."""
    following = claim.pairs[index + 1 : index + 2]
    return any(plan.skip_from == "normed" and plan.pre is not None for _, plan in following)


def _growth(site: LocatedSite) -> str:
    skip = _fixed(site.measured.skip)
    if site.norms.post or not skip > 1:
        return ""
    return (
        f"; with no norm after it the skip's scale makes the stream grow {skip:.4g}-fold per site"
    )


def _wrong_scales(one: Followed, formulas: dict[str, float]) -> Iterable[_SitesFinding]:
    """Yield what is wrong of a site's scales, in the form that the site has: neither need be the planned number."""
    skip, branch, site = one.skip, one.branch, one.site
    wanted_skip, wanted_branch = one.wanted_skip, one.wanted_branch
    if skip is None or branch is None or wanted_branch is None:
        return
    if wanted_skip is not None and differs(skip, wanted_skip) and not differs(skip, wanted_branch):
        formula = _formula(branch, formulas) if differs(branch, wanted_skip) else ""
        if branch > skip:
            yield (
                site,
                f"the branch is scaled instead of the skip{formula}",
                f"skip {skip:.5g}, branch {branch:.5g}",
                (f"skip {wanted_skip:.5g}, branch {wanted_branch:.5g}"),
            )
            return
    if wanted_skip is not None and differs(skip, wanted_skip) and branch and wanted_branch:
        skip *= wanted_branch * one.before / branch  # where the branch is the planned one
        yield site, f"the skip's scale is another{_formula(skip, formulas)}", skip, wanted_skip
        return
    branch /= one.after
    yield (
        site,
        f"the branch's scale is another{_formula(branch, formulas)}",
        branch,
        wanted_branch,
    )


def _formula(value: float, formulas: dict[str, float]) -> str:
    name = nearest(value, formulas, SKIP_TOLERANCE)
    return f": it is {name}" if name else ""


def _fixed(scale: MeasuredScale | None) -> float:
    """Return a measured number that is no parameter; 1 for whatever else, of which nothing is said here."""
    number = None if scale is None or scale.parameter is not None else scale.number
    return 1.0 if number is None else round(number, 9)


def _joined(stack: LocatedStack, found: list[_SitesFinding]) -> list[Finding]:
    """Join the sites of which the same is to be said."""
    groups: dict[tuple[object, ...], list[_SitesFinding]] = {}
    for one in found:
        measured = round(one[2], 6) if isinstance(one[2], float) else one[2]
        groups.setdefault((one[1], measured, one[3]), []).append(one)
    return [
        Finding(
            where=_where(stack, [site for site, *_ in group]),
            what=group[0][1],
            measured=group[0][2],
            expected=group[0][3],
        )
        for group in groups.values()
    ]


def _where(stack: LocatedStack, sites: list[LocatedSite]) -> str:
    if len(sites) == len(stack.sites):
        return f"{stack.name}, all {len(sites)} sites"
    listed = ", ".join(f"{site.layer} {site.kind}" for site in sites[:6])
    more = f" and {len(sites) - 6} more" if len(sites) > 6 else ""
    return f"{stack.name}, {len(sites)} of {len(stack.sites)} sites: {listed}{more}"
