"""Running out of memory, told as what it is: at which step, on which tensors, and what to change."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass

from torch import OutOfMemoryError, Tensor

from deepnet.errors import DeepNetError

# torch's CPU allocator has no exception of its own: it raises RuntimeError
_CPU_ALLOCATOR = "DefaultCPUAllocator"


@contextmanager
def memory_shortage_explained(where: str, batch: object = None) -> Iterator[None]:
    """Turn torch's out-of-memory errors in the block into one DeepNetError that says where, and what to change."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not _is_shortage(error):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        held = f" on {describe_shapes(batch)}" if batch is not None else ""
        raise DeepNetError(
            f"out of memory {where}{held}: {reason.rstrip('.')}. A checkpoint, if there is one, is as it was. "
            "Make the batches smaller (in a recipe a lower batching.max_tokens, and as much more of "
            "batching.micro_batches_per_update for an update of the same size), or resume with "
            "training.recompute = true"
        ) from error


def describe_shapes(batch: object) -> str:
    """Return the shapes of the tensors of a batch, by name where it is a dataclass, such as "source [37, 12]"."""
    if isinstance(batch, Tensor):
        return f"a batch {list(batch.shape)}"
    held = vars(batch).items() if is_dataclass(batch) else ()
    shapes = {name: list(value.shape) for name, value in held if isinstance(value, Tensor)}
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or type(batch).__name__


def _is_shortage(error: Exception) -> bool:
    return isinstance(error, OutOfMemoryError | MemoryError) or _CPU_ALLOCATOR in str(error)
