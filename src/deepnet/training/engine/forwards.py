"""Another forward for the blocks of a model, put around them from outside."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from torch import nn

Forward = Callable[..., Any]
M = TypeVar("M", bound=nn.Module)


@contextmanager
def replaced_forwards(
    modules: Iterable[M], replace: Callable[[M, Forward], Forward], *, method: str = "forward"
) -> Iterator[None]:
    """Let each module run what `replace` makes of it and of its `method`, for the length of the context.

    Only these instances change; the names of the parameters stay, and one such context may stand in another.
    """
    with ExitStack() as stack:
        for module in list(modules):
            held = vars(module)
            stack.callback(_put_back, held, method, held.get(method))
            held[method] = replace(module, getattr(module, method))
        yield


def _put_back(held: dict[str, Any], method: str, forward: Forward | None) -> None:
    if forward is None:
        del held[method]  # the class has its own again
    else:
        held[method] = forward
