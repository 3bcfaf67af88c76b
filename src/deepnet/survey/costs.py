"""What a scheme costs in time and memory, by count: kernels, bytes they move, bytes kept for the backward pass.

Counted on tensors without numbers, so that the counts are the same on every machine.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from deepnet.schemes import post_ln
from deepnet.schemes.base import Architecture, ResidualScheme
from deepnet.survey.table import stack_layers
from deepnet.transformer.models import Transformer, TransformerConfig

COSTS = (
    "Time and memory: one forward and backward pass of a model of 6 layers per stack, d_model 512 and ffn_dim 2048, on "
    "8 sentences of 64 ids, counted kernel by kernel as torch runs it on a CPU uncompiled."
)
"""Where time and memory are counted."""
_LAYERS, _SENTENCES, _LENGTH = 6, 8, 64
_IDS = 8  # so few that the vocabulary, which is the same under every scheme, does not count


@dataclass
class PassCost:
    """What a forward and backward pass came to."""

    kernels: int = 0
    moved_bytes: int = 0
    """Read and written by the kernels."""
    kept_bytes: int = 0
    """Of what the backward pass needs of the forward pass, parameters left out."""


def cost_beside_post_ln(scheme: ResidualScheme, architecture: Architecture) -> dict[str, float]:
    """Return kernels, moved_bytes and kept_bytes of a model of the scheme, each over that of Post-LN."""
    own, plain = (vars(pass_cost(one, architecture)) for one in (scheme, post_ln.Scheme()))
    return {name: own[name] / plain[name] for name in plain}


def pass_cost(scheme: ResidualScheme, architecture: Architecture) -> PassCost:
    """Count a forward and backward pass of a model of a scheme."""
    fake = FakeTensorMode()
    with fake:
        model = Transformer(_config(architecture), scheme)
        scheme.advance(model, 1)
        ids = torch.zeros(_SENTENCES, _LENGTH, dtype=torch.long)
        kept = _Kept({id(parameter) for parameter in model.parameters()})
        with _Counting() as counting, saved_tensors_hooks(kept.note, lambda tensor: tensor):
            logits = model(ids, None, ids if architecture == "encoder_decoder" else None)
            torch.autograd.backward(logits.sum())
    return PassCost(counting.kernels, counting.moved_bytes, sum(kept.bytes_of.values()))


def _config(architecture: Architecture) -> TransformerConfig:
    n, m = stack_layers(architecture, _LAYERS)
    return TransformerConfig(
        architecture=architecture,
        encoder_layers=n,
        decoder_layers=m,
        vocab_size=_IDS,
        d_model=512,
        ffn_dim=2048,
        dropout=0.0,
    )


@dataclass
class _Kept:
    """The storage of every tensor that is kept, once."""

    parameters: set[int]
    bytes_of: dict[int, int] = field(default_factory=dict)
    held: list[Tensor] = field(default_factory=list)

    def note(self, tensor: Tensor) -> Tensor:
        base = tensor if tensor._base is None else tensor._base
        if id(base) not in self.parameters:
            storage = tensor.untyped_storage()
            self.bytes_of[storage._cdata] = storage.nbytes()
            self.held.append(tensor)  # a storage that is freed would lend its address to another
        return tensor


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what computes: not what only looks at a tensor in another way."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernels = 0
        self.moved_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        written = _tensors(found)
        if written and not func.is_view:
            self.kernels += 1
            self.moved_bytes += sum(map(_bytes, [*_tensors((args, kwargs)), *written]))
        return found


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
