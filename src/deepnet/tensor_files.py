"""Files of named tensors in the safetensors format, written one tensor after the other.

The safetensors library takes all tensors at once: of what is on a GPU that is a copy of everything in the machine's own
memory, which training did not need.
"""

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from deepnet.atomic import atomic_write
from deepnet.errors import CheckpointError
from deepnet.seal import find_damage

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensors(
    path: str | Path,
    tensors: Mapping[str, Tensor],
    *,
    content: Callable[[str], Tensor] | None = None,
) -> None:
    """Write a safetensors file atomically, with no more memory than its largest tensor takes.

    `content` gives each tensor by its name when its turn comes, where `tensors` say no more than shape and type. Raises
    DeepNetError where the disk refuses.
    """
    names = in_file_order(tensors)
    with atomic_write(path) as file:
        file.write(_header({name: tensors[name] for name in names}))
        for name in names:
            file.write(_bytes(content(name) if content else tensors[name]))


def in_file_order(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names as they follow each other in a file."""
    # the widest types first, so that every tensor begins at a multiple of its type's size
    return sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))


def file_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Return the size of the file that `write_tensors` writes of these, told from their names, shapes and types."""
    header = _header({name: tensors[name] for name in in_file_order(tensors)})
    return len(header) + sum(tensor.nbytes for tensor in tensors.values())


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Read a safetensors file, after its folder's checksum where there is one.

    Raises CheckpointError where it is missing, damaged, truncated or something else.
    """
    if damage := find_damage(Path(path)):
        raise CheckpointError(damage)
    try:
        return load_file(path)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} is truncated or not a safetensors file ({error}); copy or save it again"
        ) from error


def _header(tensors: Mapping[str, Tensor]) -> bytes:
    """Return what stands before the tensors: the length of the rest, and as JSON where each is and what it is."""
    entries, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _bytes(tensor: Tensor) -> memoryview:
    """Return a tensor's content; of one on the CPU without gaps it is the tensor's own memory."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
