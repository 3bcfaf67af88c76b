"""Attentions of a run: a product whose result goes through a softmax, and the product of that with the values."""

from dataclasses import dataclass

from deepnet.audit.flow import Flow, factors
from deepnet.audit.operations import SOFTMAXES
from deepnet.audit.tape import Operation, Value


@dataclass(eq=False)
class Attention:
    """The operands of one attention: queries and keys of the score product, values of the weighted sum."""

    q: Value
    k: Value
    v: Value
    output: Value
    crossed: bool
    """Whether keys come from another stream than queries."""
    causal: bool
    """Whether no query weighs a later key."""
    head_size: int
    multiplier: float
    """What multiplies the score product before the softmax."""


def find_attentions(flow: Flow) -> list[Attention]:
    """Return every attention whose scores are one product, in order."""
    found = (_attention(flow, operation) for operation in flow.products.values())
    return [attention for attention in found if attention is not None]


def _attention(flow: Flow, product: Operation) -> Attention | None:
    first, second = factors(product)
    weighted = [value for value in (first, second) if value in flow.softmaxed]
    softmax = _softmax_before(flow, weighted[0]) if len(weighted) == 1 else None
    scores = _scores(flow, softmax) if softmax is not None else None
    if softmax is None or scores is None:
        return None
    left, right = factors(scores)
    last = softmax.inputs[0].tensor.dim() - 1
    q, k = (left, right) if softmax.arguments[1] % (last + 1) == last else (right, left)
    return Attention(
        q=q,
        k=k,
        v=second if weighted[0] is first else first,
        output=product.output,
        crossed=_streams_behind(flow, q) != _streams_behind(flow, k),
        causal=_is_causal(softmax),
        head_size=left.tensor.shape[-1],
        multiplier=_multiplier(flow, scores, softmax),
    )


def _softmax_before(flow: Flow, value: Value) -> Operation | None:
    operation = value.made_by
    while operation is not None and operation.name not in SOFTMAXES:
        behind = [v for v in operation.inputs if v in flow.softmaxed]
        operation = behind[0].made_by if behind else None
    return operation


def _scores(flow: Flow, softmax: Operation) -> Operation | None:
    """Return the product that a softmax is over; an added bias that tokens have no part in is no source."""
    products = [flow.products[v] for v in flow.of(softmax.inputs[0]) if v in flow.products]
    return products[0] if len(products) == 1 else None


def _multiplier(flow: Flow, scores: Operation, softmax: Operation) -> float:
    """Return how a change of the product arrives at the softmax, where no mask hides it."""
    start, end = scores.output, softmax.inputs[0]
    changed = flow.tape.replay(start, start.tensor + 1.0, end)
    arrived = (changed - end.tensor)[end.tensor.isfinite() & changed.isfinite()]
    own = float(scores.options.get("alpha", 1.0))  # which baddbmm multiplies its product by
    return own * (float(arrived.max()) if arrived.numel() else 1.0)


def _streams_behind(flow: Flow, operand: Value) -> frozenset[Value]:
    """Return the streams that an operand's projections read."""
    read = (flow.of(flow.linears[v].entered) for v in flow.of(operand) if v in flow.linears)
    return frozenset[Value]().union(*read)


def _is_causal(softmax: Operation) -> bool:
    """Return whether the weights are zero wherever the key is later than the query."""
    weights = softmax.output.tensor
    if softmax.arguments[1] % weights.dim() != weights.dim() - 1:
        weights = weights.transpose(-1, -2)
    return weights.shape[-1] > 1 and not weights.triu(1).any()
