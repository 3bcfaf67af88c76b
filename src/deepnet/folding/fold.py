"""`fold`: a trained model as the plain one that computes the same."""

from typing import NamedTuple

import torch
from torch import Tensor

from deepnet.errors import ConfigError
from deepnet.folding import no_norm
from deepnet.folding.factors import scale_norm
from deepnet.folding.placement import Placement, find_placement, is_one
from deepnet.folding.rewrite import (
    entry_factor,
    exit_factor,
    rewrite_stack,
    scale_memory_readers,
)
from deepnet.schemes import post_ln, pre_ln
from deepnet.schemes.base import ResidualScheme
from deepnet.transformer.models import Transformer, TransformerConfig
from deepnet.transformer.scales import value
from deepnet.transformer.stacks import Stack


@torch.no_grad()
def fold(model: Transformer, *, max_positions: int | None = None) -> Transformer:
    """Return a plain copy of `model`, in evaluation mode, that computes the same logits: post_ln, pre_ln or no norms.

    Scales and shifts go into the weights, a scheduled scale as it is now; eps stays. It is computed in float64 and
    returned in the model's type, float32 at least. Matrices that were one are two where their scales now differ. If the
    first skip is scaled, sinusoidal positions become a table of `max_positions` rows (by default the configuration's).
    A folded model is for deployment: it is never resumed, as an optimiser takes other steps on the rewritten weights.
    Raises ExportError, with the reason, where no plain model computes the same.
    """
    placement = find_placement(model)
    factors = _Factors.of(model)
    config = _plain_config(model, factors, max_positions)
    plain = _build(config, placement, model)
    for old, new in zip(model.stacks(), plain.stacks(), strict=True):
        rewrite_stack(old, new)
    if model.encoder is not None and plain.decoder is not None:
        scale_memory_readers(plain.decoder, exit_factor(model.encoder))
    _rewrite_vocabulary(model, plain, factors)
    weight = model.target_embedding.weight
    return plain.to(weight.device, torch.promote_types(weight.dtype, torch.float32)).eval()


class _Factors(NamedTuple):
    """What the rows of each matrix of the vocabulary are multiplied by, relative to a plain model's: [1] or [D]."""

    source: Tensor
    target: Tensor
    output: Tensor

    @classmethod
    def of(cls, model: Transformer) -> "_Factors":
        first, last = model.stacks()[0], model.stacks()[-1]
        output = exit_factor(last) * value(model.logit_scale)
        return cls(entry_factor(first), entry_factor(last), output)


def _build(config: TransformerConfig, placement: Placement, model: Transformer) -> Transformer:
    """Return a plain model in float64 whose weights are still to be filled; torch's generator is left as it was."""
    plain_schemes: dict[Placement, ResidualScheme] = {
        "post": post_ln.Scheme(),
        "pre": pre_ln.Scheme(),
        "none": no_norm.Scheme(),
    }
    with torch.random.fork_rng(devices=[]):
        plain = Transformer(
            config, plain_schemes[placement], optimizer_family=model.optimizer_family
        )
    plain.advance(int(model.scheme_step))
    return plain.double()


def _plain_config(
    model: Transformer, factors: _Factors, max_positions: int | None
) -> TransformerConfig:
    config = model.config
    changes: dict[str, object] = {"tie_embeddings": _tying(model, factors)}
    scaled = any(not is_one(value(s.sites()[0].residual.skip)) for s in model.stacks())
    if scaled and config.positions == "sinusoidal":
        rows = config.max_positions if max_positions is None else max_positions
        changes |= {"positions": "learned", "max_positions": rows}
    elif max_positions is not None:
        raise ConfigError(
            f"max_positions {max_positions} has no effect on this model: its positions stay as they are; leave it out"
        )
    return TransformerConfig.model_validate(config.model_dump() | changes)


def _tying(model: Transformer, factors: _Factors) -> str:
    """Return the tying that the factors leave; a norm at the end makes up for an output's own factor."""
    if not model.vocabulary.tied:
        return "none"
    if _last_norm(model.stacks()[-1]) is None and not _equal(factors.output, factors.target):
        return "none"
    if model.source_embedding is model.target_embedding and _equal(factors.source, factors.target):
        return model.config.tie_embeddings
    return "decoder"


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool((a == b).all())


def _rewrite_vocabulary(model: Transformer, plain: Transformer, factors: _Factors) -> None:
    """Fill the embeddings and the projection; what the projection's rows cannot have, the last norm emits."""
    plain.source_embedding.weight.copy_(model.source_embedding.rows())
    plain.source_embedding.weight.mul_(factors.source)
    plain.target_embedding.weight.copy_(model.target_embedding.rows())
    plain.target_embedding.weight.mul_(factors.target)
    norm = _last_norm(plain.stacks()[-1])
    rows = factors.target if plain.vocabulary.tied else torch.ones(1)
    if norm is not None:
        scale_norm(norm, factors.output / rows)
    elif not plain.vocabulary.tied:
        rows = factors.output
    if not plain.vocabulary.tied:
        plain.vocabulary.rows.weight.copy_(model.vocabulary.rows.rows())
        plain.vocabulary.rows.weight.mul_(rows)


def _last_norm(stack: Stack) -> torch.nn.Module | None:
    """Return the norm whose output leaves the stack and is read by nothing in it, None where there is none."""
    if stack.ends.final is not None:
        return stack.ends.final
    return None if stack.loops > 1 else stack.sites()[-1].residual.post
