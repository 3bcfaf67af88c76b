"""Keys and values kept during incremental decoding: those of the memory once, those of each step as they come."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


class KeyValues:
    """The keys and values [B, H, C, K] of one attention, C entries so far, in storage that doubles when full."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._length = 0

    @property
    def empty(self) -> bool:
        """Return whether nothing has been stored."""
        return self._length == 0

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store new entries [B, H, W, K] after those there are, and return all [B, H, C, K]."""
        start, self._length = self._length, self._length + keys.shape[2]
        self._keys = _reserve(self._keys, keys, start, self._length)
        self._values = _reserve(self._values, values, start, self._length)
        self._keys[:, :, start : self._length] = keys
        self._values[:, :, start : self._length] = values
        return self.get()

    def store(self, keys: Tensor, values: Tensor) -> None:
        """Keep entries that never grow, without room for more."""
        self._keys, self._values, self._length = keys, values, keys.shape[2]

    def get(self) -> tuple[Tensor, Tensor]:
        """Return all keys and values, [B, H, C, K] each."""
        assert self._keys is not None
        assert self._values is not None
        return self._keys[:, :, : self._length], self._values[:, :, : self._length]

    def select(self, rows: Tensor) -> None:
        """Keep only the batch rows [R]."""
        if self._keys is not None and self._values is not None:
            self._keys = self._keys.index_select(0, rows)
            self._values = self._values.index_select(0, rows)

    def retain(self, entries: Tensor) -> None:
        """Keep only the entries [B, C'] of each row, in that order."""
        if self._keys is None or self._values is None:
            return
        _, heads, _, size = self._keys.shape
        index = entries[:, None, :, None].expand(-1, heads, -1, size)
        self._keys, self._values = self._keys.gather(2, index), self._values.gather(2, index)
        self._length = entries.shape[1]


def _reserve(storage: Tensor | None, new: Tensor, used: int, needed: int) -> Tensor:
    """Return storage with room for `needed` entries, the first `used` of them copied."""
    if storage is not None and storage.shape[2] >= needed:
        return storage
    batch, heads, _, size = new.shape
    grown = new.new_empty(batch, heads, max(16, 2 * needed), size)
    if storage is not None:
        grown[:, :, :used] = storage[:, :, :used]
    return grown


@dataclass
class LayerCache:
    """What one decoder layer keeps."""

    own: KeyValues = field(default_factory=KeyValues)
    memory: KeyValues = field(default_factory=KeyValues)


@dataclass
class DecoderCache:
    """What a decoder keeps between steps, for B sentences with any number of hypotheses each."""

    layers: list[LayerCache]
    memory: Tensor | None
    memory_keep: Tensor | None
    positions: Tensor | None = None
    """Where each sentence's entries stand, int64 [B, C], in the order of their coming."""

    def enter(self, position: int, x: Tensor) -> Tensor:
        """Note that W entries, as many as `x` [B, W, D] has, come at one position; return all positions [B, C]."""
        new = torch.full(x.shape[:2], position, dtype=torch.int64, device=x.device)
        self.positions = new if self.positions is None else torch.cat([self.positions, new], 1)
        return self.positions

    def select(self, rows: Tensor) -> None:
        """Keep only those sentences, by their indices [R] in the batch."""
        for layer in self.layers:
            layer.own.select(rows)
            layer.memory.select(rows)
        if self.memory is not None:
            self.memory = self.memory.index_select(0, rows)
        if self.memory_keep is not None:
            self.memory_keep = self.memory_keep.index_select(0, rows)
        if self.positions is not None:
            self.positions = self.positions.index_select(0, rows)

    def retain(self, entries: Tensor) -> None:
        """Keep only the entries [B, C'] of each sentence's own cache: those of dead hypotheses can go."""
        for layer in self.layers:
            layer.own.retain(entries)
        if self.positions is not None:
            self.positions = self.positions.gather(1, entries)
