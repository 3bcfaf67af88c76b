"""BART: post-norm encoder-decoder whose embeddings end in a norm."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers.models.bart import modeling_bart as stock

from deepnet.anatomy.base import Anatomy, FoundStack, Part, Sited, Weight, arrange
from deepnet.anatomy.huggingface import anatomy_of
from deepnet.anatomy.rows import Embedding, TokenRows, embedding_rows, vocabulary_rows
from deepnet.errors import AdaptError
from deepnet.schemes.base import StackName


class SitedEncoderLayer(Sited):
    """An encoder layer of BART or Marian with its additions as modules."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> Tensor:
        """Return [B, T, D] as the stock layer does, each addition a site."""
        layer: Any = self
        attend = _branch(layer, layer.self_attn, attention_mask=attention_mask, **kwargs)
        return _after_feed_forward(layer, self.through("self", hidden_states, attend))


class SitedDecoderLayer(Sited):
    """A decoder layer of BART or Marian with its additions as modules."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = True,
        **kwargs: Any,
    ) -> Tensor:
        """Return [B, T, D] as the stock layer does, each addition a site."""
        layer: Any = self
        kwargs = {**kwargs, "past_key_values": past_key_values}
        attend = _branch(layer, layer.self_attn, attention_mask=attention_mask, **kwargs)
        x = self.through("self", hidden_states, attend)
        if encoder_hidden_states is not None:
            attend = _branch(
                layer,
                layer.encoder_attn,
                key_value_states=encoder_hidden_states,
                attention_mask=encoder_attention_mask,
                **kwargs,
            )
            x = self.through("cross", x, attend)
        return _after_feed_forward(layer, x)


class BartEncoderLayer(SitedEncoderLayer, stock.BartEncoderLayer):
    """BART's encoder layer with its additions as modules."""


class BartDecoderLayer(SitedDecoderLayer, stock.BartDecoderLayer):
    """BART's decoder layer with its additions as modules."""


class BartScaledWordEmbedding(stock.BartScaledWordEmbedding, Embedding):
    """BART's embedding with rows of unit length, which it multiplies as ever."""


def find(model: Any) -> Anatomy:
    """Return the anatomy of a BART; raises AdaptError where it has only one of the two stacks."""
    return encoder_decoder(
        model,
        BartEncoderLayer,
        BartDecoderLayer,
        entry_norm="layernorm_embedding",
        unit_embedding=BartScaledWordEmbedding,
    )


def encoder_decoder(
    model: Any,
    encoder_class: type[nn.Module],
    decoder_class: type[nn.Module],
    *,
    entry_norm: str | None,
    unit_embedding: type[nn.Module] = Embedding,
) -> Anatomy:
    """Return the anatomy of a BART or a Marian whose layers and embeddings become those classes."""
    base = model.base_model
    if "encoder" not in base._modules or not model.config.is_encoder_decoder:
        raise AdaptError(
            f"{type(model).__name__} is one stack of an encoder-decoder, and its layers keep cross-attention "
            "that is never used; apply the scheme to the whole encoder-decoder"
        )
    # a Marian whose stacks have vocabularies of their own shares nothing
    tables = [m for name, m in base.named_children() if name == "shared"]
    tables.append(base.encoder.embed_tokens)
    read = tuple(embedding_rows(table, unit_embedding) for table in tables)
    written = embedding_rows(base.decoder.embed_tokens, unit_embedding), *vocabulary_rows(model)
    stacks = (
        _stack("encoder", base.encoder, encoder_class, read, entry_norm),
        _stack("decoder", base.decoder, decoder_class, written, entry_norm),
    )
    return anatomy_of(model, "encoder_decoder", *stacks, norm=nn.LayerNorm)


def _branch(layer: Any, attention: Any, **inputs: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: nn.functional.dropout(
        attention(x, **inputs)[0], p=layer.dropout, training=layer.training
    )


def _after_feed_forward(layer: Any, x: Tensor) -> Tensor:
    def feed_forward(x: Tensor) -> Tensor:
        y = layer.activation_fn(layer.fc1(x))
        y = nn.functional.dropout(y, p=layer.activation_dropout, training=layer.training)
        return nn.functional.dropout(layer.fc2(y), p=layer.dropout, training=layer.training)

    after: Tensor = layer.through("ffn", x, feed_forward)
    return after


def _stack(
    name: StackName,
    stack: Any,
    kind: type[nn.Module],
    rows: tuple[TokenRows, ...],
    entry_norm: str | None,
) -> FoundStack:
    layers = [_layer(layer, kind) for layer in stack.layers]
    norm = None if entry_norm is None else stack.get_submodule(entry_norm)
    return FoundStack(
        name=name,
        module=stack,
        sites=arrange(name, layers),
        d_model=stack.config.d_model,
        ffn_dim=stack.layers[0].fc1.out_features,
        num_heads=stack.layers[0].self_attn.num_heads,
        entry_norm=norm,
        rows=rows,
    )


def _layer(layer: Any, kind: type[nn.Module]) -> tuple[Part, ...]:
    self_attention = Part(
        "self", layer, kind, "self_attn_layer_norm", "post", attention_weights(layer.self_attn)
    )
    ffn = Part("ffn", layer, kind, "final_layer_norm", "post", ffn_weights(layer))
    if "encoder_attn" not in layer._modules:
        return self_attention, ffn
    cross = attention_weights(layer.encoder_attn)
    return self_attention, Part("cross", layer, kind, "encoder_attn_layer_norm", "post", cross), ffn


def attention_weights(attention: Any) -> tuple[Weight, ...]:
    """Return q, k, v and out of an attention with four projections."""
    return (
        Weight(role="q", owner=attention.q_proj),
        Weight(role="k", owner=attention.k_proj),
        Weight(role="v", owner=attention.v_proj),
        Weight(role="out", owner=attention.out_proj),
    )


def ffn_weights(layer: Any) -> tuple[Weight, ...]:
    """Return fc1 and fc2 of a layer that holds them itself."""
    return Weight(role="fc1", owner=layer.fc1), Weight(role="fc2", owner=layer.fc2)
