"""What branches read and how attention weighs it, held against the claim: the gain of norms, multipliers, and eps."""

from collections.abc import Iterator

from torch import nn

from deepnet.audit.chains import CHAIN_OF, Branch
from deepnet.audit.equivalence import Equivalence
from deepnet.audit.flow import Flow
from deepnet.audit.norm_response import first_eps
from deepnet.audit.report import Finding
from deepnet.audit.tape import Value
from deepnet.schemes.base import Norm, Role

_READERS: tuple[Role, ...] = ("q", "v", "fc1")
_DIFFERENT = 1e-3
_EPS = 1e-5
"""The eps of torch.nn.LayerNorm."""


def check_inputs(found: Equivalence) -> Iterator[Finding]:
    """Yield branches that read more or less than planned, and scores that are multiplied by another number."""
    for kind in dict.fromkeys(branch.followed.site.kind for branch in found.branches):
        own = list(found.of_kind(kind))
        attends = [branch for branch in own if {"q", "k"} <= branch.matrices.keys()]
        for role in _READERS:
            read = [(b, b.input_factor(role)) for b in own if role in b.matrices]
            if read and not found.excuses(kind, CHAIN_OF[role]):
                yield from _off(found, read, f"the input of {role} is another multiple of the norm")
        if attends and not found.excuses(kind, "score"):
            scored = [(branch, branch.multiplier()) for branch in attends if branch.attention]
            yield from _off(found, scored, "the attention scores are multiplied by another number")


def eps_notes(found: Equivalence, flow: Flow) -> Iterator[Finding]:
    """Yield, once for each value, an eps that is another than torch's in the claimed function, and its effect."""
    seen: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for stream, factor in _normed_streams(found):
        measured = first_eps(flow, stream)
        wanted = _EPS * factor**2
        if measured is not None and abs(measured[0] - wanted) > 0.01 * wanted:
            eps, variance = measured
            key = (f"{eps:.3g}", f"{wanted:.3g}")
            seen.setdefault(key, []).append((eps, wanted, _size(variance, eps, wanted)))
    for group in seen.values():
        eps, wanted, _ = group[0]
        size = max(one[2] for one in group)
        yield Finding(
            where=f"{found.claim.stack.name}, {len(group)} norms",
            what=f"the eps is another than that of torch's LayerNorm; it changes the output by {size:.1e} of itself",
            measured=eps,
            expected=wanted,
        )


def _off(found: Equivalence, factors: list[tuple[Branch, float]], what: str) -> Iterator[Finding]:
    off = [(branch, factor) for branch, factor in factors if abs(factor - 1) > _DIFFERENT]
    if not off:
        return
    kind, stack = off[0][0].followed.site.kind, found.claim.stack.name
    measured = sorted(factor for _, factor in off)
    is_one = measured[-1] - measured[0] <= _DIFFERENT * measured[-1]
    yield Finding(
        where=f"{stack}, {len(off)} of {len(factors)} {kind} sites",
        what=f"{what}; in units of the claimed one",
        measured=measured[0] if is_one else [measured[0], measured[-1]],
        expected=1.0,
    )


def _normed_streams(found: Equivalence) -> Iterator[tuple[Value, float]]:
    """Yield what norms of the model's own kind should read, with how much larger than planned it is."""
    for one in found.followed:
        if one.site.norms.pre and _is_plain(one.plan.pre):
            yield one.site.measured.sum.fork, one.before
        if one.site.norms.post and _is_plain(one.plan.post):
            yield one.site.measured.sum.output, one.after


def _is_plain(norm: Norm | None) -> bool:
    return norm is not None and norm.make is nn.LayerNorm


def _size(variance: float, eps: float, other: float) -> float:
    return (
        abs(float(((variance + eps) / (variance + other)) ** 0.5) - 1) if variance + other else 0.0
    )
