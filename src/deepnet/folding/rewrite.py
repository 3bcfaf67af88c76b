"""What becomes of the weights of one stack: every scale and shift goes into a matrix, a bias or a norm.

    scaled branch s           the rows of the branch's last matrix and its bias times s
    scaled skip w, post-norm  what writes the stream before the site emits w x, the site's matrices read it as W / w;
                              eps stays, as LN(w x + s f(x)) is computed from the same sum; where layers are looped the
                              last site writes for the first, and what reads the stack reads its output / w
    scaled norm m             its gain and bias times m
    attention multiplier      q times multiplier * sqrt(head size)
    shift W (x - c)           bias - c W 1;   a shift of the output joins the last bias

Source: LN_eps is applied to the same number, so that all of it is exact for scalars and vectors that are not 0.
"""

import math

from torch import Tensor, nn

from deepnet.anatomy.base import Weight
from deepnet.anatomy.own import branch_weights
from deepnet.folding.factors import divide_readers, readers, scale_norm, scale_rows
from deepnet.schemes.base import Role
from deepnet.transformer.feed_forward import FeedForward
from deepnet.transformer.layers import Sublayer
from deepnet.transformer.norms import ScaledNorm
from deepnet.transformer.positions.sinusoidal import sinusoidal_table
from deepnet.transformer.scales import value
from deepnet.transformer.stacks import Stack


def rewrite_stack(trained: Stack, plain: Stack) -> None:
    """Fill `plain` with `trained`'s positions, branches and norms, but for the scale at its end."""
    _rewrite_positions(trained, plain)
    for old, new in zip(trained.sites(), plain.sites(), strict=True):
        _rewrite_branch(old, new)
        scale_rows(_last(new), value(old.residual.branch_scale))
        _copy_norm(old.residual.pre, new.residual.pre)
        _copy_norm(old.residual.post, new.residual.post)
        divide_readers(branch_weights(new.branch), new.kind, value(old.residual.skip))
    _copy_norm(trained.ends.final, plain.ends.final)
    first, *others = trained.sites()
    following = [*others, first] if trained.loops > 1 else others
    for writer, reader in zip(plain.sites(), following, strict=False):
        if writer.residual.post is not None:
            scale_norm(writer.residual.post, value(reader.residual.skip))
    if trained.ends.shift is not None:
        _bias(_last(plain.sites()[-1])).sub_(trained.ends.shift.cpu())


def entry_factor(stack: Stack) -> Tensor:
    """Return what the stack's token rows are to be multiplied by, relative to a plain stack's: [1] or [D]."""
    olds = stack.sites()
    rows = value(stack.entry.multiplier) / math.sqrt(_width(olds[0]))
    return rows * value(olds[0].residual.skip)


def exit_factor(stack: Stack) -> Tensor:
    """Return what a plain stack's output is to be multiplied by to be that of the trained one: [1] or [D].

    A post-norm stack that is looped emits what the next pass reads, at the last pass as well.
    """
    first = stack.sites()[0].residual
    emitted = value(first.skip) if stack.loops > 1 and first.post is not None else 1.0
    return value(stack.ends.scale) / emitted


def scale_memory_readers(decoder: Stack, factor: Tensor) -> None:
    """Make the keys and values of cross-attention read factor * memory."""
    for sublayer in decoder.sites():
        if sublayer.kind == "cross":
            found = _by_role(sublayer)
            found["k"].matrix().mul_(factor)
            found["v"].matrix().mul_(factor)


def _rewrite_branch(old: Sublayer, new: Sublayer) -> None:
    """Copy a branch's matrices and biases, its shifts put into the biases."""
    sources, targets = branch_weights(old.branch), _by_role(new)
    for source in sources:
        targets[source.role].matrix().copy_(source.matrix())
        bias = source.bias()
        if bias is not None:
            _bias(targets[source.role]).copy_(bias)
    if old.residual.shift is not None:
        for weight in readers(targets.values(), old.kind):
            _shift_input(weight, old.residual.shift)
    if isinstance(old.branch, FeedForward):
        _rewrite_shifts(old.branch, targets)
    elif old.branch.multiplier is not None:
        factor = old.branch.multiplier * math.sqrt(old.branch.head_size)
        scale_rows(targets["q"], value(factor))


def _rewrite_shifts(branch: FeedForward, targets: dict[Role, Weight]) -> None:
    if branch.preactivation_shift is not None:
        _bias(targets["fc1"]).sub_(branch.preactivation_shift.cpu())
    if branch.activation_shift is not None:
        _shift_input(targets["fc2"], branch.activation_shift)


def _rewrite_positions(old: Stack, new: Stack) -> None:
    """Fill a plain stack's table of positions, where it has one, scaled as its first site needs them.

    Positions inside attention stay as they are: no scheme scales what is added to the scores.
    """
    if old.positions is not None and new.positions is not None:
        new.positions.load_state_dict(old.positions.state_dict())
    table, source = _table(new), _table(old)
    if table is not None:
        table.copy_(sinusoidal_table(*table.shape) if source is None else source)
        table.mul_(value(old.sites()[0].residual.skip))


def _table(stack: Stack) -> Tensor | None:
    """Return the matrix of positions that is added to the embedding, where it is trained."""
    added = stack.entry.positions
    return None if added is None else added.roles().get("position")


def _copy_norm(old: nn.Module | None, new: nn.Module | None) -> None:
    if old is None or new is None:
        return
    if isinstance(old, ScaledNorm):
        _copy_norm(old.norm, new)
        scale_norm(new, old.factor.cpu())
    else:
        new.load_state_dict(old.state_dict())


def _last(sublayer: Sublayer) -> Weight:
    """Return the map whose output the branch returns."""
    return branch_weights(sublayer.branch)[-1]


def _shift_input(weight: Weight, shift: Tensor) -> None:
    """Make `weight` of x compute what it did of x - shift."""
    _bias(weight).sub_(shift.cpu() * weight.matrix().sum(1))


def _bias(weight: Weight) -> Tensor:
    bias = weight.bias()
    assert bias is not None
    return bias


def _by_role(sublayer: Sublayer) -> dict[Role, Weight]:
    return {weight.role: weight for weight in branch_weights(sublayer.branch)}


def _width(sublayer: Sublayer) -> int:
    return branch_weights(sublayer.branch)[0].matrix().shape[1]
