"""Another forward for the blocks of a model, put around them from outside."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

Forward = Callable[..., Any]


@contextmanager
def replaced_forwards(
    blocks: Iterable[nn.Module], replace: Callable[[nn.Module, Forward], Forward]
) -> Iterator[None]:
    """Let each block run what `replace` makes of it and its forward, for the length of the context.

    Only these instances change; the names of the parameters stay, and one such context may stand in another.
    """
    with ExitStack() as stack:
        for block in list(blocks):
            held = vars(block)
            stack.callback(_put_back, block, held.get("forward"))
            held["forward"] = replace(block, block.forward)
        yield


def _put_back(block: nn.Module, forward: Forward | None) -> None:
    if forward is None:
        del block.forward  # the class has its own again
    else:
        vars(block)["forward"] = forward
