"""What the factors along a branch come to together: those of the weights, the scales and the norms before them.

    value   size of the input * v * out * scale of the branch      (fc1 and fc2 where the activation hands a factor on)
    score   size of both inputs * q * k * multiplier of the scores

Each in units of the claimed one. Where the product is 1 a branch computes what is claimed, whatever carries which part.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from deepnet.audit.attentions import Attention
from deepnet.audit.check_weights import NOTABLE, claimed_std, std_of
from deepnet.audit.flow import Flow
from deepnet.audit.following import Followed
from deepnet.audit.norm_response import norm_gain
from deepnet.audit.roles import RoleMatrix
from deepnet.audit.sites import measure_scale
from deepnet.audit.tape import Operation, Value
from deepnet.schemes.base import Role

ChainName = Literal["value", "score"]
CHAIN_OF: dict[Role, ChainName] = {
    "v": "value", "out": "value", "fc1": "value", "fc2": "value", "q": "score", "k": "score",
}  # fmt: skip
_SCORED: tuple[Role, ...] = ("q", "k")
_STEADY = 1e-6


@dataclass(frozen=True)
class Chain:
    """The product of one chain at one site, and its standard error as the weights are drawn."""

    product: float
    error: float


@dataclass(frozen=True)
class Branch:
    """One site with its matrices by role; of several in one role nothing can be said together."""

    flow: Flow
    followed: Followed
    matrices: dict[Role, RoleMatrix]
    attention: Attention | None

    def deviation(self, role: Role) -> float:
        """Return a role's std in units of the claimed one."""
        matrix = self.matrices[role]
        claimed = claimed_std(matrix, self.followed.plan.init[role])
        return std_of(matrix.weight) / claimed if claimed else math.nan

    def input_factor(self, role: Role) -> float:
        """Return how much larger than planned a matrix's input is, by the norm before it or the stream itself."""
        linear, one = self.matrices[role].linear, self.followed
        fork = one.site.measured.sum.fork
        if linear is None or one.has_own_stream or fork not in self.flow.origins(linear.entered):
            return 1.0  # of another stack's output
        if not one.site.norms.pre:
            return one.before
        if one.plan.pre is None or one.plan.pre.make is not torch.nn.LayerNorm:
            return 1.0  # a norm of the scheme's own, of no known size
        return norm_gain(self.flow, fork, linear.entered) / one.plan.pre.multiplier

    def value(self) -> Chain | None:
        """Return the chain from the branch's input to the sum; None where it cannot be told."""
        attends = "v" in self.matrices
        first: Role = "v" if attends else "fc1"
        last: Role = "out" if attends else "fc2"
        if {first, last} - self.matrices.keys() or self.followed.off is None:
            return None
        power = self._power(first, last)
        if power is None and not agree([self._chain(1.0, [first])]):
            return None
        drawn = [last, first] if power == 1 else [last]
        if self.followed.site.norms.out:
            drawn = []
        return self._chain(self._outside(last), drawn)

    def score(self) -> Chain | None:
        """Return the chain from the branch's input to the softmax; None where it cannot be told."""
        if self.attention is None or {"q", "k"} - self.matrices.keys():
            return None
        drawn = [role for role in _SCORED if not self._is_normed(role)]
        planned = self.followed.plan.attention_multiplier or self.attention.head_size**-0.5
        return self._chain(self.attention.multiplier / planned, drawn)

    def multiplier(self) -> float:
        """Return what multiplies the scores, in units of the claimed multiplier."""
        assert self.attention is not None
        planned = self.followed.plan.attention_multiplier or self.attention.head_size**-0.5
        found = self.attention.multiplier
        for role in _SCORED:
            found *= 1.0 if self._is_normed(role) else self._handed(role)
        return found / planned

    def _share(self, role: Role) -> float:
        """Return what a matrix, what it reads and what is done between it and attention come to."""
        return self.deviation(role) * self.input_factor(role) * self._handed(role)

    def _outside(self, last: Role) -> float:
        """Return what multiplies a branch after its last matrix, in units of what is needed there."""
        one = self.followed
        if one.off is None or (one.site.norms.out and one.has_own_stream):
            return 1.0  # how a stream of its own scales what it is given is not compared
        return one.off * self._before_zero(last)

    def _before_zero(self, last: Role) -> float:
        """Return what multiplies a branch before the 0 that lets nothing of it through yet; 1 where there is none."""
        linear, added = self.matrices[last].linear, self.followed.site.measured.sum.output
        if linear is None or self.followed.branch != 0.0:
            return 1.0
        steps = self.flow.reached(linear.output, added, held=self.flow.is_heavy)
        scales = [
            measure_scale(self.flow, linear.output, step.output)
            for step in sorted(steps, key=_position)
        ]
        factors = [scale.number for scale in scales if scale is not None and scale.number]
        return factors[-1] if factors else 1.0

    def _chain(self, outside: float, drawn: list[Role]) -> Chain:
        numbers = [self.matrices[role].weight.numel() for role in drawn]
        product = outside * math.prod(self._share(role) for role in drawn)
        return Chain(product, math.sqrt(sum(1 / (2 * n) for n in numbers)))

    def _ends_of(self, role: Role) -> tuple[Value, Value] | None:
        """Return what a projection makes and where attention takes it, or the other way round for out."""
        linear, attention = self.matrices[role].linear, self.attention
        if attention is None or linear is None or role not in ("q", "k", "v", "out"):
            return None
        if role == "out":
            return attention.output, linear.entered
        return linear.output, {"q": attention.q, "k": attention.k, "v": attention.v}[role]

    def _handed(self, role: Role) -> float:
        """Return by what a number is multiplied between a projection and attention."""
        ends = self._ends_of(role)
        if ends is None or self._is_normed(role):
            return 1.0
        rows = self.matrices[role].rows if role != "out" else None
        made = ends[0].tensor if rows is None else ends[0].tensor[..., rows]
        taken = ends[1].tensor
        return _size(taken) / _size(made) if taken.numel() % made.numel() == 0 else 1.0

    def _is_normed(self, role: Role) -> bool:
        ends = self._ends_of(role)
        return ends is not None and any(
            operation in self.flow.normed for operation in self.flow.reached(*ends)
        )

    def _power(self, first: Role, last: Role) -> Literal[0, 1] | None:
        """Return the power with which the branch grows with its first projection: 1, 0 behind a norm, or neither."""
        start, end = self.matrices[first].linear, self.matrices[last].linear
        assert start is not None
        assert end is not None
        rows = self.matrices[first].rows
        made = [
            self._replayed(start.output, end.output, rows, factor) for factor in (1.0, 2.0, 3.0)
        ]
        step, bend = made[1] - made[0], made[2] - 2 * made[1] + made[0]
        if _size(step) <= NOTABLE * _size(made[0]):
            return 0
        return 1 if _size(bend) <= _STEADY * _size(step) else None

    def _replayed(self, start: Value, end: Value, rows: Tensor | None, factor: float) -> Tensor:
        changed = start.tensor.clone()
        changed[..., slice(None) if rows is None else rows] *= factor
        return self.flow.tape.replay(start, changed, end)


def branches(
    flow: Flow, followed: list[Followed], matrices: list[RoleMatrix], attentions: list[Attention]
) -> Iterator[Branch]:
    """Yield every site with its matrices and its attention; sites with two of a role are left out."""
    for one in followed:
        own = [matrix for matrix in matrices if matrix.site is one.site.measured]
        by_role = {matrix.role: matrix for matrix in own}
        if len(by_role) == len(own):
            yield Branch(flow, one, by_role, _attention(flow, by_role, attentions))


def _attention(
    flow: Flow, by_role: dict[Role, RoleMatrix], attentions: list[Attention]
) -> Attention | None:
    out = by_role["out"].linear if "out" in by_role else None
    before = flow.of(out.entered) if out is not None else frozenset()
    return next((attention for attention in attentions if attention.output in before), None)


def agree(chains: Sequence[Chain | None]) -> bool:
    """Return whether the products of some sites are 1, within what their drawn weights leave open."""
    found = [chain for chain in chains if chain is not None]
    if len(found) < len(chains) or not found:
        return False
    pooled = math.sqrt(sum(chain.product**2 for chain in found) / len(found))
    error = math.sqrt(sum(chain.error**2 for chain in found)) / len(found)
    return abs(pooled - 1) <= max(NOTABLE, 5 * error) and all(
        abs(chain.product - 1) <= max(NOTABLE, 6 * chain.error) for chain in found
    )


def _position(operation: Operation) -> int:
    return operation.position


def _size(x: Tensor) -> float:
    return float(x.double().square().mean().sqrt())
