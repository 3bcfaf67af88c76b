"""Which parameters of a model are one: those that show the same memory, whatever objects hold it."""

from torch import Tensor, nn


def shared_names(model: nn.Module) -> dict[str, str]:
    """Return, for each parameter's name, that of the first parameter it shares memory with: its own where none."""
    found: dict[str, str] = {}
    taken: list[tuple[int, int, str]] = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first, last = _extent(parameter)
        overlapped = (other for begin, end, other in taken if first < end and begin < last)
        found[name] = next(overlapped, name)
        taken.append((first, last, found[name]))
    return found


def _extent(parameter: Tensor) -> tuple[int, int]:
    """Return the first address of a tensor and the one after its last; the same twice where it is empty."""
    first, size = parameter.data_ptr(), parameter.element_size()
    if not parameter.numel():
        return first, first
    steps = zip(parameter.shape, parameter.stride(), strict=True)
    return first, first + size * (1 + sum((count - 1) * stride for count, stride in steps))
