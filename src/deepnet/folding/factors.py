"""Factors that go into a branch's matrices and into norms, in any model whose anatomy is known."""

from collections.abc import Iterable

from torch import Tensor, nn

from deepnet.anatomy.base import Weight
from deepnet.errors import ExportError
from deepnet.schemes.base import Branch, Role

_READS: dict[Branch, tuple[Role, ...]] = {
    "self": ("q", "k", "v"),
    "cross": ("q",),
    "ffn": ("fc1", "gate"),
}


def readers(weights: Iterable[Weight], kind: Branch) -> list[Weight]:
    """Return those of a branch's weights that read the stream; cross-attention's k and v read the memory."""
    return [weight for weight in weights if weight.role in _READS[kind]]


def divide_readers(weights: Iterable[Weight], kind: Branch, factor: Tensor) -> None:
    """Make a branch of factor * x, factor [1] or [D], compute what it did of x."""
    for weight in readers(weights, kind):
        weight.matrix().div_(factor)


def scale_rows(weight: Weight, factor: Tensor) -> None:
    """Make a weight and its bias return factor times what they did; factor is [1] or [fan_out]."""
    weight.matrix().mul_(factor[:, None])
    bias = weight.bias()
    if bias is not None:
        bias.mul_(factor)


def has_gain(norm: nn.Module) -> bool:
    """Return whether a norm has tables that a factor can go into."""
    return next(norm.parameters(), None) is not None


def scale_norm(norm: nn.Module, factor: Tensor) -> None:
    """Make a norm return factor times what it did; factor is [1] or [D].

    Raises ExportError where it has no gain.
    """
    if not has_gain(norm):
        raise ExportError(
            f"a factor would have to go into a {type(norm).__name__} without gain; keep the model as it is"
        )
    for table in norm.parameters():
        table.mul_(factor)
