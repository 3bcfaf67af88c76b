"""Which positions of each stack are tokens and not padding, as far as the arguments of a model's call say it."""

from inspect import signature
from typing import Any

import torch
from torch import Tensor

from deepnet.anatomy.base import Anatomy
from deepnet.transformer.models import Transformer


def real_queries(
    anatomy: Anatomy, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Tensor]:
    """Return [B, T], True at tokens, by stack; a stack of which the call says nothing is not in it."""
    given = signature(anatomy.model.forward).bind_partial(*args, **kwargs).arguments
    if isinstance(anatomy.model, Transformer):
        return _own(anatomy.model, given)
    first, last = anatomy.stacks[0].name, anatomy.stacks[-1].name
    found: dict[str, Tensor | None] = {
        first: _kept(given.get("attention_mask")),
        last: _kept(given.get("decoder_attention_mask" if first != last else "attention_mask")),
    }
    for stack, name in (("encoder", "src_key_padding_mask"), ("decoder", "tgt_key_padding_mask")):
        if name in given:
            found[stack] = _not_ignored(given[name])
    return {stack: real for stack, real in found.items() if real is not None}


def _own(model: Transformer, given: dict[str, Any]) -> dict[str, Tensor]:
    """Return what is not the padding id; a target starts with that id, which is a token there."""
    found: dict[str, Tensor] = {}
    for stack in model.stacks():
        reads_target = stack.name == "decoder" and model.encoder is not None
        ids: Tensor = given["target_in" if reads_target else "source"]
        found[stack.name] = ids != model.start
        if reads_target:
            found[stack.name][:, 0] = True
    return found


def _kept(mask: Any) -> Tensor | None:
    """Return a mask [B, T] that is 1 at tokens as True; None where there is none of that shape."""
    return mask.bool() if isinstance(mask, Tensor) and mask.dim() == 2 else None


def _not_ignored(mask: Any) -> Tensor | None:
    """Return torch.nn's mask [B, T], True or minus infinity at padding, turned round."""
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        return None
    return ~mask if mask.dtype == torch.bool else mask == 0
