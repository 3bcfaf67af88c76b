"""How many bytes tensors hold while operations run on them, and what their matrix products compute.

It asks for nothing but shapes and lifetimes, so that tensors without memory (torch's fake tensors) are followed as real
ones are. Memory that a kernel takes and gives back within one operation is not seen.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

UNCLAIMED = "activations"
"""The kind of what nobody has claimed: what the forward pass keeps, and what either pass needs for a moment."""

_aten = torch.ops.aten
_FLASH, _FLASH_BACKWARD = (
    flop_registry[_aten._scaled_dot_product_flash_attention],
    flop_registry[_aten._scaled_dot_product_flash_attention_backward],
)
_FORMULAS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    # the same products as on a card, which torch counts there alone
    _aten._scaled_dot_product_flash_attention_for_cpu: _FLASH,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _FLASH_BACKWARD,
}
_BY_WEIGHTS = (_aten.mm, _aten.addmm)


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows the operations inside its context: bytes held by kind, now and at the moment of the most, and FLOPs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.held: Counter[str] = Counter()
        """Bytes by kind."""
        self.most: Counter[str] = Counter()
        """The same when most was held of all kinds together."""
        self.largest = 0
        """Bytes of the largest piece of memory that was unclaimed."""
        self.made = 0
        """Bytes of all such pieces together, those that are gone included."""
        self.flops: Counter[str] = Counter()
        """Multiplications and additions of products: "weights" of matrices with rows, "attention" of batches."""
        self._pieces: dict[int, tuple[str, int, weakref.ref[Any]]] = {}

    def claim(self, tensors: Iterable[Tensor], kind: str) -> None:
        """Count the memory of these tensors as of a kind, whether it was seen before or not."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            known = self._pieces.pop(storage._cdata, None)
            if known:
                self.held[known[0]] -= known[1]
            self._enter(storage, kind)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operation, and note what it made."""
        kwargs = kwargs or {}
        made, kernel = func(*args, **kwargs), func._overloadpacket
        kernel = func._overloadpacket
        if formula := _FORMULAS.get(kernel):
            kind = "weights" if kernel in _BY_WEIGHTS else "attention"
            self.flops[kind] += formula(*args, **kwargs, out_val=made)
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, Tensor):
                storage = one.untyped_storage()
                if storage._cdata not in self._pieces:
                    self._enter(storage, UNCLAIMED)
        return made

    def _enter(self, storage: torch.UntypedStorage, kind: str) -> None:
        key, size = storage._cdata, storage.nbytes()
        # torch keeps the Python object of a storage for as long as the storage itself
        self._pieces[key] = kind, size, weakref.ref(storage, partial(self._leave, key))
        self.held[kind] += size
        if kind == UNCLAIMED:
            self.largest = max(self.largest, size)
            self.made += size
        if self.held.total() > self.most.total():
            self.most = self.held.copy()

    def _leave(self, key: int, _: object) -> None:
        kind, size, _ = self._pieces.pop(key)
        self.held[kind] -= size
