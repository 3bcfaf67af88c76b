"""Measured weights held against the claimed draws: pooled per stack, kind of branch and role.

A pool of n numbers has a std known to 1/sqrt(2n) of itself if they are normal, better if they are uniform.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from deepnet.audit.claims import Claim
from deepnet.audit.formulas import Start, gain_formulas, nearest, starts
from deepnet.audit.report import Finding
from deepnet.audit.roles import RoleMatrix
from deepnet.audit.stacks import Shape
from deepnet.schemes.base import Init, Role
from deepnet.transformer.grouped_query import full_draw

_POOLED_ERRORS, _SINGLE_ERRORS = 5.0, 6.0
"""Standard errors from which on a pool, or one matrix of it, is off; single matrices are many."""
NOTABLE = 0.01
"""Relative deviations up to here are never a finding."""


@dataclass(frozen=True)
class Pool:
    """The matrices of one role in one kind of branch of a stack, each with its claimed draw."""

    stack: str
    kind: str
    matrices: list[tuple[RoleMatrix, Init]]

    @property
    def size(self) -> int:
        """Return how many numbers the pool has."""
        return sum(matrix.weight.numel() for matrix, _ in self.matrices)

    @property
    def tolerance(self) -> float:
        """Return the relative deviation from which on the pool is off."""
        return max(NOTABLE, _POOLED_ERRORS / math.sqrt(2 * self.size))

    def ratio(self, start: Start | None = None) -> float:
        """Return the pooled std over the claimed one, or over that of another start."""
        squares = [
            (m.weight.numel(), (std_of(m.weight) / _aimed(m, init, start)) ** 2)
            for m, init in self.matrices
        ]
        return math.sqrt(sum(n * square for n, square in squares) / self.size)


def std_of(weight: Tensor) -> float:
    """Return the root mean square of some numbers, their std where they are drawn around 0."""
    return float(weight.double().square().mean().sqrt()) if weight.numel() else 0.0


def claimed_std(matrix: RoleMatrix, init: Init) -> float:
    """Return the std that a draw aims at for a matrix."""
    fan_out, fan_in = matrix.weight.shape
    return init.std(fan_in, fan_out)


@dataclass(frozen=True)
class WeightFinding:
    """What is to be said of one role in one kind of branch; a bias has the role "bias"."""

    kind: str
    role: Role
    finding: Finding


def check_weights(claim: Claim, matrices: list[RoleMatrix], shape: Shape) -> list[WeightFinding]:
    """Return the roles of a stack whose weights or biases are not drawn as claimed, each looked at alone."""
    pools = _pools(claim, matrices)
    begin = _recognised_start(pools)
    found: list[WeightFinding] = []
    for pool in pools:
        role = pool.matrices[0][0].role
        own = _zero_finding(pool) if _is_zero(pool) else _std_finding(pool, claim, shape, begin)
        found += [WeightFinding(pool.kind, role, one) for one in own]
        found += [WeightFinding(pool.kind, "bias", one) for one in _bias_finding(pool)]
    return found


def _pools(claim: Claim, matrices: list[RoleMatrix]) -> list[Pool]:
    kinds = {site.measured: site.kind for site, _ in claim.pairs}
    queries = {matrix.site: len(matrix.weight) for matrix in matrices if matrix.role == "q"}
    pools: dict[tuple[str, str], Pool] = {}
    for matrix in matrices:
        init = claim.init(matrix)
        if init is not None and matrix.site is not None:
            init = full_draw(init, matrix.role, matrix.weight, rows=queries.get(matrix.site))
            kind = kinds[matrix.site]
            pool = pools.setdefault((kind, matrix.role), Pool(claim.stack.name, kind, []))
            pool.matrices.append((matrix, init))
    return list(pools.values())


def _aimed(matrix: RoleMatrix, init: Init, start: Start | None) -> float:
    fan_out, fan_in = matrix.weight.shape
    return claimed_std(matrix, init) if start is None else start(matrix.role, fan_in, fan_out)


def _is_zero(pool: Pool) -> bool:
    return all(claimed_std(matrix, init) == 0 for matrix, init in pool.matrices)


def _zero_finding(pool: Pool) -> list[Finding]:
    measured = max(std_of(matrix.weight) for matrix, _ in pool.matrices)
    if measured == 0:
        return []
    return [
        Finding(
            where=_where(pool, pool.matrices),
            what="should start at 0",
            measured=measured,
            expected=0.0,
        )
    ]


def _std_finding(
    pool: Pool, claim: Claim, shape: Shape, begin: tuple[str, Start] | None
) -> list[Finding]:
    off = pool.matrices if abs(pool.ratio() - 1) > pool.tolerance else _single_deviations(pool)
    if not off:
        return []
    wrong = Pool(pool.stack, pool.kind, off)
    matrix, init = off[0]
    return [
        Finding(
            where=_where(pool, off),
            what=f"the std of {matrix.role} is not the claimed one{_explained(wrong, claim, shape, begin)}",
            measured=wrong.ratio() * claimed_std(matrix, init),
            expected=claimed_std(matrix, init),
        )
    ]


def _single_deviations(pool: Pool) -> list[tuple[RoleMatrix, Init]]:
    return [
        (matrix, init)
        for matrix, init in pool.matrices
        if claimed_std(matrix, init)
        and abs(std_of(matrix.weight) / claimed_std(matrix, init) - 1)
        > max(NOTABLE, _SINGLE_ERRORS / math.sqrt(2 * matrix.weight.numel()))
    ]


def _recognised_start(pools: list[Pool]) -> tuple[str, Start] | None:
    """Return the initialisation that q and k, which no gain should touch, come from; or may come from, scaled."""
    projections = [pool for pool in pools if pool.matrices[0][0].role in ("q", "k")]
    gains = [1.0, *{init.value for pool in pools for _, init in pool.matrices if init.value}]
    for gain in gains:
        for name, start in starts().items():
            if projections and all(
                abs(p.ratio(start) / gain - 1) <= p.tolerance for p in projections
            ):
                return name, start
    return None


def _explained(pool: Pool, claim: Claim, shape: Shape, begin: tuple[str, Start] | None) -> str:
    """Return what the std is instead, as a gain on a known initialisation, where that is known."""
    matrix, init = pool.matrices[0]
    role, gain = matrix.role, init.value
    if not init.kind.startswith("xavier") or begin is None:
        return ""
    name, start = begin
    measured = pool.ratio(start)
    others = {i.value for _, plan in claim.pairs for i in plan.init.values() if i.value != gain}
    formulas = gain_formulas(shape, claim.stack.num_layers, gain)
    if role in ("q", "k"):
        formulas = {"the gain of v, out, fc1 and fc2": max(others, default=0.0)} | formulas
    formula = nearest(measured, formulas, max(NOTABLE, pool.tolerance))
    meaning = f" ({formula})" if formula else ""
    return f": gain {measured:.4g}{meaning} on {name}, claimed {gain:.4g} on Glorot"


def _bias_finding(pool: Pool) -> list[Finding]:
    """Report biases that do not start at 0, and whether they were scaled with their weights."""
    biases = [(m.bias, m, init) for m, init in pool.matrices if m.bias is not None]
    values = torch.cat([bias.flatten() for bias, _, _ in biases]) if biases else torch.zeros(1)
    measured = std_of(values)
    if measured == 0:
        return []
    matrix = biases[0][1]
    default = 1 / math.sqrt(3 * matrix.weight.shape[1])
    gain = measured / default
    scaled = abs(gain - 1) > max(NOTABLE, 5.0 / math.sqrt(2 * values.numel()))
    origin = (
        f": {gain:.4g} times torch.nn.Linear's default, scaled with its weight" if scaled else ""
    )
    return [
        Finding(
            where=_where(pool, pool.matrices),
            what=f"the bias of {matrix.role} does not start at 0{origin}",
            measured=measured,
            expected=0.0,
        )
    ]


def _where(pool: Pool, matrices: list[tuple[RoleMatrix, Init]]) -> str:
    role = matrices[0][0].role
    if len(matrices) == len(pool.matrices):
        return f"{pool.stack}, {role} of all {len(matrices)} {pool.kind} sites"
    listed = ", ".join(matrix.where for matrix, _ in matrices[:3])
    more = f" and {len(matrices) - 3} more" if len(matrices) > 3 else ""
    return f"{pool.stack}, {role} of {len(matrices)} of {len(pool.matrices)} {pool.kind} sites: {listed}{more}"
