"""OPT: decoder-only, pre-norm, or post-norm where do_layer_norm_before is False."""

from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers.models.opt import modeling_opt as stock

from deepnet.anatomy.base import Anatomy, FoundStack, Part, Placement, Sited, Slot, arrange
from deepnet.anatomy.huggingface import anatomy_of
from deepnet.anatomy.huggingface.bart import attention_weights, ffn_weights
from deepnet.anatomy.rows import embedding_rows, vocabulary_rows


class OPTDecoderLayer(Sited, stock.OPTDecoderLayer):
    """OPT's layer with its additions as modules."""

    def forward(
        self, hidden_states: Tensor, use_cache: bool | None = False, **kwargs: Any
    ) -> Tensor:
        """Return [B, T, D] as the stock layer does, each addition a site."""
        layer: Any = self

        def drop(y: Tensor) -> Tensor:
            return nn.functional.dropout(y, p=layer.dropout, training=layer.training)

        x = self.through(
            "self", hidden_states, lambda x: drop(layer.self_attn(hidden_states=x, **kwargs)[0])
        )
        return self.through("ffn", x, lambda x: drop(layer.fc2(layer.activation_fn(layer.fc1(x)))))


def find(model: Any) -> Anatomy:
    """Return the anatomy of an OPT."""
    decoder, config = model.base_model.decoder, model.config
    placement: Placement = "pre" if config.do_layer_norm_before else "post"
    projected = config.word_embed_proj_dim != config.hidden_size
    positions = decoder.embed_positions.weight
    stack = FoundStack(
        name="decoder",
        module=decoder,
        sites=arrange("decoder", [_layer(layer, placement) for layer in decoder.layers]),
        d_model=config.hidden_size,
        ffn_dim=config.ffn_dim,
        num_heads=config.num_attention_heads,
        final=Slot(decoder, "final_layer_norm", optional=True),
        entry=() if projected else (decoder.embed_tokens.weight, positions),
        rows=(embedding_rows(decoder.embed_tokens), *vocabulary_rows(model)),
    )
    norm = partial(nn.LayerNorm, elementwise_affine=config.layer_norm_elementwise_affine)
    return anatomy_of(model, "decoder_only", stack, norm=norm)


def _layer(layer: Any, placement: Placement) -> tuple[Part, ...]:
    attention = attention_weights(layer.self_attn)
    return (
        Part("self", layer, OPTDecoderLayer, "self_attn_layer_norm", placement, attention),
        Part("ffn", layer, OPTDecoderLayer, "final_layer_norm", placement, ffn_weights(layer)),
    )
