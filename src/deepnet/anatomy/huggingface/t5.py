"""T5: pre-norm encoder-decoder, or its encoder alone; scores are not divided by sqrt(K), q is small instead."""

from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers.models.t5 import modeling_t5 as stock

from deepnet.anatomy.base import Anatomy, FoundStack, Part, Sited, Slot, Weight, arrange
from deepnet.anatomy.huggingface import anatomy_of
from deepnet.anatomy.rows import TokenRows, embedding_rows, vocabulary_rows
from deepnet.schemes.base import Architecture, Branch, StackName


class T5LayerSelfAttention(Sited, stock.T5LayerSelfAttention):
    """T5's self-attention block with its addition as a module."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Any, Any]:
        """Return ([B, T, D], position bias, attention weights) as the stock block does, the addition a site."""
        return _attend(
            self, "self", self.SelfAttention, hidden_states, mask=attention_mask, **kwargs
        )


class T5LayerCrossAttention(Sited, stock.T5LayerCrossAttention):
    """T5's cross-attention block with its addition as a module."""

    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Any, Any]:
        """Return ([B, T, D], position bias, attention weights) as the stock block does, the addition a site."""
        inputs = {"mask": attention_mask, "key_value_states": key_value_states, **kwargs}
        return _attend(self, "cross", self.EncDecAttention, hidden_states, **inputs)


class T5LayerFF(Sited, stock.T5LayerFF):
    """T5's feed-forward block with its addition as a module."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return [B, T, D] as the stock block does, the addition a site."""
        block: Any = self
        return self.through("ffn", hidden_states, lambda x: block.dropout(block.DenseReluDense(x)))


def _attend(
    block: Any, kind: Branch, attention: Any, x: Tensor, **inputs: Any
) -> tuple[Tensor, Any, Any]:
    entered, skip = block.enter(kind, x)
    y, bias, attended = attention(entered, **inputs)
    return block.leave(kind, skip, block.dropout(y)), bias, attended


def find(model: Any) -> Anatomy:
    """Return the anatomy of a T5."""
    base, config = model.base_model, model.config
    shared = embedding_rows(base.shared), embedding_rows(base.encoder.embed_tokens)
    stacks = [_stack("encoder", base.encoder, shared)]
    if "decoder" in base._modules:
        rows = embedding_rows(base.decoder.embed_tokens), *vocabulary_rows(model)
        stacks.append(_stack("decoder", base.decoder, rows))
    both: Architecture = "encoder_decoder" if len(stacks) == 2 else "encoder_only"
    norm = partial(stock.T5LayerNorm, eps=config.layer_norm_epsilon)
    return anatomy_of(model, both, *stacks, norm=norm)


def _stack(name: StackName, stack: Any, rows: tuple[TokenRows, ...]) -> FoundStack:
    config = stack.config
    return FoundStack(
        name=name,
        module=stack,
        sites=arrange(name, [tuple(_part(one) for one in block.layer) for block in stack.block]),
        d_model=config.d_model,
        ffn_dim=config.d_ff,
        num_heads=config.num_heads,
        final=Slot(stack, "final_layer_norm"),
        entry=(stack.embed_tokens.weight,),
        rows=rows,
    )


def _part(block: nn.Module) -> Part:
    if isinstance(block, stock.T5LayerSelfAttention):
        weights = _attention(block.SelfAttention)
        return Part("self", block, T5LayerSelfAttention, "layer_norm", "pre", weights)
    if isinstance(block, stock.T5LayerCrossAttention):
        weights = _attention(block.EncDecAttention)
        return Part("cross", block, T5LayerCrossAttention, "layer_norm", "pre", weights)
    assert isinstance(block, stock.T5LayerFF)
    return Part("ffn", block, T5LayerFF, "layer_norm", "pre", _feed_forward(block.DenseReluDense))


def _attention(attention: Any) -> tuple[Weight, ...]:
    return (
        Weight(role="q", owner=attention.q, factor=attention.key_value_proj_dim**-0.5),
        Weight(role="k", owner=attention.k),
        Weight(role="v", owner=attention.v),
        Weight(role="out", owner=attention.o),
    )


def _feed_forward(dense: Any) -> tuple[Weight, ...]:
    if isinstance(dense, stock.T5DenseActDense):
        return Weight(role="fc1", owner=dense.wi), Weight(role="fc2", owner=dense.wo)
    return (
        Weight(role="gate", owner=dense.wi_0),
        Weight(role="fc1", owner=dense.wi_1),
        Weight(role="fc2", owner=dense.wo),
    )
