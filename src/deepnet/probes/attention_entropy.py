"""Entropy of the attention weights in nats, mean over heads and queries: 0 looks at one token, ln(keys) at all alike.

Queries that are padding are left out where the model's call says which they are; so are those that may attend to
nothing. The weights are those that are computed: a TorchFunctionMode sees each softmax, torch's attention function
and torch.nn's multi-head attention inside an attention of the model; for the latter two, which keep their weights, they
are computed again from the same arguments.

Source: Zhai et al., Stabilizing Transformer Training by Preventing Attention Entropy Collapse, arXiv 2303.06296.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from deepnet.probes.listening import ForwardProbe, is_recomputing, wide
from deepnet.probes.padding import real_queries
from deepnet.probes.place import Place, branch_of, site_places

_LARGEST = 2**26
"""Attention weights that are computed again at a time."""


class AttentionEntropy(ForwardProbe):
    """Mean entropy of the attention weights of each attention, in nats."""

    def _listen(self, hooks: ExitStack) -> None:
        self._running: Place | None = None
        self._real: dict[str, Tensor] = {}
        hooks.callback(self._forget)
        self._watch(self.anatomy.model, self._note_padding, self._forget, hooks)
        for place, found in site_places(self.anatomy):
            if found.site.kind != "ffn":
                self._watch_attention(place, branch_of(self.anatomy, found), hooks)
        hooks.enter_context(_Watching(self._look))

    def _watch_attention(self, place: Place, attention: nn.Module, hooks: ExitStack) -> None:
        def start(*_: Any) -> None:
            self._running = place

        def end() -> None:
            self._running = None

        self._watch(attention, start, end, hooks)

    def _watch(
        self,
        module: nn.Module,
        start: Callable[..., None],
        end: Callable[[], None],
        hooks: ExitStack,
    ) -> None:
        """Call `start` with the arguments before each call that counts, and `end` after it, errors included."""

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if not is_recomputing():
                start(args, kwargs)

        def after(*_: Any) -> None:
            end()

        hooks.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
        hooks.callback(module.register_forward_hook(after, always_call=True).remove)

    def _note_padding(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._real = real_queries(self.anatomy, args, kwargs)

    def _forget(self) -> None:
        self._running = None
        self._real = {}

    def _look(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Count the entropy of the weights that a function made, if it is one that makes some."""
        if self._running is None or is_recomputing():
            return
        parts = _attention_weights(function, args, kwargs, out)
        with torch.no_grad():
            entropies = [torch.special.entr(wide(weights)).sum(-1) for weights in parts]
            if entropies:
                entropy = torch.cat(entropies)
                self._count(self._running, self._kept(entropy, self._running.stack).mean())

    def _kept(self, entropy: Tensor, stack: str) -> Tensor:
        """Return the entropies of queries that are tokens and attend to something, from those of all, [.., T]."""
        real, length = self._real.get(stack), entropy.shape[-1]
        if real is not None and real.shape[1] == length and entropy.numel() % real.numel() == 0:
            entropy = entropy.reshape(len(real), -1, length).transpose(1, 2)[
                real.to(entropy.device)
            ]
        return entropy[~entropy.isnan()]


class _Watching(TorchFunctionMode):
    """Shows each call of a torch function, its arguments and its result."""

    def __init__(self, look: Callable[..., None]) -> None:
        super().__init__()
        self.look = look

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call, then show."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.look(func, args, kwargs, out)
        return out


def _attention_weights(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
) -> Iterator[Tensor]:
    """Yield the weights [.., T, C] of an attention, a part of the batch at a time; nothing for other functions."""
    if function in (F.softmax, torch.softmax, Tensor.softmax):
        dim = kwargs["dim"] if "dim" in kwargs else args[1]
        yield out.movedim(dim, -1)
    elif function is F.scaled_dot_product_attention:
        with torch.autocast(out.device.type, enabled=False):
            yield from _computed_again(*args, **kwargs)
    elif function is F.multi_head_attention_forward:
        asked = {"need_weights": True, "average_attn_weights": False, "training": False}
        with torch.no_grad():
            weights: Any = function(*args, **{**kwargs, **asked})[1]
        yield weights


def _computed_again(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Iterator[Tensor]:
    """Yield softmax(scale * q k^T + mask) with the arguments of torch's function."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    shape = (*query.shape[:-1], key.shape[-2])
    if is_causal:
        attn_mask = torch.ones(shape[-2:], dtype=torch.bool, device=query.device).tril()
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    mask = None if attn_mask is None else attn_mask.expand(shape)
    rows = max(1, _LARGEST // max(1, math.prod(shape[1:])))
    for start in range(0, shape[0], rows):
        part = slice(start, start + rows)
        scores = wide(query[part]) @ wide(key[part]).transpose(-1, -2) * scale
        yield _masked(scores, None if mask is None else mask[part]).softmax(-1)


def _masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
