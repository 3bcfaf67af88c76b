"""Where the numbers of a run come from: the matrix products, norms and residual additions of a tape.

A value's *sources* are the products, embeddings and residual additions it is computed from without another one of them
in between. Masks, positions and whatever else no token's content reaches have none.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from deepnet.audit.operations import (
    FUSED_NORMS,
    MATRIX_PRODUCTS,
    SCALES,
    SOFTMAXES,
    SUMS,
    TRANSPARENT,
)
from deepnet.audit.tape import Operation, Tape, Value

Sources = frozenset[Value]
_NONE: Sources = frozenset()


@dataclass(eq=False)
class Linear:
    """A product of a stream with a matrix of parameters."""

    operation: Operation
    entered: Value
    matrix: Value
    parameter: str
    """Name of the parameter that the matrix is, or is computed from."""

    @property
    def output(self) -> Value:
        """Return the product, its bias added where that is one operation."""
        return self.operation.output

    def weight(self) -> Tensor:
        """Return the matrix [fan_out, fan_in] as it was used; of a batch of equal ones, the first."""
        matrix = self.matrix.tensor.detach()
        if matrix.dim() == 3:
            matrix = matrix[0]
        comes_second = factors(self.operation)[1] is self.matrix
        return matrix.t() if comes_second and self.operation.name != "linear" else matrix


@dataclass(eq=False)
class Sum:
    """A residual addition: `fork` is the stream that it adds the outputs of `roots` to."""

    operation: Operation
    fork: Value
    roots: Sources

    @property
    def output(self) -> Value:
        """Return the sum."""
        return self.operation.output


@dataclass(eq=False)
class Flow:
    """What was found on a tape, and the questions asked of it."""

    tape: Tape
    sources: dict[Value, Sources] = field(default_factory=dict)
    linears: dict[Value, Linear] = field(default_factory=dict)
    products: dict[Value, Operation] = field(default_factory=dict)
    embeddings: dict[Value, Value] = field(default_factory=dict)
    """Looked-up rows and the table they are from."""
    position_tables: list[Value] = field(default_factory=list)
    normed: dict[Operation, Value] = field(default_factory=dict)
    """Norms and what they norm."""
    statistics: set[Operation] = field(default_factory=set)
    """What computes the means and sizes that norms divide by."""
    softmaxed: set[Value] = field(default_factory=set)
    sums: dict[Value, Sum] = field(default_factory=dict)
    _of_input: set[Value] = field(default_factory=set)

    def of(self, value: Value) -> Sources:
        """Return a value's sources; an input of numbers is its own."""
        if value.made_by is None and value.is_input and value.tensor.is_floating_point():
            return frozenset({value})
        return self.sources.get(value, _NONE)

    def data(self, operation: Operation) -> list[Value]:
        """Return the inputs that depend on the content of tokens."""
        return [value for value in operation.inputs if self.of(value)]

    def depends_on_input(self, value: Value) -> bool:
        """Return whether a value depends on the model's input at all."""
        return value.is_input or value in self._of_input

    def is_heavy(self, operation: Operation) -> bool:
        """Return whether an operation is a source of its own, other than a residual addition."""
        return any(v in self.linears or v in self.products for v in operation.outputs)

    def reached(
        self,
        start: Value,
        end: Value,
        *,
        held: Callable[[Operation], bool] = lambda operation: False,
    ) -> set[Operation]:
        """Return the operations up to `end` that depend on `start`, leaving out what passes only through held ones."""
        changed, found = {start}, set()
        for operation in self.tape.operations[start.position + 1 : end.position + 1]:
            if not held(operation) and not changed.isdisjoint(operation.inputs):
                changed.update(operation.outputs)
                found.add(operation)
        return found

    def depends(self, end: Value, start: Value) -> bool:
        """Return whether `end` is computed from `start`."""
        return end is start or end.made_by in self.reached(start, end)

    def origins(self, value: Value) -> Iterator[Value]:
        """Yield a value and what it is a moved, scaled, shifted, normed or summed form of, back to its sources."""
        seen, waiting = set(), [value]
        while waiting:
            current = waiting.pop()
            if current in seen:
                continue
            seen.add(current)
            yield current
            operation = current.made_by
            if operation is None or current in self.sums or self.is_heavy(operation):
                continue
            waiting += self.carried(operation)

    def carried(self, operation: Operation) -> list[Value]:
        """Return the inputs that an operation hands on as a stream: none where it computes something else."""
        if operation in self.normed:
            return [self.normed[operation]]
        data = self.data(operation)
        if operation.name not in TRANSPARENT or operation in self.statistics:
            return []
        return data if len(data) == 1 or operation.name not in SCALES else []

    def learned(self, value: Value) -> str | None:
        """Return the name of the first parameter a value without content is computed from, or None."""
        waiting, seen = [value], set()
        while waiting:
            current = waiting.pop()
            if current.parameter is not None:
                return current.parameter
            if current.made_by is not None and current not in seen:
                seen.add(current)
                waiting += current.made_by.inputs
        return None


def factors(product: Operation) -> tuple[Value, Value]:
    """Return the two factors of a matrix product."""
    first, second = product.inputs[-2:] if "add" in product.name else product.inputs[:2]
    return first, second


def trace_flow(tape: Tape) -> Flow:
    """Return the flow of a tape, found in one pass."""
    flow = Flow(tape)
    for operation in tape.operations:
        if any(flow.depends_on_input(value) for value in operation.inputs):
            flow._of_input.update(operation.outputs)
        _enter(flow, operation)
    return flow


def _enter(flow: Flow, operation: Operation) -> None:
    data = flow.data(operation)
    if operation.name == "embedding":
        _enter_embedding(flow, operation)
    elif not data:
        return
    elif operation.name in MATRIX_PRODUCTS:
        _enter_product(flow, operation, data)
    else:
        sources = frozenset[Value]().union(*(flow.of(value) for value in data))
        flow.sources.update(dict.fromkeys(operation.outputs, sources))
        _enter_light(flow, operation, data)


def _enter_embedding(flow: Flow, operation: Operation) -> None:
    table, ids = operation.inputs[:2]
    if not flow.depends_on_input(ids):
        flow.position_tables.append(table)
        return
    flow.embeddings[operation.output] = table
    flow.sources[operation.output] = frozenset({operation.output})


def _enter_product(flow: Flow, operation: Operation, data: list[Value]) -> None:
    """File a matrix product under linears where one factor is made of parameters, else under products."""
    output = operation.output
    flow.sources[output] = frozenset({output})
    matrices = [value for value in factors(operation) if value not in data]
    parameter = flow.learned(matrices[0]) if len(matrices) == 1 else None
    if parameter is None or operation.name == "convolution":
        flow.products[output] = operation
    else:
        (entered,) = (value for value in factors(operation) if value in data)
        flow.linears[output] = Linear(operation, entered, matrices[0], parameter)


def _enter_light(flow: Flow, operation: Operation, data: list[Value]) -> None:
    if operation.name in SOFTMAXES or any(value in flow.softmaxed for value in data):
        flow.softmaxed.update(operation.outputs)
    if operation.name in FUSED_NORMS:
        flow.normed[operation] = operation.inputs[0]
    elif len(data) == 2 and operation.name in ("mul", "div", "sub"):
        _enter_statistic(flow, operation, data)
    if operation.name in SUMS and len(data) >= 2 and operation not in flow.normed:
        _enter_sum(flow, operation, data)


def _enter_statistic(flow: Flow, operation: Operation, data: list[Value]) -> None:
    """Recognise x * r, x / r and x - r, r one number per position computed from x: a norm, or its first half."""
    value, number = sorted(data, key=_is_constant_over_channels)
    if not _is_constant_over_channels(number) or _is_constant_over_channels(value):
        return
    for origin in flow.origins(value):
        if flow.depends(number, origin) and number is not origin:
            flow.statistics.update(flow.reached(origin, number))
            if operation.name != "sub":
                flow.normed[operation] = origin
            return


def _is_constant_over_channels(value: Value) -> bool:
    tensor = value.tensor
    if tensor.dim() == 0 or tensor.shape[-1] == 1:
        return True
    return bool(torch.equal(tensor, tensor[..., :1].expand_as(tensor)))


def _enter_sum(flow: Flow, operation: Operation, data: list[Value]) -> None:
    """Recognise skip + branch: a branch that a product computes from what the skip carries."""
    shape = operation.output.tensor.shape
    if any(value.tensor.shape != shape for value in data[:2]) or len(shape) < 2:
        return
    first, second = data[:2]
    found = _as_sum(flow, operation, first, second) or _as_sum(flow, operation, second, first)
    if found is not None:
        flow.sums[operation.output] = found
        flow.sources[operation.output] = frozenset({operation.output})


def _as_sum(flow: Flow, operation: Operation, skip: Value, branch: Value) -> Sum | None:
    inner = _inner_sum(flow, skip, branch)
    if inner is not None:
        del flow.sums[inner.output]
        return Sum(operation, inner.fork, inner.roots)
    products = [v for v in flow.of(branch) if v in flow.linears or v in flow.products]
    for origin in sorted(_beyond(flow, skip), key=lambda v: v.position, reverse=True):
        roots = frozenset(v for v in products if flow.depends(v, origin) and v is not origin)
        if roots:
            return Sum(operation, origin, roots)
    return None


def _beyond(flow: Flow, skip: Value) -> set[Value]:
    """Return what a skip may fork from: its origins, and the forks of sums in them (branches side by side)."""
    origins = set(flow.origins(skip))
    return origins | {flow.sums[value].fork for value in origins if value in flow.sums}


def _inner_sum(flow: Flow, skip: Value, branch: Value) -> Sum | None:
    """Return the sum that this one completes, as in x + a * (f(x) - x)."""
    inner = [flow.sums[v] for v in flow.of(branch) if v in flow.sums]
    if len(inner) != 1 or len(flow.of(branch)) != 1 or inner[0].fork not in flow.origins(skip):
        return None
    crossed = flow.reached(inner[0].output, branch)
    return None if any(operation in flow.normed for operation in crossed) else inner[0]
