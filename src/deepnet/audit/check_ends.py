"""Embeddings and the vocabulary projection held against the claim: what a scheme fixes, and gains they never have."""

import math
from collections.abc import Iterator

from deepnet.audit.check_weights import NOTABLE, claimed_std, std_of
from deepnet.audit.claims import Claim, end_claim
from deepnet.audit.formulas import starts
from deepnet.audit.report import Finding
from deepnet.audit.roles import RoleMatrix
from deepnet.schemes.base import Role

_BRANCH_ROLES: tuple[Role, ...] = ("v", "out", "fc1", "fc2")


def check_ends(claims: list[Claim], matrices: list[RoleMatrix]) -> Iterator[Finding]:
    """Yield tables whose std is not the one a scheme fixes, or is that of a stack's gain applied by mistake."""
    for matrix in matrices if claims else ():
        if matrix.role in ("vocabulary", "embedding"):
            claim = end_claim(claims, matrix)
            if not _is(matrix, claimed_std(matrix, claim.end_init(matrix))):
                yield from _deviation(claim, matrix)


def _deviation(claim: Claim, matrix: RoleMatrix) -> Iterator[Finding]:
    """Yield what there is to say of a table that is not as claimed: often nothing, as most schemes do not mind."""
    claimed = claimed_std(matrix, claim.end_init(matrix))
    gain = _mistaken_gain(claim, matrix, claimed)
    if gain is None and "std" not in claim.plan.ends.fixes:
        return
    what = f"the std of the {matrix.role} is not the claimed one, which is part of the scheme"
    if gain is not None:
        what = f"the {matrix.role} matrix is scaled by the {claim.stack.name}'s gain {gain:.4g}"
    yield Finding(where=matrix.where, what=what, measured=std_of(matrix.weight), expected=claimed)


def _mistaken_gain(claim: Claim, matrix: RoleMatrix, claimed: float) -> float | None:
    """Return the stack's gain that a table has on top of a usual std, or None."""
    usual = [std for std in (claimed, *_usual_stds(matrix)) if std > 0]
    plan = claim.plan.sites[0][1]
    gains = {init.value for role in _BRANCH_ROLES if (init := plan.init.get(role))} - {0.0, 1.0}
    if any(_is(matrix, std) for std in usual):
        return None
    return next((gain for std in usual for gain in gains if _is(matrix, gain * std)), None)


def _is(matrix: RoleMatrix, std: float) -> bool:
    """Return whether a table's numbers may have been drawn with a std."""
    tolerance = max(NOTABLE, 5.0 / math.sqrt(2 * matrix.weight.numel()))
    return abs(std_of(matrix.weight) - std) <= tolerance * std


def _usual_stds(matrix: RoleMatrix) -> list[float]:
    fan_out, fan_in = matrix.weight.shape
    by_shape = [start("vocabulary", fan_in, fan_out) for start in starts().values()]
    return [fan_in**-0.5, *by_shape]
