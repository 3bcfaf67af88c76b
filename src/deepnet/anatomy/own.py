"""Our own Transformer, whose sites are modules to begin with."""

from deepnet.anatomy.base import Anatomy, FoundSite, FoundStack, Part, Placement, Weight
from deepnet.transformer.attention import Attention
from deepnet.transformer.feed_forward import FeedForward
from deepnet.transformer.layers import Sublayer
from deepnet.transformer.models import Transformer
from deepnet.transformer.norms import norm_factory
from deepnet.transformer.stacks import Stack


def find(model: Transformer) -> Anatomy:
    """Return the anatomy of a deepnet model."""
    config = model.config
    return Anatomy(
        model=model,
        family="deepnet",
        architecture=config.architecture,
        stacks=tuple(_stack(model, stack) for stack in model.stacks()),
        make_norm=norm_factory(config.norm, eps=config.norm_eps),
        vocabulary=model.vocabulary.rows.weight,
        tie_embeddings=config.tie_embeddings,
    )


def _stack(model: Transformer, stack: Stack) -> FoundStack:
    embedding = model.source_embedding if stack.name == "encoder" else model.target_embedding
    added = stack.entry.positions
    entry = [embedding.weight, *(() if added is None else added.roles().values())]
    return FoundStack(
        name=stack.name,
        module=stack,
        sites=tuple(
            FoundSite(site=one.residual.site, part=_part(one, stack)) for one in stack.sites()
        ),
        d_model=model.config.d_model,
        ffn_dim=model.config.ffn_dim,
        num_heads=model.config.num_heads,
        entry_norm=stack.entry.norm,
        entry=tuple(entry),
        loops=stack.loops,
    )


def branch_weights(branch: Attention | FeedForward) -> tuple[Weight, ...]:
    """Return a branch's weights, the one that returns its output last."""
    return tuple(Weight(role=role, owner=owner) for role, owner in branch.roles().items())


def _part(sublayer: Sublayer, stack: Stack) -> Part:
    placement: Placement = "post" if sublayer.residual.post is not None else "pre"
    norm = "residual.post" if placement == "post" else "residual.pre"
    return Part(
        sublayer.residual.site.kind,
        sublayer,
        type(sublayer),
        norm,
        placement,
        branch_weights(sublayer.branch),
        branch=sublayer.branch,
        installed=sublayer.residual,
        peek=stack.stream.peek,
    )
