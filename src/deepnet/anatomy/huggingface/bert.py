"""BERT: post-norm encoder whose embeddings end in a norm; or decoder-only where so configured."""

from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers.models.bert import modeling_bert as stock

from deepnet.anatomy.base import Anatomy, FoundStack, Part, Sited, Weight, arrange
from deepnet.anatomy.huggingface import anatomy_of, refuse_lone_decoder
from deepnet.anatomy.rows import embedding_rows, vocabulary_rows
from deepnet.schemes.base import Architecture, StackName


class BertAttention(Sited, stock.BertAttention):
    """BERT's attention block with its addition as a module."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        """Return ([B, T, D], attention weights) as the stock block does, the addition a site."""
        return attention_block(self, hidden_states, *args, **kwargs)


class BertLayer(Sited, stock.BertLayer):
    """BERT's layer with the addition after its feed-forward as a module."""

    def feed_forward_chunk(self, attention_output: Tensor) -> Tensor:
        """Return [B, T, D] as the stock layer does, the addition a site."""
        return feed_forward(self, attention_output)


def find(model: Any) -> Anatomy:
    """Return the anatomy of a BERT; raises AdaptError for a decoder with cross-attention."""
    return one_stack(model, BertAttention, BertLayer)


# Shared with RoBERTa, whose layers are the same ---------------------------------------------------------------------


def attention_block(
    block: Any,
    x: Tensor,
    attention_mask: Tensor | None = None,
    encoder_hidden_states: Tensor | None = None,
    encoder_attention_mask: Tensor | None = None,
    past_key_values: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, Any]:
    """Return the stream [B, T, D] after self-attention, and the attention weights."""
    entered, skip = block.enter("self", x)
    y, attended = block.self(
        entered,
        encoder_hidden_states=encoder_hidden_states,
        attention_mask=attention_mask,
        past_key_values=past_key_values,
        **kwargs,
    )
    y = block.output.dropout(block.output.dense(y))
    return block.leave("self", skip, y), attended


def feed_forward(layer: Any, x: Tensor) -> Tensor:
    """Return the stream [B, T, D] after the feed-forward branch."""
    after: Tensor = layer.through(
        "ffn", x, lambda x: layer.output.dropout(layer.output.dense(layer.intermediate(x)))
    )
    return after


def one_stack(model: Any, attention: type[nn.Module], layer: type[nn.Module]) -> Anatomy:
    """Return the anatomy of a model made of those blocks."""
    refuse_lone_decoder(model)
    base, config = model.base_model, model.config
    name: StackName = "decoder" if config.is_decoder else "encoder"
    stack = FoundStack(
        name=name,
        module=base.encoder,
        sites=arrange(name, [_layer(one, attention, layer) for one in base.encoder.layer]),
        d_model=config.hidden_size,
        ffn_dim=config.intermediate_size,
        num_heads=config.num_attention_heads,
        entry_norm=base.embeddings.LayerNorm,
        rows=(embedding_rows(base.embeddings.word_embeddings), *vocabulary_rows(model)),
    )
    only: Architecture = "decoder_only" if config.is_decoder else "encoder_only"
    return anatomy_of(model, only, stack, norm=partial(nn.LayerNorm, eps=config.layer_norm_eps))


def _layer(
    layer: Any, attention_class: type[nn.Module], layer_class: type[nn.Module]
) -> tuple[Part, ...]:
    block = layer.attention
    attention = (
        Weight(role="q", owner=block.self.query),
        Weight(role="k", owner=block.self.key),
        Weight(role="v", owner=block.self.value),
        Weight(role="out", owner=block.output.dense),
    )
    ffn = (
        Weight(role="fc1", owner=layer.intermediate.dense),
        Weight(role="fc2", owner=layer.output.dense),
    )
    return (
        Part("self", block, attention_class, "output.LayerNorm", "post", attention),
        Part("ffn", layer, layer_class, "output.LayerNorm", "post", ffn),
    )
