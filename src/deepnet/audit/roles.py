"""The roles of a run's matrices, by what their products are used for: never by a name."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from deepnet.audit.attentions import Attention
from deepnet.audit.flow import Flow, Linear
from deepnet.audit.sites import MeasuredSite
from deepnet.audit.tape import Value
from deepnet.schemes.base import Role


@dataclass(eq=False)
class RoleMatrix:
    """A matrix, or some rows of one, with its role; `sum_output` tells the residual site it belongs to."""

    role: Role
    linear: Linear | None
    parameter: str
    weight: Tensor
    """[fan_out, fan_in]"""
    bias: Tensor | None = None
    rows: Tensor | None = None
    """Which rows of the parameter, where it holds several roles."""
    site: MeasuredSite | None = None

    @property
    def where(self) -> str:
        """Return the parameter's name and, where it holds several roles, the rows."""
        if self.rows is None:
            return self.parameter
        first, last = int(self.rows.min()), int(self.rows.max())
        step = "" if last - first + 1 == len(self.rows) else ", interleaved"
        return f"{self.parameter}[{first}:{last + 1}{step}]"


def find_roles(
    flow: Flow, sites: list[MeasuredSite], attentions: list[Attention]
) -> list[RoleMatrix]:
    """Return the matrices of every site, in order, then embeddings, positions and the vocabulary projection."""
    found: list[RoleMatrix] = []
    for site in sites:
        for root in _linears(flow, site.sum.roots):
            found += _branch_roles(flow, root, site, attentions)
    unused = _unassigned(flow, found)
    return _once([*found, *_end_roles(flow, unused)])


def unassigned_parameters(flow: Flow, found: list[RoleMatrix]) -> list[str]:
    """Return the names of matrices that have no role."""
    taken = {matrix.parameter for matrix in found}
    names = (linear.parameter for linear in flow.linears.values())
    return list(dict.fromkeys(name for name in names if name not in taken))


def _branch_roles(
    flow: Flow, root: Linear, site: MeasuredSite, attentions: list[Attention]
) -> list[RoleMatrix]:
    before = flow.of(root.entered)
    own = [attention for attention in attentions if attention.output in before]
    if own:
        projections = [m for attention in own for m in _projections(flow, attention, site)]
        return [*projections, _matrix(flow, "out", root, site)]
    first = [linear for linear in _linears(flow, before) if linear is not root]
    if not first:
        return []
    roles = [_matrix(flow, role, linear, site) for role, linear in _gated(flow, first)]
    return [*roles, _matrix(flow, "fc2", root, site)]


def _projections(flow: Flow, attention: Attention, site: MeasuredSite) -> list[RoleMatrix]:
    operands: dict[Role, Value] = {"q": attention.q, "k": attention.k, "v": attention.v}
    uses = [
        (role, lin)
        for role, value in operands.items()
        for lin in _linears(flow, flow.of(value))
        if lin.output.width
        >= attention.v.tensor.shape[-1]  # fewer channels than a head has: a gate
    ]
    counts = {linear: sum(other is linear for _, other in uses) for _, linear in uses}
    return [
        _matrix(
            flow,
            role,
            linear,
            site,
            rows=_rows_for(flow, linear, operands[role]) if counts[linear] > 1 else None,
        )
        for role, linear in uses
    ]


def _rows_for(flow: Flow, linear: Linear, operand: Value) -> Tensor:
    """Return the output channels of a product that an operand depends on."""
    start = linear.output
    with torch.enable_grad():
        leaf = start.tensor.detach().clone().requires_grad_()
        moved = flow.tape.replay(start, leaf, operand)
        generator = torch.Generator().manual_seed(0)
        weights = torch.randn(moved.shape, dtype=torch.float64, generator=generator).to(moved)
        (gradient,) = torch.autograd.grad((moved * weights).sum(), leaf)
    return gradient.flatten(0, -2).abs().amax(0).nonzero().flatten()


def _gated(flow: Flow, first: list[Linear]) -> list[tuple[Role, Linear]]:
    """Tell the gate from fc1 where two products are multiplied: the gate goes through the activation."""
    if len(first) != 2:
        return [("fc1", linear) for linear in first]
    outputs = {linear.output for linear in first}
    for operation in flow.tape.operations[max(v.position for v in outputs) :]:
        behind = [flow.of(value) for value in flow.data(operation)]
        if operation.name == "mul" and {*behind} == {frozenset({output}) for output in outputs}:
            straight = {v for value in flow.data(operation) for v in flow.origins(value)}
            return [("fc1" if lin.output in straight else "gate", lin) for lin in first]
    return [("fc1", linear) for linear in first]


def _matrix(
    flow: Flow, role: Role, linear: Linear, site: MeasuredSite | None, rows: Tensor | None = None
) -> RoleMatrix:
    weight, bias = linear.weight(), linear_bias(flow, linear)
    if rows is not None:
        weight, bias = weight[rows], None if bias is None else bias[rows]
    return RoleMatrix(role, linear, linear.parameter, weight, bias, rows, site)


def linear_bias(flow: Flow, linear: Linear) -> Tensor | None:
    """Return the vector of parameters that is added to a product, or None."""
    candidates = linear.operation.inputs[:-2] or linear.operation.inputs[2:]
    waiting = [linear.output]
    while waiting and not candidates:
        for operation in waiting.pop().read_by:
            if operation.name == "add":
                candidates = [v for v in operation.inputs if not flow.of(v) and flow.learned(v)]
            elif operation.name in ("view", "_unsafe_view"):
                waiting += operation.outputs
    vectors = [v.tensor.detach() for v in candidates if v.tensor.numel() == linear.output.width]
    return vectors[0].flatten() if vectors else None


def _end_roles(flow: Flow, unused: list[Linear]) -> list[RoleMatrix]:
    ends: list[RoleMatrix] = []
    for role, tables in (
        ("embedding", flow.embeddings.values()),
        ("position", flow.position_tables),
    ):
        for table in tables:
            name = flow.learned(table)
            if name is not None:
                ends.append(RoleMatrix(role, None, name, _drawn_rows(table.tensor.detach())))  # type: ignore[arg-type]
    sizes = {len(table.tensor) for table in flow.embeddings.values()}
    final = frozenset[Value]().union(*(flow.of(value) for value in flow.tape.returned))
    last = [linear for linear in unused if linear.output in final]
    for linear in last:
        if len(last) == 1 or linear.output.width + 1 in sizes or linear.output.width in sizes:
            matrix = _matrix(flow, "vocabulary", linear, None)
            matrix.weight = _drawn_rows(matrix.weight)
            ends.append(matrix)
    return ends


def _drawn_rows(weight: Tensor) -> Tensor:
    """Return a table without the rows of zeros that padding has, unless all are."""
    drawn = weight.abs().amax(1) > 0
    return weight[drawn] if drawn.any() else weight


def _linears(flow: Flow, values: Iterable[Value]) -> list[Linear]:
    found = [flow.linears[value] for value in values if value in flow.linears]
    return sorted(found, key=lambda linear: linear.operation.position)


def _unassigned(flow: Flow, found: list[RoleMatrix]) -> list[Linear]:
    taken = {matrix.linear for matrix in found}
    return [linear for linear in flow.linears.values() if linear not in taken]


def _once(found: list[RoleMatrix]) -> list[RoleMatrix]:
    """Keep the first of those that are the same rows of the same parameter in the same role."""
    kept: dict[tuple[str, str], RoleMatrix] = {}
    for matrix in found:
        kept.setdefault((matrix.role, matrix.where), matrix)
    return list(kept.values())
